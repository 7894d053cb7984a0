"""The norms with statistics of each row, of which elements are left out: the kernel's caller."""

import functools
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Formula, Norm
from numnorm.backends.contract.norms import Scaling as NormScaling
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.compiler.parallel import run
from numnorm.backends.cpu.memory.host_arrays import Array, as_kernel_array, output_like, result
from numnorm.backends.cpu.rows.rows import Plan, forward_plan, new_output, saved_as
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.weighted.masked_kernels import make_masked_forward
from numnorm.backends.cpu.weighted.selection import mask_of
from numnorm.layouts import RowLayout

_NOTHING = np.empty(0)


@functools.cache
def _forward_kernel(formula: Formula, element_type: ElementType) -> Kernel:
    return make_masked_forward(formula, element_type)


@functools.lru_cache(maxsize=1024)
def _plan(
    norm: Norm, dtype: Any, layout: RowLayout, scaling: NormScaling
) -> tuple[Plan, Kernel, tuple[Any, ...]]:
    """Return the plan of the plain norm, and the kernel and its constants."""
    plan = forward_plan(norm, dtype, layout, scaling)
    # The sum of squares is divided by ``number * share + more``.
    share, more = (0.0, 1.0) if norm.of_length else (1.0, -float(scaling.ddof))
    segments = layout.segment, layout.channels
    constants = *segments, scaling.eps, scaling.eps_on_deviation, share, more
    return plan, _forward_kernel(norm.formula, plan.element_type), constants


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
        # None or a number choose the loops: each of them without a test that it does not need.
        mask = keep, step, 1 if weighting.omit else None
        fills = weighting.fill, weighting.fill_missing
        arguments = source, *mask, *parameters, *constants, *fills, target, mean, rstd, plan.parts
        run(kernel, arguments, plan.work, plan.parts)
    else:
        mean[...] = rstd[...] = scaling.for_empty_row
    y = result(target, x, out, order)
    if not save:
        return y, None, None
    return y, saved_as(mean, layout, element_type), saved_as(rstd, layout, element_type)
