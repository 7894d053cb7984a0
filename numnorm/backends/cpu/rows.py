"""The norms whose statistics are shared by a row, on NumPy arrays."""

import functools
from typing import Any

import numpy as np

from numnorm.arguments import RowLayout
from numnorm.backends.contract import Detached, Norm, Scaling
from numnorm.backends.cpu.arrays import (
    Array,
    Output,
    as_kernel_array,
    as_parameter,
    as_statistic,
    gradient_dtype,
    like_input,
)
from numnorm.backends.cpu.jit import Twins
from numnorm.backends.cpu.parallel import row_parts, run, summed_parts
from numnorm.backends.cpu.row_backward import make_row_backward
from numnorm.backends.cpu.row_forward import make_row_forward
from numnorm.backends.cpu.storage import Storage, storage_of

_NOTHING_SAVED = np.empty((2, 0))


@functools.cache
def _forward_kernel(norm: Norm, storage: Storage) -> Twins:
    return make_row_forward(norm, storage)


@functools.cache
def _backward_kernel(norm: Norm, storage: Storage) -> Twins:
    return make_row_backward(norm, storage)


def _parameter(name: str, value: Any, layout: RowLayout, storage: Storage) -> Any:
    if value is None:
        return None
    if type(value) is float:  # a number of the norm itself, such as AdaNorm's scale
        return storage.working(value)
    shape = (layout.channels,) if layout.shared else (layout.channels, layout.run)
    return as_parameter(
        name,
        value,
        layout.parameter_shape,
        layout.parameter_meaning,
        storage.working,
        shape,
    )


def row_forward(
    norm: Norm,
    x: Array,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: Scaling,
    out: Any,
    save: bool,
) -> tuple[Array, Array | None, Array | None]:
    """Return y and, where `save` is true, mean and rstd of each row."""
    storage = storage_of(x.dtype)
    size = (layout.rows, layout.width)
    source = as_kernel_array(x, storage, layout.order, size)
    gamma = _parameter(norm.names.gamma, gamma, layout, storage)
    beta = _parameter("beta", beta, layout, storage)
    output = Output(out, x.shape, x.dtype, layout.order, (source, gamma, beta))
    saved = np.empty((2, layout.rows)) if save else _NOTHING_SAVED
    if layout.width == 0:
        saved[:] = np.nan
    elif layout.rows:
        parts = row_parts(layout.rows)
        count = float(layout.width - scaling.ddof)
        arguments = (
            source, gamma, beta, layout.run, layout.channels, scaling.eps,
            scaling.eps_on_deviation, count, output.target(storage, size), saved, parts,
        )  # fmt: skip
        run(_forward_kernel(norm, storage), arguments, layout.rows * layout.width, parts)
    y = output.finish()
    if not save:
        return y, None, None
    mean, rstd = saved.astype(storage.saved, copy=False).reshape(2, *layout.statistic_shape)
    return y, mean, rstd


def row_backward(
    norm: Norm,
    dy: Any,
    x: Array,
    mean: Any,
    rstd: Any,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: Scaling,
    detached: Detached,
    out: Any,
) -> tuple[Array, Array | None, Array | None]:
    """Return dx and, for a norm with parameters, dgamma and dbeta."""
    storage = storage_of(x.dtype)
    size = (layout.rows, layout.width)
    names = norm.names
    dtype = gradient_dtype(names.gamma, gamma, x.dtype) if norm.parameters else x.dtype
    source = as_kernel_array(x, storage, layout.order, size)
    slope = as_kernel_array(like_input(names.dy, dy, x), storage, layout.order, size)
    rstd = as_statistic(names.rstd, rstd, layout.statistic_shape, "one for each row")
    if norm.centred:
        mean = as_statistic("mean", mean, layout.statistic_shape, "one for each row")
    gamma = _parameter(norm.names.gamma, gamma, layout, storage)
    beta = _parameter("beta", beta, layout, storage)
    inputs = (source, slope, gamma, beta, mean, rstd)
    output = Output(out, x.shape, x.dtype, layout.order, inputs)
    parts, totals = _totals(norm, layout)
    if layout.width and layout.rows:
        arguments = (
            slope, source, mean, rstd, gamma, beta, layout.run, layout.channels,
            *_shares(norm, layout, scaling, detached), scaling.eps_on_deviation,
            output.target(storage, size), *totals, parts,
        )  # fmt: skip
        run(_backward_kernel(norm, storage), arguments, layout.rows * layout.width, parts)
    dgamma, dbeta = (_summed(total, layout, dtype) for total in totals)
    return output.finish(), dgamma, dbeta


def _shares(
    norm: Norm, layout: RowLayout, scaling: Scaling, detached: Detached
) -> tuple[float, float]:
    mean_flows = norm.centred and not detached.mean
    return (
        1.0 / layout.width if mean_flows else 0.0,
        0.0 if detached.scale else 1.0 / (layout.width - scaling.ddof),
    )


def _totals(norm: Norm, layout: RowLayout) -> tuple[int, tuple[Array | None, Array | None]]:
    """Return the number of parts, and zeros for each part's sums of dgamma and dbeta."""
    shape = (layout.channels,) if layout.shared else (layout.channels, layout.run)
    summed = layout.channels * (1 if layout.shared else layout.run) if norm.parameters else 0
    parts = summed_parts(layout.rows, layout.width, summed)
    dgamma = np.zeros((parts, *shape)) if norm.parameters >= 1 else None
    dbeta = np.zeros((parts, *shape)) if norm.parameters >= 2 else None
    return parts, (dgamma, dbeta)


def _summed(total: Array | None, layout: RowLayout, dtype: np.dtype[Any]) -> Array | None:
    if total is None:
        return None
    return total.sum(axis=0).astype(dtype).reshape(layout.parameter_shape)
