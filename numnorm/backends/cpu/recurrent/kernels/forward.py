"""The forward kernel of all recurrent cells: it takes some batch rows through all steps.

The rows of a batch are independent, so threads never synchronize between steps. A step's rows are
sorted by sequence length, longest first: they are the first rows of the previous step.
"""

import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.contract.recurrent import CellSpec, PackedSteps
from numnorm.backends.cpu.compiler.jit import Kernel, inlined
from numnorm.backends.cpu.memory.borrowed import as_flat
from numnorm.backends.cpu.memory.grouped_kernel import make_grouped_kernel
from numnorm.backends.cpu.recurrent.common.dropout import make_drop
from numnorm.backends.cpu.recurrent.common.steps import before_step, rows_of_step
from numnorm.backends.cpu.recurrent.kernels.arguments import (
    Factors,
    Masks,
    Parameters,
    RowIndex,
    Saved,
    Scalings,
)
from numnorm.backends.cpu.recurrent.kernels.kind import CellKind
from numnorm.backends.cpu.recurrent.kernels.projections import make_project
from numnorm.backends.cpu.recurrent.kernels.reset_products import make_reset_product
from numnorm.backends.cpu.recurrent.matmul.micro_kernel import make_matmul
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part


def _make_multiply(
    accumulate: bool, resets: bool, element_type: ElementType
) -> Callable[..., None]:
    """Return a compiled function that multiplies one step's rows of x and of the state.

    ``multiply(has_x, left, depths, left_rows, right, results, result_rows, rows, wide)`` takes
    pairs, x first: flat left-hand matrices, their numbers of columns and first rows, packed
    weights, flat results of `wide` columns and their first rows. It multiplies x if `has_x`. If the
    cell `resets` the state, the last columns of the product with the state are left out.
    """
    lanes = element_type.lanes
    matmul = make_matmul(lanes, accumulate=accumulate)

    @inlined
    def multiply(has_x, left, depths, left_rows, right, results, result_rows, rows, wide):
        if accumulate and has_x:
            results[0][result_rows[0] * wide : (result_rows[0] + rows) * wide] = 0
        for k in range(0 if has_x else 1, 2):
            # A loop, so that the matmul is inlined and compiled once.
            a, depth, at = (
                (left[0], depths[0], left_rows[0]) if k == 0 else (left[1], depths[1], left_rows[1])
            )
            b, c, to = (
                (right[0], results[0], result_rows[0]) if k == 0
                else (right[1], results[1], result_rows[1])
            )  # fmt: skip
            columns = wide // 3 * 2 if resets and k == 1 else wide
            matmul(
                a, at * depth, depth, 1, rows, b, 0, depth * lanes, depth,
                c, to * wide, wide, columns,
            )  # fmt: skip

    return multiply


@functools.cache
def make_forward(kind: CellKind, spec: CellSpec, element_type: ElementType) -> Kernel:
    """Return the forward kernel of a cell.

    It runs all steps for the batch rows of the parts from `first` to `last` of `parts`. `scratch`
    (batch, H) is what the first half of a row hands to the second. The other arguments are groups
    of `arguments`, whose members are passed one after the other.
    """
    each, gates = kind.norms_each_product(spec), kind.gates
    resets, reset_product = kind.resets_before(spec), make_reset_product(element_type)
    multiply = _make_multiply(not each, resets, element_type)
    drops, drop = spec.recurrent_dropout, make_drop(element_type)
    projected, project = kind.projects(spec), make_project(element_type)
    first_half, second_half = kind.make_row(spec, element_type)

    def kernel(
        steps: PackedSteps,
        factors: Factors,
        parameters: Parameters,
        saved: Saved,
        scalings: Scalings,
        masks: Masks,
        scratch: Any,
        parts: Any,
        first: Any,
        last: Any,
    ) -> None:
        offsets, batch_sizes = steps.offsets, steps.batch_sizes
        x, z, xp, state = factors.x, saved.z, saved.xp, saved.state
        batch, width = batch_sizes[0], state.shape[1]
        wide = z.shape[1] if projected else gates * width
        left, right = first * batch // parts, last * batch // parts
        from_x, operand = xp if each else z, saved.dropped if drops else state
        left_hand, depths = (as_flat(x), as_flat(operand)), (x.shape[1], width)
        right_hand = factors.panels_x, factors.panels_h
        results = as_flat(from_x), as_flat(z)
        x_saved, z_saved = from_x.shape[0] > batch, z.shape[0] > batch
        for s in range(offsets.size):
            rows = rows_of_step(batch_sizes, s, left, right)
            if rows <= 0:
                break
            start, before = offsets[s] + left, before_step(offsets, s, batch) + left
            at, x_at = start if z_saved else left, start if x_saved else left
            multiply(
                x.shape[0] > 0, left_hand, depths, (start, before), right_hand, results,
                (x_at, at), rows, wide,
            )  # fmt: skip
            for r in range(rows):
                index = RowIndex(start + r, left + r, before + r, batch)
                first_half(
                    z[at + r], part(xp, x_at + r), saved, parameters, scalings, masks,
                    scratch[left + r], index,
                )  # fmt: skip
            if resets:
                reset_product(saved, right_hand[1], at, rows)
            for r in range(rows):
                index = RowIndex(start + r, left + r, before + r, batch)
                second_half(
                    z[at + r], part(xp, x_at + r), saved, parameters, scalings, masks,
                    scratch[left + r], index,
                )  # fmt: skip
            if projected:
                project(saved, right_hand[1], batch, start, left, rows)
            if drops:
                drop(state, masks.dropout, saved.dropped, batch + start, left, rows)

    return make_grouped_kernel(f"{kind.name}_forward.{spec.name}.{element_type.name}", kernel)
