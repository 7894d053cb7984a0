"""Gamma and beta that broadcast against x: they are applied outside the kernels, by NumPy."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import Shape, check_float, check_shape
from numnorm.array_likes import as_plain_array, check_out
from numnorm.backends.contract.gains import (
    Parameter,
    check_any,
    parameters_of_channels,
    parameters_of_rows,
)
from numnorm.backends.contract.norms import Detached, Norm, Scaling
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.memory.host_arrays import (
    Array,
    as_float_array,
    as_statistic,
    gradient_dtype,
    rounded,
)
from numnorm.backends.cpu.simd.element_type import element_type_of
from numnorm.backends.cpu.statistics.saved import MOST_LOST
from numnorm.layouts import (
    ColumnLayout,
    RowLayout,
    StatisticAxes,
    axes_of_channels,
    axes_of_rows,
)


class View(NamedTuple):
    """How a kernel sees an array of shape `shape`: as ``(-1, channels, segment)``.

    `order` is the order of the array's axes in the kernel; None if no axis moves.
    """

    shape: Shape
    order: tuple[int, ...] | None
    channels: int
    segment: int

    def spread(self, values: Array) -> Array:
        """Return values that broadcast against the kernel's array so that they do against x."""
        order = self.order or tuple(range(len(self.shape)))
        count, each = math.prod(self.shape), self.channels * self.segment
        if not count:
            return np.empty(self.shape, values.dtype)
        full = np.broadcast_to(values, (count // each, self.channels, self.segment))
        moved = full.reshape([self.shape[axis] for axis in order])
        return moved.transpose(np.argsort(order))

    def parameter(self, parameter: Parameter, dtype: np.dtype[Any]) -> Array | None:
        """Return a copy of a parameter that broadcasts against x; None for None."""
        array = parameter.array
        if array is None:
            return None
        check_float(parameter.name, array.dtype)
        with np.errstate(all="ignore"):  # a float64 beyond float32 becomes infinite
            converted = np.array(array, dtype)
        if parameter.is_broadcast(self.shape):
            return converted
        parameter.check_usual(self.shape)
        size = array.size // max(self.channels, 1)
        return self.spread(converted.reshape(self.channels, size))


def scale_and_shift(y: Array, gamma: Array | None, beta: Array | None) -> None:
    """Replace y by ``y * gamma + beta``."""
    with np.errstate(all="ignore"):
        if gamma is not None:
            np.multiply(y, gamma, out=y)
        if beta is not None:
            np.add(y, beta, out=y)


def scaled(dy: Array, gamma: Array, dtype: np.dtype[Any]) -> Array:
    """Return a new array ``dy * gamma``, rounded to a dtype."""
    result = np.empty(dy.shape, dtype)
    with np.errstate(all="ignore"):
        return np.multiply(dy, gamma, out=result, casting="unsafe")


def _arranged(array: Array, axes: StatisticAxes) -> Array:
    """Return a view of an array that broadcasts against x, with an axis for each size."""
    moved = array.transpose(axes.order)
    sizes: list[int] = []
    for n, parts in zip(moved.shape, axes.sizes, strict=True):
        sizes += parts if n == math.prod(parts) else (1,) * len(parts)
    return moved.reshape(sizes)


def _of_statistic(values: Array, axes: StatisticAxes) -> Array:
    """Return statistics so that they broadcast against arranged arrays."""
    sizes = sum(axes.sizes, ())
    return values.reshape([1 if s else n for n, s in zip(sizes, axes.shared, strict=True)])


def _in_shape(array: Array, shape: Shape, axes: StatisticAxes) -> Array:
    """Return an arranged array in the shape that it had."""
    moved = array.reshape([shape[axis] for axis in axes.order])
    return moved.transpose(np.argsort(axes.order))


def parameter_gradients(
    dy: Array,
    x: Array,
    keep: Array | None,
    statistics: tuple[Array | None, Array],
    gamma: Array,
    dtype: np.dtype[Any],
    axes: StatisticAxes,
) -> tuple[Array, Array]:
    """Return the sums of dy * xhat and of dy over the axes in which gamma has size 1.

    What `keep` leaves out, an array of the shape of x, has no part in them. `statistics` are the
    mean (None if the norm is not centred) and rstd in float64. The sums are taken in blocks that
    follow from the shape of x.
    """
    if not x.size:
        return np.zeros(gamma.shape, dtype), np.zeros(gamma.shape, dtype)
    arrays = _arranged(dy, axes), _arranged(x, axes)
    keep = None if keep is None else _arranged(keep, axes)
    mean, rstd = (None if a is None else _of_statistic(a, axes) for a in statistics)
    assert rstd is not None
    shape = _arranged(gamma, axes).shape
    # The sum of -0.0 and a number is that number, whatever its sign.
    dgamma, dbeta = np.full((2, *shape), -0.0)
    with np.errstate(all="ignore"):
        centre = () if mean is None else (mean, _lost(arrays[1], keep, mean))
        for block in _blocks(arrays[1].shape):
            grad, xhat = (array[block].astype(np.float64) for array in arrays)
            for offset in centre:
                xhat -= offset[_own(block, offset.shape)]
            xhat *= rstd[_own(block, rstd.shape)]
            xhat *= grad
            if keep is not None:
                xhat[~keep[block]] = grad[~keep[block]] = 0.0
            for total, terms in ((dgamma, xhat), (dbeta, grad)):
                _add_to(total, terms, block)
        dgamma, dbeta = (_in_shape(a, gamma.shape, axes).astype(dtype) for a in (dgamma, dbeta))
        return dgamma, dbeta


def _lost(x: Array, keep: Array | None, mean: Array) -> Array:
    """Return what rounding the saved mean lost; 0 for a mean that the caller changed."""
    total, count = np.zeros((2, *mean.shape))
    for block in _blocks(x.shape):
        distance = x[block] - mean[_own(block, mean.shape)]
        kept = np.ones_like(distance) if keep is None else keep[block].astype(np.float64)
        distance[kept == 0.0] = 0.0
        _add_to(total, distance, block)
        _add_to(count, kept, block)
    lost = total / count
    return np.where(np.abs(lost) <= MOST_LOST * np.abs(mean), lost, 0.0)


def _blocks(shape: Shape) -> Iterator[tuple[slice, ...]]:
    """Yield parts of an array in the order of its elements."""
    rest, axis = math.prod(shape), -1
    while rest > tuning.BROADCAST_BLOCK_ELEMENTS or axis < 0:
        axis += 1
        rest //= shape[axis]
    step = max(1, tuning.BROADCAST_BLOCK_ELEMENTS // rest)
    for index in np.ndindex(shape[:axis]):
        for start in range(0, shape[axis], step):
            yield *(slice(i, i + 1) for i in index), slice(start, start + step)


def _own(block: tuple[slice, ...], shape: Shape) -> tuple[slice, ...]:
    """Return where a block lies in an array that broadcasts, of a given shape."""
    return tuple(slice(None) if n == 1 else part for part, n in zip(block, shape, strict=False))


def _add_to(total: Array, terms: Array, block: tuple[slice, ...]) -> None:
    """Add the terms of a block over the axes in which the total has size 1."""
    axes = tuple(axis for axis, n in enumerate(total.shape) if n == 1)
    total[_own(block, total.shape)] += terms.sum(axes, keepdims=True)


# Norms of rows


def forward_of_rows(
    row_forward: Any,
    error: ValueError,
    norm: Norm,
    x: Array,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: Scaling,
    out: Any,
    save: bool,
) -> tuple[Array, Array | None, Array | None]:
    """Return what `row_forward` returns; raise its error if no parameter broadcasts."""
    parameters = parameters_of_rows(norm, gamma, beta, layout, as_plain_array)
    check_any(parameters, x.shape, error)
    element_type = element_type_of(x.dtype)
    compute_dtype = element_type.compute_dtype
    view = View(x.shape, layout.order, layout.channels, layout.segment)
    arrays = [view.parameter(parameter, compute_dtype) for parameter in parameters]
    if out is not None:
        check_out(out, x, norm.names.x)
    wide = x.astype(compute_dtype, copy=False)
    y, mean, rstd = row_forward(norm, wide, None, None, layout, scaling, None, save)
    scale_and_shift(y, *arrays)
    y = rounded(y, x.dtype, out)
    if not save:
        return y, None, None
    with np.errstate(all="ignore"):
        return y, mean.astype(element_type.saved), rstd.astype(element_type.saved)


def backward_of_rows(
    row_backward: Any,
    error: ValueError,
    norm: Norm,
    dy: Any,
    x: Array,
    mean: Any,
    rstd: Any,
    gamma: Any,
    layout: RowLayout,
    scaling: Scaling,
    detached: Detached,
    out: Any,
    *,
    keep: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Return what `row_backward` returns; raise its error if gamma does not broadcast.

    `keep` is a mask of the shape of x, False where an element is left out.
    """
    parameters = parameters_of_rows(norm, gamma, None, layout, as_plain_array)
    check_any(parameters, x.shape, error)
    dtype = gradient_dtype(norm.names.gamma, gamma, x.dtype)
    compute_dtype = element_type_of(x.dtype).compute_dtype
    dy = as_float_array(norm.names.dy, dy)
    check_shape(norm.names.dy, dy.shape, x.shape, f"the shape of {norm.names.x}")
    if out is not None:
        check_out(out, x, norm.names.x)
    rows = View(x.shape, layout.order, 1, layout.width)
    weight = rows.parameter(parameters[0], compute_dtype)
    assert weight is not None
    shape, meaning = layout.statistic_shape, "one for each row"
    statistics = (
        None if mean is None else as_statistic("mean", mean, shape, meaning),
        as_statistic(norm.names.rstd, rstd, shape, meaning),
    )
    axes = axes_of_rows(x.shape, layout.order, layout.rows)
    gradients = parameter_gradients(dy, x, keep, statistics, weight, dtype, axes)
    grad = scaled(dy, weight, compute_dtype)
    wide = x.astype(compute_dtype, copy=False)
    dx = row_backward(norm, grad, wide, mean, rstd, None, None, layout, scaling, detached, grad)[0]
    return rounded(dx, x.dtype, out), *gradients


# Batch norm


def forward_of_channels(
    column_forward: Any,
    error: ValueError,
    x: Array,
    mean: Array,
    m2: Array,
    divisor: float,
    eps: float,
    gamma: Any,
    beta: Any,
    layout: ColumnLayout,
    out: Any,
) -> tuple[Array, Array]:
    """Return what `column_forward` returns; raise its error if no parameter broadcasts."""
    parameters = parameters_of_channels(gamma, beta, layout, as_plain_array)
    check_any(parameters, x.shape, error)
    compute_dtype = element_type_of(x.dtype).compute_dtype
    view = View(x.shape, None, layout.channels, layout.inner)
    arrays = [view.parameter(parameter, compute_dtype) for parameter in parameters]
    if out is not None:
        check_out(out, x, "x")
    wide = x.astype(compute_dtype, copy=False)
    y, rstd = column_forward(wide, mean, m2, divisor, eps, None, None, layout, None)
    scale_and_shift(y, *arrays)
    return rounded(y, x.dtype, out), rstd


def backward_of_channels(
    column_backward: Any,
    error: ValueError,
    dy: Any,
    x: Array,
    mean: Array,
    rstd: Array,
    gamma: Any,
    layout: ColumnLayout,
    detached: Detached,
    out: Any,
    *,
    keep: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Return what `column_backward` returns; raise its error if gamma does not broadcast.

    `keep` is a mask of the shape of x, False where an element is left out.
    """
    parameters = parameters_of_channels(gamma, None, layout, as_plain_array)
    check_any(parameters, x.shape, error)
    dtype = gradient_dtype("gamma", gamma, x.dtype)
    compute_dtype = element_type_of(x.dtype).compute_dtype
    if out is not None:
        check_out(out, x, "x")
    view = View(x.shape, None, layout.channels, layout.inner)
    weight = view.parameter(parameters[0], compute_dtype)
    assert weight is not None
    dy = as_float_array("dy", dy)
    axes = axes_of_channels(x.shape, layout.outer, layout.channels)
    gradients = parameter_gradients(dy, x, keep, (mean, rstd), weight, dtype, axes)
    grad = scaled(dy, weight, compute_dtype)
    wide = x.astype(compute_dtype, copy=False)
    dx = column_backward(grad, wide, mean, rstd, None, layout, detached, grad)[0]
    return rounded(dx, x.dtype, out), *gradients
