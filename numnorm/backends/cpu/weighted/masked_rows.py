"""The norms with statistics of each row, of which elements are left out: the kernel's caller."""

import functools
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Detached, Formula, Norm
from numnorm.backends.contract.norms import Scaling as NormScaling
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.compiler.parallel import run
from numnorm.backends.cpu.memory.host_arrays import Array, as_kernel_array, output_like, result
from numnorm.backends.cpu.rows.rows import (
    Plan,
    backward_plan,
    forward_plan,
    new_dx,
    new_output,
    saved_as,
)
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.weighted.masked_backward import make_masked_backward
from numnorm.backends.cpu.weighted.masked_kernels import make_masked_forward
from numnorm.backends.cpu.weighted.selection import mask_of
from numnorm.layouts import RowLayout

_NOTHING = np.empty(0)


@functools.cache
def _forward_kernel(formula: Formula, element_type: ElementType) -> Kernel:
    return make_masked_forward(formula, element_type)


@functools.cache
def _backward_kernel(formula: Formula, element_type: ElementType) -> Kernel:
    return make_masked_backward(formula, element_type)


@functools.lru_cache(maxsize=1024)
def _plan(
    norm: Norm, dtype: Any, layout: RowLayout, scaling: NormScaling
) -> tuple[Plan, Kernel, tuple[Any, ...]]:
    """Return the plan of the plain norm, and the kernel and its constants."""
    plan = forward_plan(norm, dtype, layout, scaling)
    segments = layout.segment, layout.channels
    constants = *segments, scaling.eps, scaling.eps_on_deviation, *divisor_of(norm, scaling)
    return plan, _forward_kernel(norm.formula, plan.element_type), constants


def _omit(weighting: Weighting) -> int | None:
    """Return what chooses the loops: with None they have no test for NaN."""
    return 1 if weighting.omit else None


def divisor_of(norm: Norm, scaling: NormScaling) -> tuple[float, float]:
    """Return share and more: a sum of squares is divided by ``number * share + more``."""
    return (0.0, 1.0) if norm.of_length else (1.0, -float(scaling.ddof))


def masked_row_forward(
    weighting: Weighting,
    norm: Norm,
    x: Array,
    parameters: tuple[Any, Any],
    layout: RowLayout,
    scaling: NormScaling,
    out: Any,
    save: bool,
) -> tuple[Array, Array | None, Array | None]:
    """Return what `row_forward` returns, with statistics of what a weighting keeps."""
    plan, kernel, constants = _plan(norm, x.dtype, layout, scaling)
    element_type, order = plan.element_type, layout.order
    source = as_kernel_array(x, element_type, order, plan.size)
    keep, step = mask_of(weighting, x.shape, order, *plan.size)
    if out is None:
        target = new_output(plan, source)
    else:
        inputs = norm.names.x, out, element_type, order, (keep, *parameters)
        target = output_like(source, x, *inputs)
    mean, rstd = np.empty((2, layout.rows)) if save else (_NOTHING, _NOTHING)
    if plan.elements:
        mask = keep, step, _omit(weighting)
        fills = weighting.fill, weighting.fill_missing
        arguments = source, *mask, *parameters, *constants, *fills, target, mean, rstd, plan.parts
        run(kernel, arguments, plan.work, plan.parts)
    else:
        mean[...] = rstd[...] = scaling.for_empty_row
    y = result(target, x, out, order)
    if not save:
        return y, None, None
    return y, saved_as(mean, layout, element_type), saved_as(rstd, layout, element_type)


def is_one_segment(norm: Norm, layout: RowLayout) -> bool:
    """Return whether a row has a parameter for each element, or the same numbers for all."""
    whole = layout.segment == layout.width and layout.channels == 1 and not layout.shared
    return whole or not norm.parameters


def masked_row_backward(
    weighting: Weighting,
    norm: Norm,
    dy: Array,
    x: Array,
    statistics: tuple[Array, Array],
    parameters: tuple[Any, Any],
    layout: RowLayout,
    scaling: NormScaling,
    detached: Detached,
    out: Any,
) -> tuple[Array, Array]:
    """Return dx of rows of one segment, and the totals of dgamma and dbeta of each part."""
    plan = backward_plan(norm, x.dtype, layout, scaling, detached)
    element_type, order = plan.element_type, layout.order
    source = as_kernel_array(x, element_type, order, plan.size)
    grad = as_kernel_array(dy.astype(x.dtype, copy=False), element_type, order, plan.size)
    keep, step = mask_of(weighting, x.shape, order, *plan.size)
    mean = statistics[0] if norm.formula.centred else None
    if out is None:
        target = new_dx(plan, source, grad)
    else:
        inputs = norm.names.x, out, element_type, order, (grad, keep, *statistics, *parameters)
        target = output_like(source, x, *inputs)
    totals = np.zeros((2, plan.parts, 1, layout.width))
    sums = tuple(totals[k] if k < norm.parameters else None for k in range(2))
    if plan.elements:
        flows = float(norm.formula.centred and not detached.mean), float(not detached.scale)
        through = *flows, *divisor_of(norm, scaling), scaling.eps_on_deviation
        mask = keep, step, _omit(weighting)
        kernel = _backward_kernel(norm.formula, element_type)
        arguments = (
            grad, source, *mask, mean, statistics[1], *parameters, *through, target, *sums,
            plan.parts,
        )  # fmt: skip
        run(kernel, arguments, plan.work, plan.parts)
    return result(target, x, out, order), totals
