"""Which kernels find the gradients of rows, and with which sizes and numbers they are launched."""

import functools
from typing import NamedTuple

from numnorm.backends.contract.norms import Detached, Norm, Scaling
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import Kernel
from numnorm.backends.cuda.rows.backward_columns_kernel import make_row_backward_columns
from numnorm.backends.cuda.rows.backward_kernel import make_row_backward
from numnorm.backends.cuda.rows.backward_loop_kernel import (
    make_row_backward_loop,
    make_row_backward_terms,
)
from numnorm.backends.cuda.rows.parameter_gradient_kernel import make_parameter_gradients
from numnorm.backends.cuda.rows.parameter_sums import ROWS_BETWEEN_FLUSHES
from numnorm.backends.cuda.threads.row_launch import (
    backward_parts,
    backward_shape,
    run_shape,
    strip_shape,
    strips_of,
)
from numnorm.backends.cuda.threads.row_parameters import Weights
from numnorm.layouts import RowLayout


class GradientPlan(NamedTuple):
    """What follows from norm, elements and layout alone, found once for all calls like it.

    Attributes
    ----------
    terms : Kernel or None
        The one that comes first, with a block for each row, where the next works by columns.
    kernel, finish : Kernel
        The one of the rows, and the one that makes gradients of what it leaves for gamma and beta.
    blocks : int
        How many blocks the rows take.
    sizes, constants : tuple
        The kernels' numbers.
    table : tuple of int
        How many sums there are for a column, and how many columns, of each parameter.
    long : bool
        Whether a part has more rows than are summed up in one go.
    """

    terms: Kernel | None
    kernel: Kernel
    finish: Kernel
    blocks: int
    sizes: tuple[int, ...]
    constants: tuple[float, ...]
    table: tuple[int, int]
    long: bool


# Norms that differ in their layouts alone have the same kernels.
_in_registers = functools.cache(make_row_backward)
_by_runs = functools.cache(make_row_backward_loop)
_terms = functools.cache(make_row_backward_terms)
_by_columns = functools.cache(make_row_backward_columns)
_finish = functools.cache(make_parameter_gradients)


@functools.lru_cache(maxsize=1024)
def gradient_plan(
    norm: Norm,
    element: Element,
    saved: Element,
    weights: Weights,
    layout: RowLayout,
    scaling: Scaling,
    detached: Detached,
    aligned: bool,
) -> GradientPlan:
    """Return the plan for arrays of these elements, which may all be `aligned`."""
    formula, parameters = norm.formula, norm.parameters
    shape = backward_shape(layout.width, element, aligned=aligned)
    by_run = layout.shared and parameters > 0
    channels = layout.channels if parameters else 1
    terms, strips = None, 1
    if shape.pieces:
        kernel = _in_registers(formula, element, saved, weights, parameters, shape)
        parts = backward_parts(layout.rows, shape, 1 if by_run else channels)
    elif by_run or not parameters:
        shape, parts = run_shape(layout.width, layout.run, element, shape), layout.rows
        kernel = _by_runs(formula, element, saved, weights, parameters, shape)
    else:
        terms, shape = _terms(formula, element, saved, weights, shape), strip_shape(shape)
        kernel = _by_columns(formula, element, weights, parameters, shape)
        strips = strips_of(layout.width, element, shape)
        parts = backward_parts(layout.rows, shape, channels, strips)
    mean_share = 1.0 / layout.width if formula.centred and not detached.mean else 0.0
    scale_share = 0.0 if detached.scale else 1.0 / (layout.width - scaling.ddof)
    runs = layout.rows * layout.width // layout.run
    return GradientPlan(
        terms,
        kernel,
        _finish(element, weights.gamma or element),
        parts * strips,
        (layout.rows, layout.width, layout.run, channels, parts),
        (mean_share, scale_share, scaling.eps_on_deviation),
        (runs // channels, channels) if by_run else (parts // channels, channels * layout.width),
        layout.rows > ROWS_BETWEEN_FLUSHES * shape.teams * parts and not by_run,
    )
