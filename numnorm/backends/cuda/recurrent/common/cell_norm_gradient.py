"""The way back through the norm of one row of units inside a recurrent cell."""

from typing import Any

from numnorm.backends.contract.norms import Norm
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import constant, cuda, device
from numnorm.backends.cuda.statistics.saved import make_means
from numnorm.backends.cuda.threads.group_reductions import SumsOf
from numnorm.backends.cuda.threads.row_columns import row_columns
from numnorm.backends.cuda.threads.row_shape import RowShape
from numnorm.backends.formulas.norms import input_gradient


def make_norm_backward(
    norm: Norm | None, element: ElementType, shape: RowShape, sums_of: SumsOf
) -> Any:
    """Return a device function that takes the slope of a norm's result through the norm.

    ``norm_backward(grad, at, width, xhat, gain, numbers, found, coefficients, smem)``: the flows are
    ``inv_count, inv_divisor, eps_on_deviation``, and the room has two places for each warp.
    Without a norm nothing happens. All threads of a block take part.
    """
    if norm is None:
        return device(lambda grad, at, width, xhat, gain, numbers, found, coefficients, smem: None)
    columns, compute_type, zero = (
        row_columns(element, shape),
        element.compute_type,
        constant(element, 0.0),
    )
    lanes, vectors, stride, slots = columns.lanes, columns.vectors, columns.stride, columns.slots
    backward, gradient = device(norm.formula.backward), device(input_gradient)
    row_sums, means_of = sums_of(2), make_means(element)

    @device
    def norm_backward(grad, at, width, xhat, gain, numbers, found, coefficients, smem):
        sums = cuda.local.array(2, compute_type)
        sums[0], sums[1] = zero, zero
        for k in range(slots):
            # Of the formulas only AdaNorm's, whose parameters are numbers, asks for the second.
            grad[k] = backward(grad[k], xhat[k], gain[k], numbers[1])
            sums[0] += grad[k]
            sums[1] += grad[k] * xhat[k]
        row_sums(sums, smem)
        scale, factor = found[0], found[3]
        means = means_of(
            sums[0], sums[1], scale, factor, coefficients[0], coefficients[1], coefficients[2]
        )
        for p in range(vectors):
            active = at + p * stride < width
            for j in range(lanes):
                k = p * lanes + j
                new_grad = gradient(grad[k], xhat[k], means[0], means[1], factor) * scale
                # What is not there must not count in the sums over the gates.
                grad[k] = new_grad if active else zero

    return norm_backward
