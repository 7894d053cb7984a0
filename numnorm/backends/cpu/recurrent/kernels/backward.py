"""The backward kernel of all recurrent cells: it takes some batch rows backward through the steps.

The gates are recomputed from their inputs, which is faster than to store and load them. The
parameters' gradients are summed for groups of batch rows in the compute type and flushed to
float64 every few steps. The groups depend on the shape alone, so the bytes of the result do not
depend on the threads.
"""

import functools
from typing import Any

from numnorm.backends.contract.recurrent import CellSpec
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.memory.borrowed import as_flat
from numnorm.backends.cpu.memory.grouped_kernel import make_grouped_kernel
from numnorm.backends.cpu.recurrent.common.dropout import make_drop
from numnorm.backends.cpu.recurrent.common.steps import (
    before_step,
    flush_groups,
    rows_of_groups,
    rows_of_step,
    to_next,
)
from numnorm.backends.cpu.recurrent.kernels.arguments import (
    BackwardRowIndex,
    GradientCoefficients,
    Gradients,
    Masks,
    Parameters,
    Saved,
    Scratch,
    StepRange,
    Sums,
)
from numnorm.backends.cpu.recurrent.kernels.kind import CellKind
from numnorm.backends.cpu.recurrent.kernels.projections import make_project_gradient
from numnorm.backends.cpu.recurrent.kernels.reset_products import make_reset_gradient
from numnorm.backends.cpu.recurrent.matmul.micro_kernel import make_matmul
from numnorm.backends.cpu.simd.element_type import ElementType


@functools.cache
def make_backward(kind: CellKind, spec: CellSpec, element_type: ElementType) -> Kernel:
    """Return the backward kernel of a cell.

    It runs the steps of a range for the groups of batch rows of the parts from `first` to `last`.
    `panels` is W_h, packed for `make_matmul`; the other arguments are groups of `arguments`, whose
    members are passed one after the other.
    """
    lanes, gates = element_type.lanes, kind.gates
    drops, accumulates = spec.recurrent_dropout, kind.accumulates(spec)
    matmul = make_matmul(lanes, accumulate=accumulates and not drops)
    drop_gradient = make_drop(element_type, accumulate=accumulates)
    row, resets = kind.make_row_gradient(spec, element_type), kind.resets_before(spec)
    projected, project_gradient = kind.projects(spec), make_project_gradient(element_type)
    second = kind.make_second_gradient(spec, element_type)
    reset_gradient = make_reset_gradient(second, element_type)

    def kernel(
        steps: StepRange,
        panels: Any,
        parameters: Parameters,
        saved: Saved,
        coefficients: GradientCoefficients,
        masks: Masks,
        gradients: Gradients,
        scratch: Scratch,
        sums: Sums,
        parts: Any,
        first: Any,
        last: Any,
    ) -> None:
        offsets, begin, dh = steps.offsets, steps.begin, gradients.dh
        (batch, width), groups, size = dh.shape, sums.sums.shape[0], sums.size
        left, right = rows_of_groups(first, last, groups, parts, size, batch)
        wide = gradients.dz.shape[1] if projected else gates * width
        products = as_flat(gradients.dz)
        depth, states = wide - width if resets else wide, as_flat(scratch.cell if drops else dh)
        between = max(1, tuning.ROWS_BETWEEN_FLUSHES // size)
        for s in range(steps.end - 1, begin - 1, -1):
            rows = rows_of_step(steps.batch_sizes, s, left, right)
            start, before = offsets[s] + left, before_step(offsets, s, batch) + left
            to = start - offsets[begin]
            if projected:
                project_gradient(gradients, scratch.outputs, panels, start, left, to, rows)
            for r in range(rows):
                distance = to_next(offsets, begin, s, r, rows)
                index = BackwardRowIndex(start + r, left + r, before + r, to + r, left, distance)
                row(
                    saved, parameters, coefficients, masks, gradients, scratch,
                    sums.sums[(left + r) // size], index,
                )  # fmt: skip
            if resets:
                reset_gradient(
                    saved, parameters, coefficients, masks, gradients, scratch, sums, panels,
                    (start, left, before, to), rows,
                )  # fmt: skip
            if rows > 0:
                matmul(
                    products, to * wide, wide, 1, rows, panels, 0, depth * lanes, depth,
                    states, left * width, width, width,
                )  # fmt: skip
            if drops:
                drop_gradient(scratch.cell, masks.dropout, dh, left, left, rows)
            if s % between == 0:
                flush_groups(sums.sums, sums.totals, left, right, size)

    return make_grouped_kernel(f"{kind.name}_backward.{spec.name}.{element_type.name}", kernel)
