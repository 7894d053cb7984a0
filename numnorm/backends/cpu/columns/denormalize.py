"""The way back from normalized arrays: float64 arithmetic on elements, with any broadcasting.

An array is seen as rows of adjacent elements. Along a row the gain and bias, and the mean and the
deviation, are each one number or one for each element.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import Shape
from numnorm.array_likes import check_out
from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.compiler.parallel import is_small, row_parts, run
from numnorm.backends.cpu.memory.host_arrays import Array, as_kernel_array, output_like, result
from numnorm.backends.cpu.memory.kernel_arrays import as_flat, window
from numnorm.backends.cpu.memory.placement import empty_like
from numnorm.backends.cpu.simd.access import VectorAccess, full_access, tail_access
from numnorm.backends.cpu.simd.element_type import ElementType, element_type_of, in_float64
from numnorm.backends.cpu.simd.functions import reciprocal, unless_zero
from numnorm.backends.cpu.simd.vector import multiply_add

# The most elements of a piece of a row. The parts of the work are cut between pieces.
_PIECE = 4096
# Rows of fewer elements are joined, where the same numbers repeat from row to row.
_JOINED = 256
_FLOAT64 = np.dtype(np.float64)


@inlined
def _same(factor):
    """Return a factor that is a number already."""
    return factor


@inlined
def _deviations(rstd):
    """Return the reciprocals of a vector, 0 for 0."""
    return unless_zero(reciprocal(rstd), rstd)


@inlined
def _deviation(rstd):
    """Return the reciprocal of a number, 0 for 0."""
    return 0.0 if rstd == 0.0 else 1.0 / rstd


def _make_put(
    element_type: ElementType, access: VectorAccess, deviation: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a compiled ``put(y, j, active, coefficients, x)`` for a vector from index j on.

    The coefficients are beta, the reciprocal of gamma, what `deviation` takes, and the mean.
    """
    to_compute, to_storage = element_type.to_compute, element_type.to_storage
    read, write = access.read, access.write

    @inlined
    def put(y, j, active, coefficients, x):
        beta, gain, factor, mean = coefficients
        xhat = (to_compute(read(y, j, active)) - beta) * gain
        write(x, j, to_storage(multiply_add(xhat, deviation(factor), mean)), active)

    return put


def _make_store_piece(
    element_type: ElementType, deviation: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a compiled ``store_piece(y, begin, size, coefficients, offset, x)``.

    It takes `size` elements of flat arrays from the index `begin` on; the coefficients of the first
    one have the index `offset`, if they are arrays.
    """
    count = element_type.lanes
    full, some = full_access(count), tail_access(count)
    load_full, put_full = full.coefficient, _make_put(element_type, full, deviation)
    load_some, put_some = some.coefficient, _make_put(element_type, some, deviation)

    @inlined
    def store_piece(y, begin, size, coefficients, offset, x):
        stop = size - size % count
        for j in range(0, stop, count):
            given = load_full(coefficients, offset + j, count, 1.0)
            put_full(y, begin + j, count, given, x)
        if stop < size:
            lanes = size - stop
            given = load_some(coefficients, offset + stop, lanes, 1.0)
            put_some(y, begin + stop, lanes, given, x)

    return store_piece


@functools.cache
def make_denormalize(element_type: ElementType) -> Kernel:
    """Return a kernel of ``y``, four flat arrays of float64, ``x``, ``steps`` and ``parts``.

    The shape of y is ``(outer, middle, inner)``. The four are beta, the reciprocal of gamma, rstd
    and the mean. In ``steps`` are, for the first two and for the last two, by how much their index
    grows along the first and along the second axis, and whether it grows along a row; then, how
    many pieces a row has.
    """
    in_double = in_float64(element_type)
    store = _make_store_piece(in_double, _same)
    store_along = _make_store_piece(in_double, _deviations)

    def kernel(y, beta, gain, rstd, mean, x, steps, parts, first, last):
        outer, middle, inner = y.shape
        y_flat, x_flat, pieces = as_flat(y), as_flat(x), steps[6]
        total = outer * middle * pieces
        start, stop = first * total // parts, last * total // parts
        piece, row = start % pieces, start // pieces
        i, j = row // middle, row % middle
        for _ in range(start, stop):
            offset = piece * _PIECE
            size = min(inner - offset, _PIECE)
            at = (i * middle + j) * inner + offset
            p, s = i * steps[0] + j * steps[1], i * steps[3] + j * steps[4]
            if steps[5] == 0:
                factor = _deviation(rstd[s])
                if steps[2] == 0:
                    store(y_flat, at, size, (beta[p], None, gain[p] * factor, mean[s]), 0, x_flat)
                else:
                    b, g = window(beta, p, inner), window(gain, p, inner)
                    store(y_flat, at, size, (b, g, factor, mean[s]), offset, x_flat)
            else:
                r, m = window(rstd, s, inner), window(mean, s, inner)
                if steps[2] == 0:
                    store_along(y_flat, at, size, (beta[p], gain[p], r, m), offset, x_flat)
                else:
                    b, g = window(beta, p, inner), window(gain, p, inner)
                    store_along(y_flat, at, size, (b, g, r, m), offset, x_flat)
            piece += 1
            if piece == pieces:
                piece, j = 0, j + 1
                if j == middle:
                    i, j = i + 1, 0

    return make_kernel(f"denormalize.{element_type.name}", kernel)


class _Group(NamedTuple):
    """How arrays with as many axes as y become coefficients of rows.

    Attributes
    ----------
    shape : tuple of int
        Their shape, in which neighbouring axes may be one, and an axis may be two.
    wanted : tuple of int
        The shape to which they are broadcast.
    """

    shape: Shape
    wanted: Shape

    def coefficients(self, array: Array | None, default: float) -> Array:
        """Return flat coefficients of float64; `default` in the place of None."""
        if array is None:
            size = math.prod(self.wanted)
            return _numbers(default) if size == 1 else np.full(size, default)
        if self.wanted != self.shape:
            array = np.broadcast_to(array.reshape(self.shape), self.wanted)
        elif array.dtype is _FLOAT64 and array.flags.carray:
            return array.reshape(-1)
        return np.array(array, np.float64, order="C").reshape(-1)  # never a read-only one


@functools.cache
def _numbers(value: float) -> Array:
    """Return an array of one number, which kernels only read."""
    return np.full(1, value)


class _Plan(NamedTuple):
    """What follows from the dtype of y and from shapes."""

    kernel: Kernel
    element_type: ElementType
    shape: Shape
    parameters: _Group
    statistics: _Group
    steps: Array
    parts: int
    small: bool


def denormalized(y: Array, beta: Any, gain: Any, rstd: Any, mean: Any, out: Any) -> Array:
    """Return ``(y - beta) * gain / rstd + mean``, and the mean where rstd is 0.

    The arrays between y and out have as many axes as y, to broadcast against it; all but rstd may
    be None.
    """
    if not y.size:
        if out is not None:
            check_out(out, y, "y")
        return np.empty_like(y) if out is None else out
    plan = _plan(y.dtype, y.shape, _common(beta, gain), _common(rstd, mean))
    beta, gain = _alike(beta, gain)
    rstd, mean = _alike(rstd, mean)
    coefficients = (
        plan.parameters.coefficients(beta, 0.0),
        plan.parameters.coefficients(gain, 1.0),
        plan.statistics.coefficients(rstd, 1.0),
        plan.statistics.coefficients(mean, 0.0),
    )
    source = as_kernel_array(y, plan.element_type, None, plan.shape)
    if out is not None:
        target = output_like(source, y, "y", out, plan.element_type, None, coefficients)
    else:
        target = np.empty_like(source) if plan.small else empty_like(source)
    given = (source, *coefficients, target, plan.steps, plan.parts)
    if plan.small:
        plan.kernel.serial(*given, 0, plan.parts)
    else:
        run(plan.kernel, given, 2 * source.nbytes, plan.parts)
    return result(target, y, out, None)


def _common(one: Array | None, other: Array | None) -> Shape | None:
    """Return the shape to which two arrays broadcast; None if both are None."""
    if one is None or other is None or one.shape == other.shape:
        given = other if one is None else one
        return None if given is None else given.shape
    return np.broadcast_shapes(one.shape, other.shape)


def _alike(one: Array | None, other: Array | None) -> tuple[Array | None, Array | None]:
    """Return two arrays in the shape to which they broadcast."""
    if one is None or other is None or one.shape == other.shape:
        return one, other
    shape = np.broadcast_shapes(one.shape, other.shape)
    return np.broadcast_to(one, shape), np.broadcast_to(other, shape)


class _Axis(NamedTuple):
    """Neighbouring axes of y as one.

    Attributes
    ----------
    size : int
    own : tuple of bool
        Whether the arrays of each group have it; otherwise their length is 1.
    differ : tuple of bool
        Whether their coefficients get it.
    """

    size: int
    own: tuple[bool, ...]
    differ: tuple[bool, ...]


@functools.lru_cache(maxsize=1024)
def _plan(dtype: Any, shape: Shape, parameters: Shape | None, statistics: Shape | None) -> _Plan:
    """Return the plan, given the shapes of the coefficients of both groups."""
    groups = [(1,) * len(shape) if each is None else each for each in (parameters, statistics)]
    axes = _axes_of(shape, groups)
    final = [_Axis(1, (False, False), (False, False))] * 3
    for axis in axes:
        if axis.differ == final[-1].differ:
            axis = axis._replace(size=axis.size * final.pop().size)
        final.append(axis)
    outer, middle, inner = final[-3:]
    steps = []
    for g in range(2):
        along = inner.size if inner.differ[g] else 1
        over = along * (middle.size if middle.differ[g] else 1)
        steps += [outer.differ[g] * over, middle.differ[g] * along, inner.differ[g]]
    pieces = -(-inner.size // _PIECE)
    element_type, elements = element_type_of(dtype), math.prod(shape)
    of_parameters, of_statistics = (
        _Group(
            tuple(axis.size if axis.own[g] else 1 for axis in axes),
            tuple(axis.size if axis.differ[g] else 1 for axis in axes),
        )
        for g in range(2)
    )
    return _Plan(
        make_denormalize(element_type),
        element_type,
        (outer.size, middle.size, inner.size),
        of_parameters,
        of_statistics,
        np.array([*steps, pieces], np.int64),
        row_parts(outer.size * middle.size * pieces, elements),
        is_small(elements),
    )


def _axes_of(shape: Shape, groups: list[Shape]) -> list[_Axis]:
    """Return the axes of y, of which neighbours become three axes or fewer by `differ`."""
    axes: list[_Axis] = []
    for n, *lengths in zip(shape, *groups, strict=True):
        own = tuple(length > 1 for length in lengths)
        if axes and axes[-1].own == own:
            axes[-1] = axes[-1]._replace(size=axes[-1].size * n)
        elif n > 1:
            axes.append(_Axis(n, own, own))
    first = len(axes) - 2
    if first > 1:
        differ = tuple(any(axis.own[g] for axis in axes[:first]) for g in range(2))
        axes[:first] = (axis._replace(differ=differ) for axis in axes[:first])
    if len(axes) > 1 and not any(axes[-2].own):
        alike, last = axes[-2], axes[-1]
        joined = [k for k in range(2, _JOINED // last.size + 1) if alike.size % k == 0]
        if joined:
            rows = alike._replace(size=alike.size // joined[-1])
            axes[-2:] = rows, _Axis(joined[-1], alike.own, last.differ), last
    return axes
