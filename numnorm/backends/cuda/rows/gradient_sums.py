"""The sums that gradients need, over a row in registers.

dx needs the sums of ``g = dL/dxhat`` and of ``g * xhat`` over the row. The gradients of gamma and
beta are sums of ``dy * xhat`` and of ``dy``: over the rows of each column, or over each segment.
"""

from typing import Any

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cuda.compiler.element_type import ElementType, compute_element_type
from numnorm.backends.cuda.compiler.target import (
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.threads.group_reductions import WARP, make_team_two_sums
from numnorm.backends.cuda.threads.row_columns import RowColumns, row_columns
from numnorm.backends.cuda.threads.row_parameters import Weights
from numnorm.backends.cuda.threads.row_shape import RowShape


def smem_for_sums(shape: RowShape) -> int:
    """Return the number of elements of shared memory that one pair of sums takes."""
    return 2 * max(1, shape.threads // WARP)


def make_column_gradient_sums(
    formula: Formula, element: ElementType, count: int, columns: RowColumns
) -> Any:
    """Return a device function that turns dy into g, and adds to the sums of each column.

    ``gradient_sums(grads, values, weight, bias, of_gamma, of_beta)`` returns this thread's parts
    of the sums of g and of g * xhat. `grads` are dy and become g; `values` are xhat. For a
    norm of `count` parameters it adds to `of_gamma` and `of_beta`, the sums of each column.
    """
    slots, backward, zero = columns.slots, device(formula.backward), constant(element, 0.0)

    @device
    def gradient_sums(grads, values, weight, bias, of_gamma, of_beta):
        sum_g, sum_g_xhat = zero, zero
        for k in range(slots):
            grad, xhat = grads[k], values[k]
            if count > 0:
                of_gamma[k] += grad * xhat
            if count > 1:
                of_beta[k] += grad
            g = backward(grad, xhat, weight[k], bias[k])
            sum_g += g
            sum_g_xhat += g * xhat
            grads[k] = g
        return sum_g, sum_g_xhat

    return gradient_sums


def make_segment_weight(element: ElementType, of: ElementType | None) -> Any:
    """Return a device function ``segment_weight(parameter, channel)`` of a `Parameter`."""
    if of is None:
        return device(lambda parameter, channel: parameter.number)
    load_one, compute_type = make_load_one(of), element.compute_type
    return device(lambda parameter, channel: compute_type(load_one(parameter.address, channel)))


def make_sums_in_segment(formula: Formula, element: ElementType, columns: RowColumns) -> Any:
    """Return a device function that turns dy of one segment into g, and sums over the segment.

    ``sums_in_segment(grads, values, at, left, right, gamma, beta)`` returns this thread's parts of
    the sums of g, of g * xhat, of dy * xhat and of dy, over the columns from `left` to `right`.
    """
    lanes, vectors, stride = columns.lanes, columns.vectors, columns.stride
    backward, zero = device(formula.backward), constant(element, 0.0)

    @device
    def sums_in_segment(grads, values, at, left, right, gamma, beta):
        sum_g, sum_g_xhat, of_gamma, of_beta = zero, zero, zero, zero
        for p in range(vectors):
            for j in range(lanes):
                k, here = p * lanes + j, at + p * stride + j
                if left <= here and here < right:
                    grad, xhat = grads[k], values[k]
                    of_gamma += grad * xhat
                    of_beta += grad
                    g = backward(grad, xhat, gamma, beta)
                    sum_g += g
                    sum_g_xhat += g * xhat
                    grads[k] = g
        return sum_g, sum_g_xhat, of_gamma, of_beta

    return sums_in_segment


def make_segment_gradient_sums(
    formula: Formula, element: ElementType, weights: Weights, count: int, shape: RowShape
) -> Any:
    """Return a device function that turns dy into g, and stores the sums of each segment.

    ``gradient_sums(grads, values, row, active, at, sizes, segments, channel, parameters, sums,
    smem, turn)`` returns this thread's parts of the sums of g and of g * xhat over the row.
    `segments` is the number of segments of the row, and `channel` the channel of the first. The
    reductions alternate between two halves of `smem`; `turn` is the index of the next half, and
    the function returns it too.
    """
    team, zero = shape.team, constant(element, 0.0)
    gamma_of, beta_of = (make_segment_weight(element, of) for of in (weights.gamma, weights.beta))
    sums_in_segment = make_sums_in_segment(formula, element, row_columns(element, shape))
    store_one = make_store_one(compute_element_type(element))
    team_two_sums, half = make_team_two_sums(team), smem_for_sums(shape)

    @device
    def gradient_sums(
        grads, values, row, active, at, sizes, segments, channel, parameters, sums, smem, turn
    ):  # fmt: skip
        sum_g, sum_g_xhat = zero, zero
        for r in range(segments):
            gamma, beta = gamma_of(parameters.gamma, channel), beta_of(parameters.beta, channel)
            left = r * sizes.segment
            g, g_xhat, of_gamma, of_beta = sums_in_segment(
                grads, values, at, left, left + sizes.segment, gamma, beta
            )
            sum_g += g
            sum_g_xhat += g_xhat
            of_gamma, of_beta = team_two_sums(of_gamma, of_beta, smem[turn:])
            turn = half - turn
            if active and cuda.threadIdx.x % team == 0:
                store_one(sums, row * segments + r, of_gamma)
                if count > 1:
                    store_one(sums, (sizes.rows + row) * segments + r, of_beta)
            channel = channel + 1 if channel + 1 < sizes.channels else 0
        return sum_g, sum_g_xhat, turn

    return gradient_sums
