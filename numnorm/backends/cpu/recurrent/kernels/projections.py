"""The products of an LSTM whose state is a projection of its outputs (Sak et al. 2014).

The weights of the state and of the projection are packed, one after the other.
"""

from collections.abc import Callable

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.borrowed import as_flat
from numnorm.backends.cpu.recurrent.matmul.micro_kernel import make_matmul
from numnorm.backends.cpu.simd.element_type import ElementType


def make_project(element_type: ElementType) -> Callable[..., None]:
    """Return a compiled ``project(saved, panels, batch, start, left, rows)`` of a step.

    It projects the outputs into the states. The first row is `start` of all steps and `left` of the
    batch. `panels` are the transposed weights.
    """
    lanes, matmul = element_type.lanes, make_matmul(element_type.lanes, accumulate=False)

    @inlined
    def project(saved, panels, batch, start, left, rows):
        outputs, state = saved.outputs, saved.state
        at = start if outputs.shape[0] > batch else left
        units, width = outputs.shape[1], state.shape[1]
        first = -(-4 * units // lanes) * width * lanes
        matmul(
            as_flat(outputs), at * units, units, 1, rows, panels, first, units * lanes, units,
            as_flat(state), (batch + start) * width, width, width,
        )  # fmt: skip

    return project


def make_project_gradient(element_type: ElementType) -> Callable[..., None]:
    """Return a compiled ``gradient(gradients, result, panels, start, left, to, rows)`` of a step.

    It stores the gradients of the states in `Gradients.projected`, from the row `to` on, and those
    of the outputs in the `result`, from the row `left` on. `panels` are the weights.
    """
    lanes, matmul = element_type.lanes, make_matmul(element_type.lanes, accumulate=False)

    @inlined
    def gradient(gradients, result, panels, start, left, to, rows):
        dy, dh, projected = gradients.dy, gradients.dh, gradients.projected
        width, units = projected.shape[1], result.shape[1]
        for r in range(rows):
            for j in range(width):
                projected[to + r, j] = dy[start + r, j] + dh[left + r, j]
        if rows > 0:
            matmul(
                as_flat(projected), to * width, width, 1, rows,
                panels, -(-width // lanes) * 4 * units * lanes, width * lanes, width,
                as_flat(result), left * units, units, units,
            )  # fmt: skip

    return gradient
