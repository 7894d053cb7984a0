"""The keywords for missing values and weights: what they mean, checked once for all norms."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple, get_args

import numpy as np

from numnorm.arguments import Shape, brief, check_choice, check_float
from numnorm.array_likes import as_plain_array, is_on_device
from numnorm.array_types import NanPolicy
from numnorm.backends import backend_for, backend_of
from numnorm.backends.contract.weighting import KEEP_ALL, WeightedInput, Weighting
from numnorm.layouts import normalized_axes

Axes = tuple[int, ...]

POLICIES = get_args(NanPolicy)
_BOOL, _NDARRAY = np.dtype(bool), np.ndarray
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
# Weights between these need no factor: see `_in_range`.
_LEAST, _LARGEST = 2.0**-32, 2.0**64
# The results where `where` is false and where NaN is omitted, by default.
_FILLS = 0.0, np.nan


class Shared(NamedTuple):
    """How the weights of a norm lie along the axes of x.

    Attributes
    ----------
    own : tuple of int
        The axes of weights that have none to broadcast in.
    statistic : tuple of int or None
        Axes that hold all elements with one mean; None if the sum of the weights is a result.
    """

    own: Axes
    statistic: Axes | None


def of_rows(axis: Any, ndim: int) -> Shared:
    """Return the axes of a row."""
    axes = normalized_axes(axis, ndim)
    return Shared(axes, axes)


def of_vectors(axis: Any, ndim: int) -> Shared:
    """Return the axes of a vector, whose length depends on the sum of the weights."""
    return Shared(normalized_axes(axis, ndim), None)


def of_groups(channel_axis: Any, ndim: int) -> Shared:
    """Return all axes but that of the samples: groups of channels are no axis of their own."""
    return Shared((), tuple(range(1, ndim)))


def of_instances(channel_axis: Any, ndim: int) -> Shared:
    """Return the axes of one channel of a sample."""
    alone = 0, *normalized_axes(channel_axis, ndim, "channel_axis")
    return Shared((), tuple(axis for axis in range(ndim) if axis not in alone))


def of_channels(channel_axis: Any, ndim: int) -> Shared:
    """Return the axes of a channel; weights of one axis belong to the samples."""
    channels = normalized_axes(channel_axis, ndim, "channel_axis")
    axes = tuple(axis for axis in range(ndim) if axis not in channels)
    return Shared(axes[:1], axes)


def of_moments(channel_axis: Any, ndim: int) -> Shared:
    """Return what `of_channels` returns, for moments, which have the sum of the weights."""
    return of_channels(channel_axis, ndim)._replace(statistic=None)


def of_steps(axis: Any, ndim: int) -> Shared:
    """Return nothing: the steps of a moving norm have no weights."""
    return Shared((), None)


class Counting(NamedTuple):
    """Checked keywords for missing values and weights.

    Attributes
    ----------
    where : array of bool or None
        Which elements count.
    weights : array of float64 or None
        With 0 for what is left out, if a number there is no weight.
    omit : bool
        Whether NaN is left out.
    """

    where: Any
    weights: Any
    omit: bool


def weighted_input(
    shared: Callable[[Any, int], Shared],
    x: Any,
    axis: Any,
    where: Any,
    weights: Any,
    nan_policy: Any,
    fill: Any,
) -> Any:
    """Return an array in the place of x, whose backend leaves out elements and weights others.

    Parameters
    ----------
    shared : callable
        One of the functions above: it takes `axis` and the number of axes of x.
    x : array_like
    axis : int or tuple of int
        The axes by which the norm is called.
    where, weights, nan_policy, fill
        As the caller gave them.
    """
    # No lookup and no check: a small call would spend much of its time on them.
    if type(x) is _NDARRAY and fill is None and type(nan_policy) is str:
        is_mask = type(where) is _NDARRAY and where.dtype is _BOOL and where.shape == x.shape
        omit = nan_policy == "omit"
        usual = None if weights is None else _usual_weights(weights, x.shape, shared, axis)
        given = is_mask or omit if weights is None else usual is not None
        if given and (is_mask or where is None) and (omit or nan_policy == "propagate"):
            return WeightedInput(x, Weighting(where, usual, omit, *_FILLS))
    values, counting = checked_counting(shared, x, axis, where, weights, nan_policy, fill)
    if type(counting.weights) is np.ndarray:
        axes = shared(axis, len(values.shape)).statistic
        left = functools.partial(_left, counting.where, values, omit=counting.omit)
        counting = counting._replace(weights=_in_range(counting.weights, left, values.shape, axes))
    weighting = Weighting(*counting, *fills(fill))
    if counting.where is None and counting.weights is None and not counting.omit:
        return x
    return WeightedInput(x, weighting)


def checked_counting(
    shared: Callable[[Any, int], Shared],
    x: Any,
    axis: Any,
    where: Any,
    weights: Any,
    nan_policy: Any,
    fill: Any = None,
) -> tuple[Any, Counting]:
    """Return x in a float dtype, and the keywords as checked arrays.

    The numbers of an array on a device are not read: its weights are checked by the kernels.
    """
    policy = check_choice("nan_policy", nan_policy, POLICIES)
    on_device = type(x) is not np.ndarray and is_on_device(x)
    if on_device and policy == "raise":
        raise NotImplementedError("nan_policy='raise' is not supported on a device: check x first")
    backend: Any
    backend, x = backend_for(x, "x")
    if where is not None and on_device and is_on_device(where):
        keep = backend.as_mask_of("where", where, x)
        check_broadcasts("where", tuple(keep.shape), x.shape)
    else:
        keep = _where(where, x.shape)
    if policy == "raise":
        _check_no_nan(x, keep)
    if weights is None:
        return x, Counting(keep, None, policy == "omit")
    own = shared(axis, len(x.shape)).own
    if on_device and is_on_device(weights):
        weights = backend.as_weights_of("weights", weights, x, _of_own(weights, x.shape, own))
        check_broadcasts("weights", tuple(weights.shape), x.shape)
        return x, Counting(keep, weights, policy == "omit")
    weights = _weights(weights, x.shape, own)
    if on_device and (policy == "omit" or not (keep is None or isinstance(keep, np.ndarray))):
        return x, Counting(keep, weights, policy == "omit")  # what counts is known there alone
    weights = _checked_weights(weights, functools.partial(_left, keep, x, omit=policy == "omit"))
    return x, Counting(keep, weights, policy == "omit")


def keyword_given(where: Any, weights: Any, nan_policy: Any, fill: Any) -> str | None:
    """Return the first keyword that is not its default, for a message; None if there is none."""
    if where is not None:
        return "where"
    if weights is not None:
        return "weights"
    if nan_policy != "propagate":
        return "nan_policy"
    return None if fill is None else "fill"


def counted(x: Any) -> WeightedInput:
    """Return x so that its moments have a count for each channel."""
    return x if isinstance(x, WeightedInput) else WeightedInput(x, KEEP_ALL)


def _where(value: Any, shape: Shape) -> Any:
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
    check_broadcasts("where", keep.shape, shape)
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


def _check_no_nan(x: Any, keep: Any) -> None:
    """Raise if a value that counts is NaN."""
    missing = np.isnan(x)
    if np.any(missing if keep is None else missing & keep):
        raise ValueError("x must not contain NaN, as nan_policy is 'raise'")


def _weights(value: Any, shape: Shape, own: Axes) -> Any:
    """Return weights in float64 that broadcast against x, which has this shape."""
    array = as_plain_array("weights", value)
    check_float("weights", array.dtype)
    weights = array.astype(np.float64, copy=False)
    weights = weights.reshape(_of_own(weights, shape, own))
    check_broadcasts("weights", weights.shape, shape)
    return weights


def _of_own(weights: Any, shape: Shape, own: Axes) -> Shape:
    """Return the shape of weights as they broadcast against x, which has this shape."""
    given = tuple(weights.shape)
    along = _along_own(given, shape, own)
    return given if along is None else along


def _along_own(given: Shape, shape: Shape, own: Axes) -> Shape | None:
    """Return the shape as which weights along their own axes broadcast; None for other weights."""
    if given != tuple(shape[axis] for axis in own):
        return None
    return tuple(n if axis in own else 1 for axis, n in enumerate(shape))


def _usual_weights(
    weights: Any, shape: Shape, shared: Callable[[Any, int], Shared], axis: Any
) -> Any:
    """Return weights as they broadcast against x if they are in range as they are, else None."""
    if not (type(weights) is _NDARRAY and weights.size and weights.flags.carray):
        return None
    dtype = weights.dtype
    if dtype is not _FLOAT64 and not (dtype is _FLOAT32 and shared in (of_channels, of_moments)):
        return None
    if weights.shape != shape:
        try:
            own = _usual_shape(weights.shape, shape, shared, axis)
        except (TypeError, ValueError):
            return None  # the checks raise the right error
        if own is None:
            return None
        weights = weights.reshape(own)
    in_range = backend_of(_NDARRAY).weights_in_range(weights, _LEAST, _LARGEST)
    return weights if in_range else None


@functools.lru_cache(maxsize=1024)
def _usual_shape(
    given: Shape, shape: Shape, shared: Callable[[Any, int], Shared], axis: Any
) -> Shape | None:
    """Return `_along_own` for the weights of a norm that is called by these axes."""
    return _along_own(given, shape, shared(axis, len(shape)).own)


def _left(keep: Any, x: Any, *, omit: bool) -> Any:
    """Return a mask of the elements that are not left out, as far as the host knows them."""
    left = keep if isinstance(keep, np.ndarray) else True
    return left & ~np.isnan(x) if omit and isinstance(x, np.ndarray) else left


def _checked_weights(weights: Any, left: Callable[[], Any]) -> Any:
    """Return weights with 0 for what is left out, if a number there is no weight."""
    # A NaN is no least weight that is at least 0.
    if weights.size and not (weights.min() >= 0.0 and weights.max() < np.inf):
        wrong = ~((weights >= 0.0) & (weights < np.inf))
        if np.any(wrong & left()):
            got = weights[wrong].flat[0]
            raise ValueError(f"weights must be finite and at least 0 where they count, got {got:g}")
        weights = np.where(wrong, 0.0, weights)
    return weights


def _in_range(weights: Any, left: Callable[[], Any], shape: Shape, axes: Axes | None) -> Any:
    """Return weights whose products with squares, and the sums of these, are in range.

    The weights of what shares statistics are multiplied by one power of two, if the largest of them
    is below 2**-32 or beyond 2**64. No result depends on that: below, their sum W is less than any
    `ddof` but 0, and beyond, W - `ddof` is W. The sums of `batch_moments` and the length of
    `weight_norm` do depend on it, and their weights stay.
    """
    if axes is None or not weights.size:
        return weights
    if weights.min() >= _LEAST and weights.max() <= _LARGEST:  # the commonest
        return weights
    least = np.min(weights, where=weights > 0.0, initial=1.0)
    if least >= _LEAST and np.max(weights) <= _LARGEST:
        return weights
    weights = np.where(left(), np.broadcast_to(weights, shape), 0.0)
    exponents = np.frexp(np.max(weights, axis=axes, initial=0.0, keepdims=True))[1]
    with np.errstate(under="ignore"):
        return np.ldexp(weights, np.clip(exponents, -32, 64) - exponents)


def check_broadcasts(what: str, shape: Shape, own: Shape) -> None:
    """Raise unless an array of a shape broadcasts against x, whose shape is `own`."""
    fits = len(shape) <= len(own) and all(
        n in (1, most) for n, most in zip(shape[::-1], own[::-1], strict=False)
    )
    if not fits:
        raise ValueError(f"{what} must broadcast against x of shape {own}, got {shape}")


def fills(fill: Any) -> tuple[float, float]:
    """Return the results where `where` is false and where NaN is omitted."""
    if fill is None:
        return _FILLS
    if isinstance(fill, bool) or not isinstance(fill, numbers.Real):
        raise TypeError(f"fill must be a number or None, got {brief(fill)}")
    try:
        return float(fill), float(fill)
    except OverflowError:
        raise ValueError("fill must be in the range of float64, got an int beyond it") from None
