"""The backward kernel of a normalized recurrent cell: all steps of some rows, in reverse.

The gates are computed again from what enters them: that takes less time than to store and load
them. What the parameters get is summed up for a few rows of the batch at a time, in the working
type, and flushed to float64 every few steps: those rows follow from the shape alone.
"""

import functools
from typing import Any

from numnorm.backends.contract.recurrent import CellSpec
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.matmul.micro_kernel import make_matmul
from numnorm.backends.cpu.memory.grouped_kernel import make_grouped_kernel
from numnorm.backends.cpu.recurrent.common.steps import (
    before_step,
    flush_groups,
    rows_of_groups,
    rows_of_step,
    to_next,
)
from numnorm.backends.cpu.recurrent.kernels.arguments import (
    BackwardPlace,
    GradientCoefficients,
    Gradients,
    Parameters,
    Saved,
    Scratch,
    StepRange,
    Sums,
    ZoneoutMasks,
)
from numnorm.backends.cpu.recurrent.kernels.kind import CellKind
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.statistics.accumulators import ROWS_BETWEEN_FLUSHES


@functools.cache
def make_backward(kind: CellKind, spec: CellSpec, element_type: ElementType) -> Kernel:
    """Return the backward kernel of a cell; `panels` is W_h packed, `parts` are of the groups."""
    lanes, gates = element_type.lanes, kind.gates
    matmul = make_matmul(lanes, accumulate=kind.accumulates(spec))
    row = kind.make_row_gradient(spec, element_type)

    def kernel(
        steps: StepRange,
        panels: Any,
        parameters: Parameters,
        saved: Saved,
        coefficients: GradientCoefficients,
        masks: ZoneoutMasks,
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
        wide, products, states = gates * width, gradients.dz.reshape(-1), dh.reshape(-1)
        between = max(1, ROWS_BETWEEN_FLUSHES // size)
        for s in range(steps.end - 1, begin - 1, -1):
            rows = rows_of_step(steps.batch_sizes, s, left, right)
            start, before = offsets[s] + left, before_step(offsets, s, batch) + left
            to = start - offsets[begin]
            for r in range(rows):
                distance = to_next(offsets, begin, s, r, rows)
                place = BackwardPlace(start + r, left + r, before + r, to + r, left, distance)
                row(
                    saved, parameters, coefficients, masks, gradients, scratch,
                    sums.sums[(left + r) // size], place,
                )  # fmt: skip
            if rows > 0:
                matmul(
                    products, to * wide, wide, 1, rows, panels, 0, wide * lanes, wide,
                    states, left * width, width, width,
                )  # fmt: skip
            if s % between == 0:
                flush_groups(sums.sums, sums.totals, left, right, size)

    return make_grouped_kernel(f"{kind.name}_backward.{spec.name}.{element_type.name}", kernel)
