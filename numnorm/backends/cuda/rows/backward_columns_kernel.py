"""The gradients of wide rows by columns, from what `make_row_backward_terms` has left of them."""

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import Kernel, constant, cuda
from numnorm.backends.cuda.rows.backward_coefficients import TERMS, make_read_terms
from numnorm.backends.cuda.rows.backward_kernel import make_normalize, make_write_gradient
from numnorm.backends.cuda.rows.gradient_sums import make_column_gradient_sums
from numnorm.backends.cuda.rows.parameter_sums import ROWS_BETWEEN_FLUSHES, make_flush
from numnorm.backends.cuda.threads.row_columns import (
    make_column_weight,
    make_read_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_parameters import Weights
from numnorm.backends.cuda.threads.row_shape import RowShape


def make_row_backward_columns(
    formula: Formula, element: Element, weights: Weights, parameters: int, shape: RowShape
) -> Kernel:
    """Return the kernel of a strip of columns, as wide as a block's threads reach.

    Launched with a block for each part and strip, the strips of a part beside each other, it takes
    ``dy, x, gamma, beta, terms, dx, sums, rests`` as addresses; ``rows, width, channels, parts``;
    and the numbers ``gamma, beta``. Sums, rests and parts are those of `make_row_backward`, and dx
    may be dy or x.
    """
    columns, working, zero = row_columns(element, shape), element.working, constant(element, 0.0)
    lanes, slots, reach = columns.lanes, columns.slots, columns.reach
    weight_of = make_column_weight(element, weights.gamma, columns)
    bias_of = make_column_weight(element, weights.beta, columns)
    read_columns, normalize = make_read_columns(element, columns), make_normalize(element, columns)
    gradient_sums = make_column_gradient_sums(formula, element, parameters, columns)
    write_gradient, read_terms = make_write_gradient(element, columns), make_read_terms(element)
    flush = make_flush(element, shape)

    def kernel(
        dy, x, gamma, beta, terms, dx, sums, rests, rows, width, channels, parts,
        gamma_number, beta_number,
    ):  # fmt: skip
        values, slopes = cuda.local.array(slots, working), cuda.local.array(slots, working)
        weight, bias = cuda.local.array(slots, working), cuda.local.array(slots, working)
        of_gamma, of_beta = cuda.local.array(slots, working), cuda.local.array(slots, working)
        places = cuda.local.array(TERMS, working)
        strips = (width + reach - 1) // reach
        row, at = cuda.blockIdx.x // strips, cuda.blockIdx.x % strips * reach
        at += cuda.threadIdx.x * lanes
        # A part has rows of one channel alone.
        place, channel, fresh = row * width, row % channels if channels > 1 else 0, True
        weight_of(gamma, gamma_number, channel * width, at, width, weight)
        bias_of(beta, beta_number, channel * width, at, width, bias)
        while fresh or row < rows:
            for k in range(slots):
                of_gamma[k], of_beta[k] = zero, zero
            stop = min(row + ROWS_BETWEEN_FLUSHES * parts, rows)
            while row < stop:
                first = row * width
                read_columns(x, first, at, width, values)
                read_columns(dy, first, at, width, slopes)
                found, means = read_terms(terms, row, places)
                normalize(values, at, width, found)
                gradient_sums(slopes, values, weight, bias, of_gamma, of_beta)
                write_gradient(dx, first, at, width, slopes, values, means, found[0], found[3])
                row += parts
            last = row >= rows
            flush(of_gamma, at, width, place, fresh, last, sums, rests, None)
            if parameters > 1:
                flush(of_beta, at, width, place + parts * width, fresh, last, sums, rests, None)
            fresh = False

    numbers = (element.working_name,) * 2
    return Kernel(kernel, ("address",) * 8 + ("index",) * 4 + numbers, shape.threads)
