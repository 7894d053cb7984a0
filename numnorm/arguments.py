"""Checks of arguments and their messages, and every array seen as rows or as columns.

Nothing here reads the elements of an array: shapes, dtypes and numbers only, so that every
backend uses the same checks.
"""

import contextlib
import dataclasses
import functools
import math
import numbers
import operator
import sys
from typing import Any

import numpy as np

Shape = tuple[int, ...]
Axis = int | tuple[int, ...]

FLOATS = ("float16", "bfloat16", "float32", "float64")


@dataclasses.dataclass(frozen=True, eq=False)
class RowLayout:
    """An array seen as rows that each have statistics of their own.

    Two layouts are equal only if they are one object, which makes them fast keys.

    Attributes
    ----------
    order : tuple of int or None
        The permutation of the axes that makes each row contiguous; None if they lie so already.
    rows, width : int
        The array is ``(rows, width)`` after that.
    run, channels : int
        A row consists of runs of `run` elements; the runs of all rows belong to channels
        0, 1, ..., channels - 1, 0, 1, ... in turn.
    shared : bool
        Whether a run shares one parameter; else each of its elements has its own.
    statistic_shape : tuple of int
        The shape of the saved mean and rstd.
    parameter_shape : tuple of int
        The shape of gamma and beta.
    parameter_meaning : str
        What that shape is, for messages.
    """

    order: tuple[int, ...] | None
    rows: int
    width: int
    run: int
    channels: int
    shared: bool
    statistic_shape: Shape
    parameter_shape: Shape
    parameter_meaning: str

    @functools.cached_property
    def kernel_shape(self) -> Shape:
        """The shape of the parameters in a kernel."""
        return (self.channels,) if self.shared else (self.channels, self.run)


@dataclasses.dataclass(frozen=True, eq=False)
class ColumnLayout:
    """An array ``(outer, channels, inner)`` whose channels each have statistics of their own.

    Two layouts are equal only if they are one object, which makes them fast keys.
    """

    outer: int
    channels: int
    inner: int

    @functools.cached_property
    def kernel_shape(self) -> Shape:
        """The shape of the array in a kernel: the last axis is left out if it has one element."""
        shape = (self.outer, self.channels, self.inner)
        return shape[:2] if self.inner == 1 else shape

    @functools.cached_property
    def per_channel(self) -> int:
        """The number of values in a channel."""
        return self.outer * self.inner

    @functools.cached_property
    def block(self) -> int:
        """The number of outer entries whose sums are taken together.

        It does not depend on how many there are, so that a stream of chunks can be cut into the
        same blocks as the whole.
        """
        if self.inner == 1:
            return max(32, min(1024, 131072 // max(self.channels, 1)))
        return max(1, min(256, 16384 // max(self.channels * self.inner, 1)))

    @functools.cached_property
    def blocks(self) -> int:
        """The number of blocks, the last of which may be shorter."""
        return -(-self.outer // self.block)


def _normalized_axis(axis: Any, ndim: int, name: str) -> int:
    try:
        index = operator.index(axis)
    except TypeError:
        raise TypeError(f"{name} must be an int, got {brief(axis)}") from None
    if not -ndim <= index < ndim:
        raise ValueError(
            f"{name} must be between {-ndim} and {ndim - 1} for an array of "
            f"{_axes(ndim)}, got {index}"
        )
    return index % ndim


def _axes(count: int) -> str:
    return "1 axis" if count == 1 else f"{count} axes"


def _normalized_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    given = axis if isinstance(axis, tuple) else (axis,)
    if not given:
        raise ValueError("axis must name at least 1 axis, got ()")
    axes = tuple(sorted(_normalized_axis(a, ndim, "axis") for a in given))
    if len(set(axes)) != len(axes):
        raise ValueError(f"axis must not name an axis twice, got {given}")
    return axes


def _order(kept: tuple[int, ...], joined: tuple[int, ...]) -> tuple[int, ...] | None:
    order = kept + joined
    return None if order == tuple(range(len(order))) else order


def _take(shape: Shape, axes: tuple[int, ...]) -> Shape:
    return tuple(shape[a] for a in axes)


def _rest(axes: tuple[int, ...], ndim: int) -> tuple[int, ...]:
    return tuple(a for a in range(ndim) if a not in axes)


def row_layout(shape: Shape, axis: Any, name: str = "x") -> RowLayout:
    """Return the rows over `axis`, with parameters for each of a row's elements."""
    try:
        # What is remembered is plain: (0.0,) is no (0,), and another object may change its index.
        if type(axis) is tuple:
            axis = tuple(map(operator.index, axis))
        elif type(axis) is not int:
            axis = operator.index(axis)
        return _row_layout(shape, axis, name)
    except TypeError:  # an unhashable axis, or one of a wrong type: say which
        raise TypeError(f"axis must be an int or a tuple of ints, got {brief(axis)}") from None


@functools.lru_cache(maxsize=1024, typed=True)
def _row_layout(shape: Shape, axis: Any, name: str) -> RowLayout:
    _check_ndim(name, shape, 1)
    axes = _normalized_axes(axis, len(shape))
    kept = _rest(axes, len(shape))
    width, rows = math.prod(_take(shape, axes)), math.prod(_take(shape, kept))
    return RowLayout(
        order=_order(kept, axes),
        rows=rows,
        width=width,
        run=width,
        channels=1,
        shared=False,
        statistic_shape=_take(shape, kept),
        parameter_shape=_take(shape, axes),
        parameter_meaning="the normalized axes of x",
    )


def vector_layout(shape: Shape, axis: Any) -> RowLayout:
    """Return the weight vectors over `axis`, with one parameter for each vector."""
    return _vectors(row_layout(shape, axis, "v"))


@functools.lru_cache(maxsize=1024)
def _vectors(layout: RowLayout) -> RowLayout:
    return dataclasses.replace(
        layout,
        channels=layout.rows,
        shared=True,
        parameter_shape=layout.statistic_shape,
        parameter_meaning="the axes of v that are not normalized",
    )


def group_layout(shape: Shape, channel_axis: Any, groups: Any) -> RowLayout:
    """Return a row for each sample and group of channels, with parameters for each channel."""
    channel = _channel_beside_samples(shape, channel_axis)
    count = check_integer("groups", groups, 1)
    if shape[channel] % count:
        raise ValueError(f"groups must divide the {shape[channel]} channels of x, got {count}")
    return _group_layout(shape, channel, count)


def instance_layout(shape: Shape, channel_axis: Any) -> RowLayout:
    """Return a row for each sample and channel: groups of one channel."""
    channel = _channel_beside_samples(shape, channel_axis)
    return _group_layout(shape, channel, shape[channel])


def _channel_beside_samples(shape: Shape, channel_axis: Any) -> int:
    channel = _channel_of(shape, channel_axis, at_least=2)
    if channel == 0:
        raise ValueError("channel_axis must not be 0, the axis of the samples")
    return channel


@functools.lru_cache(maxsize=1024)
def _group_layout(shape: Shape, channel: int, groups: int) -> RowLayout:
    spatial = _rest((0, channel), len(shape))
    inner = math.prod(_take(shape, spatial))
    channels = shape[channel]
    width = channels // max(groups, 1) * inner
    shared = inner != 1
    return RowLayout(
        order=_order((0, channel), spatial),
        rows=shape[0] * groups,
        width=width,
        run=inner if shared else width,
        channels=channels if shared else groups,
        shared=shared,
        statistic_shape=(shape[0], groups),
        parameter_shape=(channels,),
        parameter_meaning="the channels of x",
    )


def column_layout(shape: Shape, channel_axis: Any) -> ColumnLayout:
    """Return the channels over all other axes."""
    return _column_layout(shape, _channel_of(shape, channel_axis, at_least=1))


@functools.lru_cache(maxsize=1024)
def _column_layout(shape: Shape, channel: int) -> ColumnLayout:
    return ColumnLayout(math.prod(shape[:channel]), shape[channel], math.prod(shape[channel + 1 :]))


def _channel_of(shape: Shape, channel_axis: Any, at_least: int) -> int:
    _check_ndim("x", shape, at_least)
    return _normalized_axis(channel_axis, len(shape), "channel_axis")


def _check_ndim(name: str, shape: Shape, least: int) -> None:
    if len(shape) < least:
        got = "a scalar" if least == 1 else len(shape)
        raise ValueError(f"{name} must have at least {_axes(least)}, got {got}")


def result_dtype(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that an array is computed and returned in."""
    result = _result_dtype(dtype)
    if result is None:
        floats = ", ".join(FLOATS)
        got = _dtype_text(dtype)
        raise TypeError(f"{name} must have dtype {floats}, an integer or bool, got {got}")
    return result


def _dtype_text(dtype: np.dtype[Any]) -> str:
    return str(dtype) if len(str(dtype)) <= 60 else dtype.name  # a record's can be any length


@functools.lru_cache(maxsize=256)
def _result_dtype(dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    if dtype.name in FLOATS:
        return dtype.newbyteorder("=")
    return np.dtype(np.float64) if dtype.kind in "biu" else None


# DLPack's numbers for the memory of a CUDA device, and for memory that it shares with the host.
_CUDA_KINDS = (2, 13)


def is_masked(kind: type) -> bool:
    """Return whether arrays of a type have a mask, which they would lose."""
    # To ask numpy.ma would import it, which takes a third of the time of a process's first call.
    masked = sys.modules.get("numpy.ma")
    return masked is not None and issubclass(kind, masked.MaskedArray)


def is_surprising(value: Any) -> bool:
    """Return whether an object must not be turned into a NumPy array silently."""
    # A graph would be computed and a device array copied behind the caller's back.
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return is_masked(type(value)) or hasattr(value, "__dask_graph__") or is_on_device(value)


def is_on_device(value: Any) -> bool:
    """Return whether an object says that it lies in the memory of a CUDA device."""
    ask = getattr(value, "__dlpack_device__", None)
    if ask is not None and not isinstance(value, np.ndarray):
        # What cannot be handed over, such as an array on several devices, raises what it likes.
        with contextlib.suppress(Exception):
            kind = ask()[0]
            if getattr(kind, "value", kind) in _CUDA_KINDS:
                return True
    with contextlib.suppress(Exception):  # so may this
        return hasattr(value, "__cuda_array_interface__")
    return True


def check_on_host(name: str, value: Any) -> None:
    """Raise if an array is on a device, where others of the call are not."""
    if is_on_device(value):
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise TypeError(
            f"{name} must lie on the host, as other arrays do, got a {kind} on a device"
        )


def as_plain_array(name: str, value: Any) -> np.ndarray[Any, Any]:
    """Return a NumPy array, of any dtype but of no objects that are not arrays."""
    if is_masked(type(value)):
        raise TypeError(f"{name} must not be a masked array: fill or compress it first")
    try:
        array = np.asarray(None if is_surprising(value) else value)
    except (TypeError, ValueError, RuntimeError):
        array = np.asarray(None)
    if array.shape == () and array.dtype == object:
        check_on_host(name, value)
        raise TypeError(
            f"{name} must be an array or turn into one, got an object of type "
            f"{type(value).__name__}"
        )
    return array


def check_shape(name: str, shape: Shape, expected: Shape, meaning: str) -> None:
    """Raise unless an array has the expected shape."""
    if shape != expected:
        raise ValueError(f"{name} must have shape {expected}, {meaning}, got {shape}")


def check_float(name: str, dtype: np.dtype[Any]) -> None:
    """Raise unless an array is one of real numbers."""
    if dtype.kind == "f":
        result_dtype(name, dtype)
    elif _result_dtype(dtype) is None:
        raise TypeError(f"{name} must hold real numbers, got dtype {_dtype_text(dtype)}")


def check_dtype(dtype: Any, among: tuple[str, ...] = FLOATS) -> np.dtype[Any]:
    """Return a float dtype, in the native byte order."""
    found: Any = None
    got = brief(dtype)
    if dtype is not None:  # which is float64 for NumPy
        with contextlib.suppress(TypeError, ValueError):
            found = np.dtype(dtype)
            got = found.name
    if found is None or found.name not in among:
        raise TypeError(f"dtype must be {', '.join(among[:-1])} or {among[-1]}, got {got}")
    checked: np.dtype[Any] = found.newbyteorder("=")
    return checked


def check_number(
    name: str, value: Any, *, least: float = -math.inf, most: float = math.inf
) -> float:
    """Return a finite number between two bounds as a float."""
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name} must be a number, got {brief(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"{name} must be finite, got {number}")
    if not least <= number <= most:
        bounds = f"at least {least:g}" if most == math.inf else f"between {least:g} and {most:g}"
        raise ValueError(f"{name} must be {bounds}, got {number:g}")
    return number


def check_eps(eps: Any) -> float:
    """Return epsilon as a float."""
    if type(eps) is float and 0.0 <= eps < math.inf:
        return eps
    return check_number("eps", eps, least=0.0)


def check_integer(name: str, value: Any, least: int) -> int:
    """Return an integer that is not too small."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, got {brief(value)}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    """Return a value that is one of the choices."""
    comparable = value is None or isinstance(value, str)  # and an array would be compared in parts
    if not (comparable and value in choices):
        listed = ", ".join(repr(c) for c in choices[:-1]) + f" or {choices[-1]!r}"
        raise ValueError(f"{name} must be {listed}, got {brief(value)}")
    return value


def check_generator(rng: Any) -> None:
    """Raise unless random numbers can be drawn from it."""
    if not isinstance(rng, np.random.Generator):
        raise TypeError(f"rng must be a numpy.random.Generator, got {type(rng).__name__}")


def check_flag(name: str, value: Any) -> bool:
    """Return True or False."""
    if value is True or value is False:
        return value
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} must be True or False, got {brief(value)}")
    return bool(value)


def brief(value: Any) -> str:
    """Return a value for a message: a plain one itself, of anything else its type."""
    if value is None or isinstance(value, str | int | float | tuple):
        text = repr(value)
        if len(text) <= 60:
            return text
    return f"an object of type {type(value).__name__}"
