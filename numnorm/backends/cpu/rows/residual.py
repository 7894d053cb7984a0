"""The norms of the sum of two NumPy arrays, and their gradients."""

import functools
from typing import Any

import numpy as np

from numnorm.arguments import check_shape
from numnorm.array_likes import as_plain_array, check_apart, check_out, sharing
from numnorm.backends.contract.norms import Detached, Formula, Norm, Scaling
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.compiler.parallel import is_serial, is_small, run
from numnorm.backends.cpu.memory.host_arrays import (
    Array,
    Order,
    as_float_array,
    as_kernel_array,
    like_input,
    output_like,
    result,
    wider_dtype,
)
from numnorm.backends.cpu.memory.placement import empty_like
from numnorm.backends.cpu.rows.residual_kernel import make_row_added
from numnorm.backends.cpu.rows.rows import (
    Plan,
    forward_plan,
    gradients_of,
    kernel_parameters,
    new_statistics,
    row_backward,
    row_forward,
    saved_as,
)
from numnorm.backends.cpu.rows.tiles import widest
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.processor import has_avx512
from numnorm.layouts import RowLayout

_NOTHING = np.empty(0), np.empty(0)


@functools.cache
def _kernel(formula: Formula, element_type: ElementType, narrow: bool) -> Kernel:
    return make_row_added(formula, element_type, narrow=narrow)


def added_forward(
    norm: Norm,
    x: Array,
    residual: Any,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: Scaling,
    out: Any,
    total_out: Any,
    save: bool,
) -> tuple[Array, Array, Array | None, Array | None]:
    """Return y, the sum and, where `save` is true, mean (or root mean square) and rstd."""
    residual = as_float_array("residual", residual)
    check_shape("residual", residual.shape, x.shape, "the shape of x")
    wide = wider_dtype("residual", residual, x) or x.dtype
    x, residual = x.astype(wide, copy=False), residual.astype(wide, copy=False)
    for name, array in (("out", out), ("total_out", total_out)):
        if array is not None:
            check_out(array, x, "x", name)
    if out is not None and total_out is not None:
        check_apart("out", "total_out", sharing(out, total_out))
    plan = forward_plan(norm, x.dtype, layout, scaling)
    # In a cache the two calls are as fast. Halves, which NumPy adds slowly, are never `usual`.
    as_fast = plan.usual or plan.small or _gains_by_threads_alone(plan)
    if as_fast or not _none_broadcasts(gamma, beta, layout=layout):
        free = total_out is not None and _is_free_to_write(
            total_out, norm, gamma, beta, layout, plan
        )
        total = _sum_of(x, residual, layout.order, total_out if free else None)
        y, mean, rstd = row_forward(norm, total, gamma, beta, layout, scaling, out, save)
        if total_out is None:
            return y, total, mean, rstd
        if not free:
            total_out[...] = total
        return y, total_out, mean, rstd
    return _in_blocks(plan, norm, x, residual, gamma, beta, layout, out, total_out, save)


def _gains_by_threads_alone(plan: Plan) -> bool:
    """Return whether one thread takes longer for the kernel than for the two calls."""
    is_half = plan.element_type.storage_dtype.itemsize == 2
    return not is_half and has_avx512() and is_serial(2 * plan.work, plan.parts)


def _none_broadcasts(*parameters: Any, layout: RowLayout) -> bool:
    """Return whether no parameter broadcasts against x."""
    given = (np.shape(array) for array in parameters if array is not None)
    return all(shape == layout.parameter_shape for shape in given)


def _is_free_to_write(
    array: Array, norm: Norm, gamma: Any, beta: Any, layout: RowLayout, plan: Plan
) -> bool:
    """Return whether an output may be written before `row_forward` checks and reads parameters."""
    try:
        kernel_parameters(norm, gamma, beta, layout, plan.element_type)
    except ValueError:
        return False  # one broadcasts, or has a wrong shape
    given = (as_plain_array("gamma", each) for each in (gamma, beta) if each is not None)
    return not any(np.may_share_memory(array, each) for each in given)


def _sum_of(x: Array, residual: Array, order: Order, out: Array | None) -> Array:
    """Return the sum, in `out` or in a new array: as a kernel writes it, with axes in `order`."""
    with np.errstate(all="ignore"):  # a sum may leave the range of the dtype
        if out is not None:
            return np.add(x, residual, out=np.asarray(out))
        if order is None:
            return np.add(x, residual, order="C")
        total = np.add(x.transpose(order), residual.transpose(order), order="C")
    return total.transpose(np.argsort(order))


def _in_blocks(
    plan: Plan,
    norm: Norm,
    x: Array,
    residual: Array,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    out: Any,
    total_out: Any,
    save: bool,
) -> tuple[Array, Array, Array | None, Array | None]:
    """Return what `added_forward` does, by the kernel that adds and normalizes."""
    element_type, order, size = plan.element_type, layout.order, plan.size
    weights = kernel_parameters(norm, gamma, beta, layout, element_type)
    source = as_kernel_array(x, element_type, order, size)
    other = as_kernel_array(residual, element_type, order, size)
    targets = [
        empty_like(source, other)
        if array is None
        else output_like(source, x, "x", array, element_type, order, (other, *weights))
        for array in (out, total_out)
    ]
    mean, rstd = new_statistics(layout) if save else _NOTHING
    kernel = _kernel(norm.formula, element_type, layout.width <= widest(element_type))
    of_rows = mean.reshape(-1), rstd.reshape(-1)
    arguments = source, other, *weights, *plan.constants, *reversed(targets), *of_rows, plan.parts
    run(kernel, arguments, 2 * plan.work, plan.parts)
    y, total = (
        result(target, x, array, order)
        for target, array in zip(targets, (out, total_out), strict=True)
    )
    if not save:
        return y, total, None, None
    mean, rstd = (saved_as(array, layout, element_type) for array in of_rows)
    return y, total, mean, rstd


def added_backward(
    norm: Norm,
    dy: Any,
    dtotal: Any,
    x: Array,
    mean: Any,
    rstd: Any,
    gamma: Any,
    layout: RowLayout,
    scaling: Scaling,
    detached: Detached,
    out: Any,
) -> tuple[Array, Array | None, Array | None]:
    """Return dx and the gradients of the parameters, where x is the sum."""
    given = norm, dy, x, mean, rstd, gamma, None, layout, scaling, detached
    if dtotal is None:
        return row_backward(*given, out)
    dtotal = like_input("dtotal", dtotal, x, norm.names.x)
    one_dtype = type(dy) is np.ndarray and dy.dtype == x.dtype
    if one_dtype and not is_small(x.size) and _none_broadcasts(gamma, layout=layout):
        return gradients_of(*given, out, dtotal)
    dx, dgamma, dbeta = row_backward(*given, None)
    if out is not None:
        check_out(out, x, norm.names.x)
    with np.errstate(all="ignore"):
        np.add(dx, dtotal, out=dx if out is None else np.asarray(out))
    return dx if out is None else out, dgamma, dbeta
