"""The statistics of `robust_norm` for rows larger than memory, in passes over their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.order import Spread
from numnorm.norms.batch import batch_moments
from numnorm.norms.moments import Moments
from numnorm.norms.order_statistics import (
    between,
    check_method,
    distance,
    near,
    places,
    spread_by,
)
from numnorm.norms.selection_passes import (
    Search,
    SelectionPasses,
    look,
    searched,
    searched_dtype,
)

_AT_ONCE = 1 << 18
"""Elements that are normalized at a time, about, in float64."""


class RobustStatistics(NamedTuple):
    """By what rows are centred and scaled.

    Attributes
    ----------
    center, center_lo : array of float64
        The center is their sum: a number near it, and what is left.
    divisor : array of float64
        The scale with its factor and eps; 1 where rows are only centred.
    """

    center: Any
    center_lo: Any
    divisor: Any

    def normalize(self, x: Any, out: Any) -> None:
        """Write the normalized elements of x, against which the statistics broadcast."""
        step = max(1, _AT_ONCE * len(x) // max(1, x.size))
        for start in range(0, len(x), step):
            some = slice(start, start + step)
            center, center_lo, divisor = (a[some] if len(a) == len(x) else a for a in self)
            with np.errstate(all="ignore"):
                centred = (x[some].astype(np.float64) - center) - center_lo
                flat = np.where(np.isnan(centred), centred, 0.0)
                out[some] = np.where(divisor == 0.0, flat, centred / divisor)


class Task(NamedTuple):
    """What a pass looks for; other processes can take it.

    Attributes
    ----------
    search : Search or None
        None for a pass that takes the moments of rows.
    center, center_lo : array of float64, optional
        As in `RobustStatistics`, if distances from the center are searched.
    omit : bool
        Whether NaN is left out of moments.
    """

    search: Search | None
    center: Any = None
    center_lo: Any = None
    omit: bool = False

    def found_in(self, x: Any, rows: Any) -> Any:
        """Return what is found in a part of some rows.

        Parameters
        ----------
        x : array
            ``(rows, elements)``.
        rows : array of int
            Their numbers.
        """
        if self.search is None:
            policy: Any = "omit" if self.omit else "propagate"
            return rows, batch_moments(x, channel_axis=0, nan_policy=policy)
        return look(x, self.search, rows, centers=self.centers(rows))

    def centers(self, rows: Any) -> Any:
        """Return the centers of some rows; None if the elements themselves are searched."""
        return None if self.center is None else (self.center[rows], self.center_lo[rows])


def robust_statistics(
    rows: int,
    dtype: Any,
    options: Mapping[str, Any],
    each_pass: Callable[[Task], Iterable[Any]],
    samples: Iterable[tuple[Any, Any]] = (),
    budget: int = 64 << 20,
) -> RobustStatistics:
    """Return the statistics of `robust_norm`, of the bytes that a call on whole rows has.

    The mean of rows is the same up to rounding.

    Parameters
    ----------
    rows : int
        How many rows there are.
    dtype : dtype
        That of the elements.
    options : mapping
        `center`, `scale`, `factor`, `method`, `eps` and `nan_policy` of `robust_norm`, checked,
        as far as they are given.
    each_pass : callable
        It takes a `Task`, and returns what its `found_in` returned for parts of the rows that hold
        each element once.
    samples : iterable of (array, array)
        Some elements of rows, and the numbers of these rows.
    budget : int
        The bytes to keep, about.

    Raises
    ------
    ValueError
        If there is NaN, and `nan_policy` is "raise".
    """
    kind, policy = options.get("center", "median"), options.get("nan_policy", "propagate")
    spread = spread_by(options.get("scale", "mad"), options.get("factor", 1.0))
    method = check_method(options.get("method"), False)
    samples = list(samples)
    missing = np.zeros(rows, bool)

    def selected(task: Task, searched_in: np.dtype[Any], quantiles: list[float]) -> Any:
        """Return the elements below and above each quantile, and the shares of the latter."""

        def ranks_of(count: Any) -> Any:
            lower, share = places(np.array(quantiles), np.maximum(count, 1), method)
            return np.concatenate([lower, lower + (share > 0.0)])

        nonlocal missing
        selection = SelectionPasses(rows, searched_in, ranks_of, budget)
        for x, own in samples:
            centers = task.centers((own, None))
            selection.begin(searched(x, centers), own)
        while not selection.is_done:
            selection.end_pass(each_pass(task._replace(search=selection.search)))
        missing = missing | (selection.missing > 0)
        if policy == "raise" and missing.any():
            raise ValueError("x must not contain NaN, as nan_policy is 'raise'")
        found = selection.values.astype(np.float64)
        share = places(np.array(quantiles), np.maximum(selection.count, 1), method)[1]
        return (*np.split(found, 2), share)

    center, center_lo = np.full(rows, kind if isinstance(kind, float) else 0.0), np.zeros(rows)
    if kind == "mean":
        center, center_lo = _mean(rows, each_pass(Task(None, omit=policy == "omit")))
    quantiles = [0.5] if kind == "median" or spread.kind is None else []
    quantiles += [spread.low, spread.high] if spread.kind in ("quantiles", "range") else []
    scale = np.ones(rows)
    if quantiles:
        lower, upper, share = selected(Task(None), searched_dtype(np.dtype(dtype)), quantiles)
        if kind == "median":
            center, center_lo = near(lower[0], upper[0], share[0])
        if spread.kind is not None and spread.kind != "mad":
            scale = distance(lower[-2:], upper[-2:], share[-2:])
    if spread.kind == "mad":
        distances = Task(None, center, center_lo)
        (lower,), (upper,), (share,) = selected(distances, np.dtype(np.float64), [0.5])
        with np.errstate(all="ignore"):
            scale = np.where(np.isfinite(center + center_lo), between(lower, upper, share), np.nan)
    divisor = _divisor(scale, spread, float(options.get("eps", 0.0)))
    if policy == "propagate":
        center = np.where(missing, np.nan, center)
    return RobustStatistics(center, center_lo, divisor)


def _mean(rows: int, parts: Iterable[tuple[Any, Moments]]) -> tuple[Any, Any]:
    """Return the mean of each row, as a number near it and what is left."""
    count, mean, m2, left = np.zeros((4, rows))
    for own, part in parts:
        known = Moments(count[own], mean[own], m2[own], left[own]).merge(part)
        count[own], mean[own], m2[own] = known.count, known.mean, known.m2
        left[own] = 0.0 if known.mean_lo is None else known.mean_lo
    return np.where(count > 0.0, mean, np.nan), left


def _divisor(scale: Any, spread: Spread, eps: float) -> Any:
    if spread.kind is None:
        return np.ones_like(scale)
    with np.errstate(all="ignore"):
        return scale * spread.factor + eps
