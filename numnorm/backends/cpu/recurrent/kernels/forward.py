"""The forward kernel of a normalized recurrent cell: all steps of some of the batch's rows.

Rows of a batch never meet, so a thread takes its rows through all steps. The rows of a step lie
one after the other, those of longer sequences first: a step's rows are the first of the one
before it.
"""

import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.contract.recurrent import CellSpec, PackedSteps
from numnorm.backends.cpu.compiler.jit import Kernel, inlined
from numnorm.backends.cpu.matmul.micro_kernel import make_matmul
from numnorm.backends.cpu.memory.grouped_kernel import make_grouped_kernel
from numnorm.backends.cpu.recurrent.common.steps import before_step, rows_of_step
from numnorm.backends.cpu.recurrent.kernels.arguments import (
    Factors,
    Parameters,
    Place,
    Saved,
    Scalings,
    ZoneoutMasks,
)
from numnorm.backends.cpu.recurrent.kernels.kind import CellKind
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part


def _make_multiply(accumulate: bool, element_type: ElementType) -> Callable[..., None]:
    """Return a compiled function of one step's rows: their products with x and with the state.

    Those with x are left out if x has no rows.
    """
    lanes = element_type.lanes
    matmul = make_matmul(lanes, accumulate=accumulate)

    @inlined
    def multiply(has_x, left, sizes, sites, right, results, at, rows, wide):
        if accumulate and has_x:
            results[0][at[0] * wide : (at[0] + rows) * wide] = 0
        for k in range(0 if has_x else 1, 2):
            # One product for both: to compile another takes a second.
            a, size, place = (
                (left[0], sizes[0], sites[0]) if k == 0 else (left[1], sizes[1], sites[1])
            )
            b, c, to = (right[0], results[0], at[0]) if k == 0 else (right[1], results[1], at[1])
            matmul(
                a, place * size, size, 1, rows, b, 0, size * lanes, size, c, to * wide, wide, wide
            )

    return multiply


@functools.cache
def make_forward(kind: CellKind, spec: CellSpec, element_type: ElementType) -> Kernel:
    """Return the forward kernel of a cell; `scratch (batch, H)` holds a gate of each row."""
    each, gates = kind.norms_each_product(spec), kind.gates
    multiply = _make_multiply(not each, element_type)
    first_half, second_half = kind.make_row(spec, element_type)
    # Where the products with x go.
    of_x = inlined((lambda z, xp: xp) if each else (lambda z, xp: z))

    def kernel(
        steps: PackedSteps,
        factors: Factors,
        parameters: Parameters,
        saved: Saved,
        scalings: Scalings,
        masks: ZoneoutMasks,
        scratch: Any,
        parts: Any,
        first: Any,
        last: Any,
    ) -> None:
        offsets, batch_sizes = steps.offsets, steps.batch_sizes
        x, z, xp, state = factors.x, saved.z, saved.xp, saved.state
        batch, width = batch_sizes[0], state.shape[1]
        left, right = first * batch // parts, last * batch // parts
        from_x = of_x(z, xp)
        left_hand, sizes = (x.reshape(-1), state.reshape(-1)), (x.shape[1], width)
        right_hand = factors.panels_x, factors.panels_h
        results = from_x.reshape(-1), z.reshape(-1)
        x_kept, z_kept = from_x.shape[0] > batch, z.shape[0] > batch
        for s in range(offsets.size):
            rows = rows_of_step(batch_sizes, s, left, right)
            if rows <= 0:
                break
            start, before = offsets[s] + left, before_step(offsets, s, batch) + left
            at, x_at = start if z_kept else left, start if x_kept else left
            multiply(
                x.shape[0] > 0, left_hand, sizes, (start, before), right_hand, results,
                (x_at, at), rows, gates * width,
            )  # fmt: skip
            for r in range(rows):
                place = Place(start + r, left + r, before + r, batch)
                first_half(
                    z[at + r], part(xp, x_at + r), saved, parameters, scalings, masks,
                    scratch[left + r], place,
                )  # fmt: skip
            for r in range(rows):
                place = Place(start + r, left + r, before + r, batch)
                second_half(
                    z[at + r], part(xp, x_at + r), saved, parameters, scalings, masks,
                    scratch[left + r], place,
                )  # fmt: skip

    return make_grouped_kernel(f"{kind.name}_forward.{spec.name}.{element_type.name}", kernel)
