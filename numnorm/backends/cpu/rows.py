"""The norms whose statistics are shared by a row, on NumPy arrays."""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import RowLayout
from numnorm.backends.contract import Detached, Formula, Norm, Scaling
from numnorm.backends.cpu.arrays import (
    Array,
    as_kernel_array,
    as_parameter,
    as_statistic,
    both_or_neither,
    gradient_dtype,
    like_input,
    output_like,
    result,
)
from numnorm.backends.cpu.jit import Twins
from numnorm.backends.cpu.line_heads import begins_at_lines
from numnorm.backends.cpu.memory import empty_like
from numnorm.backends.cpu.parallel import is_small, row_parts, run, summed_parts
from numnorm.backends.cpu.row_backward_kernel import make_row_backward
from numnorm.backends.cpu.row_forward_kernel import make_row_forward
from numnorm.backends.cpu.row_totals_kernel import make_row_totals
from numnorm.backends.cpu.storage import Storage, storage_of

_NOTHING_SAVED = np.empty((2, 0))
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
# The widest rows, in bytes, that gain nothing from a dx that lies like x.
_NARROW = 1 << 11


class _Plan(NamedTuple):
    """What follows from norm, dtype and layout alone, found once for all calls like it."""

    kernel: Twins
    # The same for what the arguments' types are without gamma, and with it.
    kernels: list[Twins | None]
    storage: Storage
    size: tuple[int, int]
    elements: int
    parts: int
    constants: tuple[Any, ...]
    # Whether a contiguous array of these rows is just what the kernel takes: the common case,
    # in which a small call is over before every check of the general one is done.
    direct: bool
    # Whether neither threads nor the place of the output are worth a thought.
    small: bool
    # Sums for gamma and beta without any parts: where all is one call, a kernel makes its own.
    no_parts: tuple[Any, Any]


@functools.cache
def _forward_kernel(formula: Formula, storage: Storage) -> Twins:
    return make_row_forward(formula, storage)


@functools.cache
def _backward_kernel(formula: Formula, storage: Storage) -> Twins:
    return make_row_backward(formula, storage)


@functools.cache
def _totals_kernel() -> Twins:
    return make_row_totals()


@functools.lru_cache(maxsize=1024)
def _forward_plan(norm: Norm, dtype: Any, layout: RowLayout, scaling: Scaling) -> _Plan:
    storage = storage_of(dtype)
    count = float(layout.width - scaling.ddof)
    return _Plan(
        _forward_kernel(norm.formula, storage),
        [None, None],
        storage,
        (layout.rows, layout.width),
        layout.rows * layout.width,
        row_parts(layout.rows, layout.rows * layout.width),
        (layout.run, layout.channels, scaling.eps, scaling.eps_on_deviation, count),
        _is_direct(dtype, storage, layout),
        is_small(layout.rows * layout.width),
        (None, None),
    )


@functools.lru_cache(maxsize=1024)
def _backward_plan(
    norm: Norm, dtype: Any, layout: RowLayout, scaling: Scaling, detached: Detached
) -> _Plan:
    storage = storage_of(dtype)
    count = layout.width - scaling.ddof
    mean_share = 1.0 / layout.width if norm.formula.centred and layout.width else 0.0
    scale_share = 1.0 / count if count else 0.0
    shares = 0.0 if detached.mean else mean_share, 0.0 if detached.scale else scale_share
    summed = math.prod(layout.kernel_shape) if norm.parameters else 0
    return _Plan(
        _backward_kernel(norm.formula, storage),
        [None, None],
        storage,
        (layout.rows, layout.width),
        layout.rows * layout.width,
        summed_parts(layout.rows, layout.width, summed),
        (layout.run, layout.channels, *shares, scaling.eps_on_deviation),
        _is_direct(dtype, storage, layout),
        is_small(layout.rows * layout.width),
        _one_each(norm.parameters, np.empty, (0, *layout.kernel_shape), _FLOAT64),
    )


def _is_direct(dtype: Any, storage: Storage, layout: RowLayout) -> bool:
    # Arrays that were pickled have a dtype object of their own, and share plans with the others.
    return dtype == storage.container and layout.order is None and layout.is_matrix


def _weight(name: str, value: Any, layout: RowLayout, working: np.dtype[Any]) -> Any:
    """Return a parameter, None included, as a kernel takes it."""
    if value is None:
        return None
    shape, meaning = layout.parameter_shape, layout.parameter_meaning
    return as_parameter(name, value, shape, meaning, working, layout.kernel_shape)


def _weights(
    norm: Norm, gamma: Any, beta: Any, layout: RowLayout, storage: Storage
) -> tuple[Any, Any]:
    """Return gamma and beta as a kernel takes them."""
    working = storage.working_dtype
    # The most usual case in one question: the others take as long as a small call.
    if (
        type(gamma) is type(beta) is np.ndarray
        and gamma.dtype is beta.dtype is working
        and gamma.shape == beta.shape == layout.parameter_shape
        and gamma.flags.carray
        and beta.flags.carray
        and layout.is_parameter_a_row
    ):
        return gamma[None], beta[None]  # twice as fast as to reshape them
    if not norm.parameters:
        return storage.working(gamma), storage.working(beta)
    gamma = _weight(norm.names.gamma, gamma, layout, working)
    beta = _weight("beta", beta, layout, working)
    return both_or_neither(gamma, beta) if norm.parameters == 2 else (gamma, beta)


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
    """Return y and, where `save` is true, mean (or root mean square) and rstd of each row."""
    plan = _forward_plan(norm, x.dtype, layout, scaling)
    _, kernels, storage, size, elements, parts, constants, direct, small, _ = plan
    source = x if direct and x.flags.carray else as_kernel_array(x, storage, layout.order, size)
    gamma, beta = _weights(norm, gamma, beta, layout, storage)
    if out is None:
        target = np.empty(size, storage.container) if small else empty_like(source)
    else:
        target = output_like(source, x, norm.names.x, out, storage, layout.order, (gamma, beta))
    saved = np.empty((2, layout.rows)) if save else _NOTHING_SAVED
    if elements:
        arguments = (source, gamma, beta, *constants, target, saved, parts)
        known = kernels[gamma is not None] or _known(plan, gamma, arguments)
        if small:
            known.serial(*arguments, 0, parts)
        else:
            run(known, arguments, elements, parts)
    else:
        saved[...] = scaling.of_nothing
    y = target if direct and out is None else result(target, x, out, layout.order)
    if not save:
        return y, None, None
    if storage.saved is not saved.dtype:
        with np.errstate(over="ignore"):  # a reciprocal may leave the range of float32
            saved = saved.astype(storage.saved)
    shape = layout.statistic_shape
    return y, saved[0].reshape(shape), saved[1].reshape(shape)


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
    plan = _backward_plan(norm, x.dtype, layout, scaling, detached)
    _, kernels, storage, size, elements, parts, constants, direct, small, no_parts = plan
    order, count = layout.order, norm.parameters
    if direct and _is_plain(dy, x, mean, rstd, gamma, layout):
        slope, source, weights, dtype = dy, x, (gamma[None], None), x.dtype
    else:
        slope, source, mean, rstd, weights, dtype = _as_kernel_takes(
            norm, dy, x, mean, rstd, gamma, beta, layout, plan
        )
    if out is None and small:
        target = np.empty(size, storage.container)
    else:
        inputs = slope, rstd, mean, *weights
        target = _place_of_dx(source, inputs, x, norm.names.x, out, storage, order)
    # The kernels round to these two dtypes.
    native = dtype if dtype is _FLOAT32 or dtype is _FLOAT64 else _FLOAT64
    gradients = _one_each(count, np.empty, layout.parameter_shape, native)
    flat = gradients if len(layout.parameter_shape) == 1 else _of_each(gradients, np.ravel)
    # Only what has the working dtype is left to the kernel of the rows: it would be compiled again.
    left = native is storage.working_dtype
    if small and left and elements:
        totals = no_parts
    else:
        totals = _one_each(count, np.zeros, (parts, *layout.kernel_shape), _FLOAT64)
    sums = flat if left else _one_each(count, np.empty, 0, storage.working_dtype)
    summed = False
    if elements:
        arguments = (
            slope, source, mean, rstd, *weights, *constants, target, *totals, *sums, parts
        )  # fmt: skip
        known = kernels[weights[0] is not None] or _known(plan, weights[0], arguments)
        if small:
            known.serial(*arguments, 0, parts)
            summed = left
        else:
            summed = run(known, arguments, elements, parts) and left
    dx = target if direct and out is None else result(target, x, out, order)
    if count and not summed:
        _add_up(totals, flat)
    if native is not dtype:
        gradients = _of_each(gradients, lambda a: _cast(a, dtype))
    return dx, gradients[0], gradients[1]


def _is_plain(dy: Any, x: Array, mean: Any, rstd: Any, gamma: Any, layout: RowLayout) -> bool:
    """Return whether kernels take these as they are, but for a gamma that is a matrix there.

    That is asked in one go: to ask each by itself takes a quarter of a small call. Whoever asks
    knows that x has the dtype and the shape of rows in a kernel.
    """
    return bool(
        type(dy) is type(mean) is type(rstd) is type(gamma) is np.ndarray
        and dy.dtype is gamma.dtype is x.dtype
        and mean.dtype is rstd.dtype is _FLOAT64
        and dy.shape == x.shape
        and mean.shape == rstd.shape == layout.statistic_shape
        and gamma.shape == layout.parameter_shape
        and x.flags.carray
        and dy.flags.carray
        and mean.flags.carray
        and rstd.flags.carray
        and gamma.flags.carray
        and layout.is_parameter_a_row
    )


def _as_kernel_takes(
    norm: Norm,
    dy: Any,
    x: Array,
    mean: Any,
    rstd: Any,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    plan: _Plan,
) -> tuple[Array, Array, Any, Array, tuple[Any, Any], np.dtype[Any]]:
    """Return dy, x, mean, rstd, both parameters and the dtype of their gradients."""
    storage, order, size, names = plan.storage, layout.order, plan.size, norm.names
    source = as_kernel_array(x, storage, order, size)
    slope = as_kernel_array(like_input(names.dy, dy, x), storage, order, size)
    rstd = as_statistic(names.rstd, rstd, layout.statistic_shape, "one for each row")
    if norm.formula.centred:
        mean = as_statistic("mean", mean, layout.statistic_shape, "one for each row")
    if not norm.parameters:
        weights = storage.working(gamma), storage.working(beta)
        return slope, source, mean, rstd, weights, x.dtype
    weight = _weight(names.gamma, gamma, layout, storage.working_dtype)
    dtype = gradient_dtype(names.gamma, gamma, x.dtype)
    return slope, source, mean, rstd, (weight, None), dtype


def _known(plan: _Plan, gamma: Any, arguments: tuple[Any, ...]) -> Twins:
    """Return a plan's kernel of the arguments' types, of which only gamma's may change, kept."""
    found = plan.kernels[gamma is not None] = plan.kernel.of_types((*arguments, 0, 0))
    return found


def _place_of_dx(
    source: Array,
    inputs: tuple[Any, ...],
    x: Array,
    name: str,
    out: Any,
    storage: Storage,
    order: Any,
) -> Array:
    if out is None:
        return empty_like(source, inputs[0], in_line=_lies_like_input(source, storage))
    return output_like(source, x, name, out, storage, order, inputs)


def _lies_like_input(x: Array, storage: Storage) -> bool:
    """Return whether dx begins as far into a line as x does, else where a line begins.

    Loops over wide rows begin at lines then, of both; that takes narrow ones longer than it saves
    (32768 x 128 float32: 2.9 ms, 1.7 with dx where a line begins).
    """
    return begins_at_lines(storage) and x.shape[1] * x.itemsize > _NARROW


def _add_up(totals: tuple[Any, Any], gradients: tuple[Any, Any]) -> None:
    """Store the sums of all parts of both totals."""
    rows = _of_each(totals, lambda total: total.reshape(len(total), -1))
    _totals_kernel().serial(*rows, *gradients, 0, 1)


def _cast(gradient: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore"):  # a sum may leave the range of the dtype
        return gradient.astype(dtype)


def _one_each(count: int, make: Any, shape: Any, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return new arrays for gamma and beta, or for as many of the two as there are."""
    if count == 2:
        return make(shape, dtype), make(shape, dtype)
    return (make(shape, dtype), None) if count else (None, None)


def _of_each(arrays: tuple[Any, Any], function: Any) -> tuple[Any, Any]:
    """Return what a function makes of two arrays, and None of None."""
    first, second = arrays
    return (
        None if first is None else function(first),
        None if second is None else function(second),
    )
