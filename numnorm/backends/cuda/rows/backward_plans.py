"""Which kernels compute the gradients of rows, and how they are launched."""

import functools
from typing import NamedTuple

from numnorm.backends.contract.norms import Detached, Norm, Scaling
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import Kernel
from numnorm.backends.cuda.rows.arguments import RowScaling, RowSizes
from numnorm.backends.cuda.rows.backward_columns_kernel import make_row_backward_columns
from numnorm.backends.cuda.rows.backward_kernel import make_row_backward
from numnorm.backends.cuda.rows.backward_loop_kernel import (
    make_row_backward_coefficients,
    make_row_backward_loop,
)
from numnorm.backends.cuda.rows.parameter_gradient_kernel import make_parameter_gradients
from numnorm.backends.cuda.rows.parameter_sums import ROWS_BETWEEN_FLUSHES
from numnorm.backends.cuda.threads.row_launch import (
    backward_parts,
    backward_shape,
    segment_shape,
    strip_shape,
    strips_of,
)
from numnorm.backends.cuda.threads.row_parameters import Weights
from numnorm.layouts import RowLayout


class GradientPlan(NamedTuple):
    """The kernels and their launches, which depend on norm, elements and layout alone.

    Attributes
    ----------
    coefficients : Kernel or None
        For wide rows whose columns have parameters: the kernel that stores the coefficients of
        each row. It is launched first.
    kernel, finish : Kernel
        The kernel that stores dx and partial sums, and the kernel that adds up these sums.
    blocks : int
        The number of blocks of `kernel`.
    sizes, parts, scaling
        Arguments of the kernels.
    table : tuple of int
        The shape of the partial sums of each parameter.
    long : bool
        Whether a part has more rows than `ROWS_BETWEEN_FLUSHES` for each team.
    """

    coefficients: Kernel | None
    kernel: Kernel
    finish: Kernel
    blocks: int
    sizes: RowSizes
    parts: int
    scaling: RowScaling
    table: tuple[int, int]
    long: bool


# Norms that differ only in their layouts share kernels.
_in_registers = functools.cache(make_row_backward)
_by_segments = functools.cache(make_row_backward_loop)
_coefficients = functools.cache(make_row_backward_coefficients)
_by_columns = functools.cache(make_row_backward_columns)
_finish = functools.cache(make_parameter_gradients)


@functools.lru_cache(maxsize=1024)
def gradient_plan(
    norm: Norm,
    element: ElementType,
    saved: ElementType,
    weights: Weights,
    gradient: ElementType,
    layout: RowLayout,
    scaling: Scaling,
    detached: Detached,
    aligned: bool,
) -> GradientPlan:
    """Return the plan for elements of this type, `aligned` if all arrays begin at 16 bytes.

    The gradients of the parameters have the type `gradient`.
    """
    formula, parameters = norm.formula, norm.parameters
    shape = backward_shape(layout.width, element, aligned=aligned)
    by_segment = layout.shared and parameters > 0
    channels = layout.channels if parameters else 1
    coefficients, strips = None, 1
    if shape.vectors:
        kernel = _in_registers(formula, element, saved, weights, parameters, shape)
        parts = backward_parts(layout.rows, shape, 1 if by_segment else channels)
    elif by_segment or not parameters:
        shape, parts = segment_shape(layout.width, layout.segment, element, shape), layout.rows
        kernel = _by_segments(formula, element, saved, weights, parameters, shape)
    else:
        coefficients = _coefficients(formula, element, saved, weights, shape)
        shape = strip_shape(shape)
        kernel = _by_columns(formula, element, weights, parameters, shape)
        strips = strips_of(layout.width, element, shape)
        parts = backward_parts(layout.rows, shape, channels, strips)
    inv_count = 1.0 / layout.width if formula.centred and not detached.mean else 0.0
    inv_divisor = 0.0 if detached.scale else 1.0 / (layout.width - scaling.ddof)
    if by_segment:
        table = layout.rows * layout.width // layout.segment // channels, channels
    else:
        table = parts // channels, channels * layout.width
    return GradientPlan(
        coefficients,
        kernel,
        _finish(element, gradient),
        parts * strips,
        RowSizes(layout.rows, layout.width, layout.segment, channels),
        parts,
        RowScaling(inv_count, inv_divisor, scaling.eps_on_deviation),
        table,
        layout.rows > ROWS_BETWEEN_FLUSHES * shape.teams * parts and not by_segment,
    )
