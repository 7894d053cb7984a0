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
        raise NotImplementedError(f"{next(iter(others))} is not supported with running statistics")
    if others.get("statistics") is not None and others.get("groups") is None:
        raise ValueError("groups must be given with statistics, got None")
    policy = check_choice("nan_policy", others.get("nan_policy", "propagate"), _POLICIES)
    name = "x" if "x" in parameters else "v"
    if type(arguments[name]) is not np.ndarray and is_on_device(arguments[name]):
        raise NotImplementedError(f"{next(iter(others))} is not supported on a device")
    _, x = backend_for(arguments[name], name)
    keep = _where(others.get("where"), x.shape, name)
    if policy == "raise":
        _check_no_nan(name, x, keep)
    weights = _weights(others.get("weights"), x, name, arguments, function)
    left = functools.partial(_left, keep, x, omit=policy == "omit")
    if weights is not None:
        weights = _checked_weights(weights, left)
    if others.get("groups") is not None:
        from numnorm.norms.labels import by_group  # which imports the functions of batch norm

        by_sample = {"where": keep, "weights": weights}
        return cast(_Result, by_group(function, arguments | others | by_sample))
    if weights is not None:
        weights = _in_range(weights, left, x.shape, arguments, function)
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
    x: Any,
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
    own = _own_axes(x.ndim, options, function.__name__.startswith("batch"))
    if weights.shape == tuple(x.shape[axis] for axis in own):
        weights = weights.reshape([n if axis in own else 1 for axis, n in enumerate(x.shape)])
    _check_broadcast("weights", weights.shape, x.shape, name)
    return weights


def _left(keep: Any, x: Any, *, omit: bool) -> Any:
    """Return a mask of the elements that are not left out."""
    left = True if keep is None else keep
    return left & ~np.isnan(x) if omit else left


def _checked_weights(weights: Any, left: Callable[[], Any]) -> Any:
    """Return weights with 0 for what is left out, if a number there is no weight."""
    wrong = ~((weights >= 0.0) & (weights < np.inf))
    if wrong.any():
        if np.any(wrong & left()):
            got = weights[wrong].flat[0]
            raise ValueError(f"weights must be finite and at least 0 where they count, got {got:g}")
        weights = np.where(wrong, 0.0, weights)
    return weights


def _in_range(
    weights: Any,
    left: Callable[[], Any],
    shape: Shape,
    options: Mapping[str, Any],
    function: Callable[..., Any],
) -> Any:
    """Return weights whose products with squares, and the sums of these, are in range.

    The weights of what shares statistics are multiplied by one power of two, if the largest of them
    is below 2**-32 or beyond 2**64. No result depends on that: below, their sum W is less than any
    `ddof` but 0, and beyond, W - `ddof` is W. The sums of `batch_moments` and the length of
    `weight_norm` do depend on it, and their weights stay.
    """
    axes = _statistic_axes(len(shape), options, function.__name__)
    least = np.min(weights, where=weights > 0.0, initial=1.0)
    if axes is None or (least >= 2.0**-32 and np.max(weights, initial=1.0) <= 2.0**64):
        return weights
    weights = np.where(left(), np.broadcast_to(weights, shape), 0.0)
    exponents = np.frexp(np.max(weights, axis=axes, initial=0.0, keepdims=True))[1]
    with np.errstate(under="ignore"):
        return np.ldexp(weights, np.clip(exponents, -32, 64) - exponents)


def _statistic_axes(ndim: int, options: Mapping[str, Any], name: str) -> tuple[int, ...] | None:
    """Return axes that hold all elements with one mean; None if the sum of weights is a result."""
    if name == "batch_moments" or name.startswith("weight"):
        return None
    if "axis" in options:
        return normalized_axes(options["axis"], ndim)
    alone: tuple[int, ...] = () if name.startswith("batch") else (0,)
    if not name.startswith("group"):
        alone += tuple(normalized_axes(options["channel_axis"], ndim, "channel_axis"))
    return tuple(axis for axis in range(ndim) if axis not in alone)


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
