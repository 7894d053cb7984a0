"""The gradient of the norm of one row of units inside a recurrent cell."""

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
    """Return a device function from the gradient of a norm's result to its input's, in place.

    ``norm_backward(grad, at, width, xhat, gain, numbers, stats, coefficients, smem)``: `grad`,
    `xhat` (the normalized values) and `gain` (gamma) are the thread's units, `numbers` is
    `AdaNumbers`, `stats` the part's statistics, `coefficients` are the gradient's; `smem` has two
    numbers for each warp. Without a norm it does nothing. All threads of a block must call it.
    """
    if norm is None:
        return device(lambda grad, at, width, xhat, gain, numbers, stats, coefficients, smem: None)
    columns, zero = row_columns(element, shape), constant(element, 0.0)
    compute_type = element.compute_type
    lanes, vectors, stride, slots = columns.lanes, columns.vectors, columns.stride, columns.slots
    backward, gradient = device(norm.formula.backward), device(input_gradient)
    row_sums, means_of = sums_of(2), make_means(element)

    @device
    def norm_backward(grad, at, width, xhat, gain, numbers, stats, coefficients, smem):
        sums = cuda.local.array(2, compute_type)
        sums[0], sums[1] = zero, zero
        for k in range(slots):
            # Only AdaNorm's formula uses numbers[1]; the other norms have arrays.
            grad[k] = backward(grad[k], xhat[k], gain[k], numbers[1])
            sums[0] += grad[k]
            sums[1] += grad[k] * xhat[k]
        row_sums(sums, smem)
        scale, factor = stats[0], stats[3]
        inv_count, inv_divisor, eps_on_deviation = coefficients
        means = means_of(sums[0], sums[1], scale, factor, inv_count, inv_divisor, eps_on_deviation)
        for p in range(vectors):
            active = at + p * stride < width
            for j in range(lanes):
                k = p * lanes + j
                new_grad = gradient(grad[k], xhat[k], means[0], means[1], factor) * scale
                # The sums over the gates need 0 past the row's end.
                grad[k] = new_grad if active else zero

    return norm_backward
