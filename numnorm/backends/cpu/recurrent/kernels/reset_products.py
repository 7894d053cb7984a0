"""The products of a GRU whose reset gate scales the state before the candidate's product.

A row of z holds the product of the gates z and r, 2H columns, and that of the candidate, H columns.
The weights of both are packed, one after the other.
"""

from collections.abc import Callable
from typing import Any

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.borrowed import as_flat
from numnorm.backends.cpu.recurrent.kernels.arguments import BackwardRowIndex
from numnorm.backends.cpu.recurrent.matmul.micro_kernel import make_matmul
from numnorm.backends.cpu.simd.element_type import ElementType


def make_reset_product(element_type: ElementType) -> Callable[..., None]:
    """Return a compiled ``product(saved, panels, at, rows)`` of the candidate, from the row `at`.

    `panels` are the transposed weights of the state.
    """
    lanes, matmul = element_type.lanes, make_matmul(element_type.lanes, accumulate=False)

    @inlined
    def product(saved, panels, at, rows):
        reset, z = saved.cell, saved.z
        width, wide = reset.shape[1], z.shape[1]
        gates, panel = wide - width, width * lanes
        first = -(-gates // lanes) * panel
        matmul(
            as_flat(reset), at * width, width, 1, rows, panels, first, panel, width,
            as_flat(z), at * wide + gates, wide, width,
        )  # fmt: skip

    return product


def make_reset_gradient(second: Any, element_type: ElementType) -> Callable[..., None]:
    """Return a compiled gradient of the candidate's product and of what precedes it, for a step.

    ``gradient(saved, parameters, coefficients, masks, gradients, scratch, sums, panels, at, rows)``
    stores the gradients of the reset states in `scratch.normalized`, and then calls `second`, as
    `CellKind.make_second_gradient` returns it, for each row. `at` is a tuple: the step's first row,
    in all steps, in the batch, before the step, and in the step range. `panels` are the weights.
    """
    lanes, matmul = element_type.lanes, make_matmul(element_type.lanes, accumulate=False)

    @inlined
    def gradient(
        saved, parameters, coefficients, masks, gradients, scratch, sums, panels, at, rows
    ):
        start, left, before, to = at
        dz, result = gradients.dz, scratch.normalized
        width, wide = result.shape[1], dz.shape[1]
        gates = wide - width
        if rows > 0:
            matmul(
                as_flat(dz), to * wide + gates, wide, 1, rows,
                panels, -(-width // lanes) * gates * lanes, width * lanes, width,
                as_flat(result), left * width, width, width,
            )  # fmt: skip
        for r in range(rows):
            index = BackwardRowIndex(start + r, left + r, before + r, to + r, left, 0)
            second(
                saved, parameters, coefficients, masks, gradients, scratch,
                sums.sums[(left + r) // sums.size], index,
            )  # fmt: skip

    return gradient
