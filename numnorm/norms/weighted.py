"""Calls with missing values or weights: the keywords that all norms share, and what they mean."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Mapping
from sys import modules
from typing import Any, TypeVar, cast

import numpy as np

from numnorm.arguments import Shape, brief, check_choice, check_float
from numnorm.array_likes import as_plain_array, is_on_device
from numnorm.backends import backend_for
from numnorm.backends.contract.weighting import KEEP_ALL, WeightedInput, Weighting
from numnorm.keywords import unexpected
from numnorm.layouts import normalized_axes
from numnorm.lazy_arrays import any_lazy, lazy_twin

_Result = TypeVar("_Result")
_POLICIES = ("propagate", "omit", "raise")
_BOOL = np.dtype(bool)


def with_weights(function: Callable[..., _Result], arguments: dict[str, Any]) -> _Result:
    """Return the function's result with statistics as the keywords in ``others`` say.

    `arguments` are all arguments of the function. It is called again without ``others``, with a
    `WeightedInput` in the place of x.
    """
    others = arguments.pop("others")
    parameters = _parameters(function)
    if not parameters.issuperset(others):
        raise unexpected(function, {n: v for n, v in others.items() if n not in parameters})
    if "dask" in modules and any_lazy(*arguments.values(), *others.values()):
        lazily = lazy_twin("with_weights")
        return cast(_Result, lazily(function, arguments | others, next(iter(others))))
    updates = arguments.get("running_mean") is not None and arguments["training"] is not False
    if updates and function.__name__.startswith("instance"):
        raise NotImplementedError(f"{next(iter(others))} is not there with running statistics yet")
    policy = check_choice("nan_policy", others.get("nan_policy", "propagate"), _POLICIES)
    name = "x" if "x" in parameters else "v"
    if type(arguments[name]) is not np.ndarray and is_on_device(arguments[name]):
        raise NotImplementedError(f"{next(iter(others))} is not there on a device yet")
    _, x = backend_for(arguments[name], name)
    keep = _where(others.get("where"), x.shape, name)
    if policy == "raise":
        _check_no_nan(name, x, keep)
    weights = _weights(others.get("weights"), keep, x.shape, name, arguments, function)
    if others.get("groups") is not None:
        from numnorm.norms.labels import by_group  # which imports the functions of batch norm

        by_sample = {"where": keep, "weights": weights}
        return cast(_Result, by_group(function, arguments | others | by_sample))
    weighting = Weighting(keep, weights, policy == "omit", *_fills(others.get("fill")))
    if keep is not None or weights is not None or weighting.omit:
        arguments[name] = WeightedInput(arguments[name], weighting)
    return function(**arguments)


@functools.cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    """Return a function's parameters, with the keywords of `**others` that its signature shows."""
    return frozenset(inspect.signature(function).parameters)


def counted(x: Any) -> WeightedInput:
    """Return x so that its moments have a count for each channel."""
    return x if isinstance(x, WeightedInput) else WeightedInput(x, KEEP_ALL)


def _where(value: Any, shape: Shape, name: str) -> Any:
    """Return a mask that broadcasts against x; None for None."""
    if value is None:
        return None
    keep = as_plain_array("where", value)
    if keep.dtype is _BOOL and keep.shape == shape:
        return keep
    if keep.dtype.kind in "iu":
        keep = _of_zeros_and_ones(keep)
    if keep.dtype != np.bool_:
        got = f"got {keep.dtype}: use mask != 0"
        raise TypeError(f"where must have dtype bool, or hold integers 0 and 1, {got}")
    _check_broadcast("where", keep.shape, shape, name)
    return keep


def _of_zeros_and_ones(mask: Any) -> Any:
    """Return a mask of integers, such as an attention mask, as one of bool."""
    keep = mask == 1
    if np.count_nonzero(mask) != np.count_nonzero(keep):
        other = mask[(mask != 0) & ~keep].flat[0]
        raise ValueError(
            f"where must hold only 0 and 1 where it holds integers, got {other}: use mask != 0"
        )
    return keep


def _check_no_nan(name: str, x: Any, keep: Any) -> None:
    """Raise if a value that counts is NaN."""
    missing = np.isnan(x)
    if np.any(missing if keep is None else missing & keep):
        raise ValueError(f"{name} must not contain NaN, as nan_policy is 'raise'")


def _weights(
    value: Any,
    keep: Any,
    shape: Shape,
    name: str,
    options: Mapping[str, Any],
    function: Callable[..., Any],
) -> Any:
    """Return weights in float64 that broadcast against x; None for None."""
    if value is None:
        return None
    given = as_plain_array("weights", value)
    check_float("weights", given.dtype)
    weights = given.astype(np.float64)
    own = _own_axes(len(shape), options, function.__name__.startswith("batch"))
    if weights.shape == tuple(shape[axis] for axis in own):
        weights = weights.reshape([n if axis in own else 1 for axis, n in enumerate(shape)])
    _check_broadcast("weights", weights.shape, shape, name)
    wrong = ~((weights >= 0.0) & (weights < np.inf))
    if wrong.any():
        if np.any(wrong if keep is None else wrong & keep):
            got = weights[wrong].flat[0]
            raise ValueError(f"weights must be finite and at least 0 where they count, got {got:g}")
        weights = np.where(wrong, 0.0, weights)
    return weights


def _own_axes(ndim: int, options: Mapping[str, Any], by_sample: bool) -> tuple[int, ...]:
    """Return the axes of weights that have no axes to broadcast in: a row's, or the samples'."""
    if "axis" in options:
        return normalized_axes(options["axis"], ndim)
    if not by_sample:
        return ()
    channels = normalized_axes(options["channel_axis"], ndim, "channel_axis")
    return tuple(axis for axis in range(ndim) if axis not in channels)[:1]


def _check_broadcast(what: str, shape: Shape, own: Shape, name: str) -> None:
    fits = len(shape) <= len(own) and all(
        n in (1, most) for n, most in zip(shape[::-1], own[::-1], strict=False)
    )
    if not fits:
        raise ValueError(f"{what} must broadcast against {name} of shape {own}, got {shape}")


def _fills(fill: Any) -> tuple[float, float]:
    """Return the results where `where` is false and where NaN is omitted."""
    if fill is None:
        return 0.0, np.nan
    if isinstance(fill, bool) or not isinstance(fill, numbers.Real):
        raise TypeError(f"fill must be a number or None, got {brief(fill)}")
    try:
        return float(fill), float(fill)
    except OverflowError:
        raise ValueError("fill must be in the range of float64, got an int beyond it") from None
