"""The backward kernel of wide rows by columns: it reads the coefficients of each row."""

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import Kernel, constant, cuda
from numnorm.backends.cuda.rows.arguments import SIZES, SUMS, parameters_kind
from numnorm.backends.cuda.rows.backward_coefficients import COEFFICIENTS, make_read_coefficients
from numnorm.backends.cuda.rows.backward_kernel import make_normalize, make_write_gradient
from numnorm.backends.cuda.rows.gradient_sums import make_column_gradient_sums
from numnorm.backends.cuda.rows.parameter_sums import ROWS_BETWEEN_FLUSHES, make_flush
from numnorm.backends.cuda.threads.row_columns import make_read_columns, row_columns
from numnorm.backends.cuda.threads.row_parameters import Weights, make_first_weight, make_weight
from numnorm.backends.cuda.threads.row_shape import RowShape


def make_row_backward_columns(
    formula: Formula, element: ElementType, weights: Weights, count: int, shape: RowShape
) -> Kernel:
    """Return the kernel that stores dx, and sums for `count` parameters.

    It has a block for each strip of columns of each part of the rows; the blocks of a part are
    neighbours. It takes the addresses of dy and x; `RowParameters`; the address of the table of
    coefficients that `make_row_backward_coefficients` stores; the address of dx, which may be dy
    or x; `PartialSums` as for `make_row_backward`; `RowSizes`; and the number of parts.
    """
    columns, zero = row_columns(element, shape), constant(element, 0.0)
    compute_type = element.compute_type
    lanes, slots, reach = columns.lanes, columns.slots, columns.reach
    weight_of = make_weight(element, weights.gamma, columns, shared=False)
    bias_of = make_weight(element, weights.beta, columns, shared=False)
    first_weight = make_first_weight(shared=False)
    read_columns, normalize = make_read_columns(element, columns), make_normalize(element, columns)
    gradient_sums = make_column_gradient_sums(formula, element, count, columns)
    write_gradient = make_write_gradient(element, columns)
    read_coefficients, flush = make_read_coefficients(element), make_flush(element, shape)

    def kernel(dy, x, parameters, coefficients, dx, partials, sizes, parts):
        values = cuda.local.array(slots, compute_type)
        grads = cuda.local.array(slots, compute_type)
        weight = cuda.local.array(slots, compute_type)
        bias = cuda.local.array(slots, compute_type)
        of_gamma = cuda.local.array(slots, compute_type)
        of_beta = cuda.local.array(slots, compute_type)
        buffer = cuda.local.array(COEFFICIENTS, compute_type)
        rows, width, _, _ = sizes
        strips = (width + reach - 1) // reach
        row, at = cuda.blockIdx.x // strips, cuda.blockIdx.x % strips * reach
        at += cuda.threadIdx.x * lanes
        # All rows of a part have one channel.
        index, first_of_weights, fresh = row * width, first_weight(row, sizes), True
        weight_of(parameters.gamma, first_of_weights, at, sizes, weight)
        bias_of(parameters.beta, first_of_weights, at, sizes, bias)
        while fresh or row < rows:
            for k in range(slots):
                of_gamma[k], of_beta[k] = zero, zero
            stop = min(row + ROWS_BETWEEN_FLUSHES * parts, rows)
            while row < stop:
                first = row * width
                read_columns(x, first, at, width, values)
                read_columns(dy, first, at, width, grads)
                statistics, means = read_coefficients(coefficients, row, buffer)
                normalize(values, at, width, statistics)
                gradient_sums(grads, values, weight, bias, of_gamma, of_beta)
                scale, factor = statistics[0], statistics[3]
                write_gradient(dx, first, at, width, grads, values, means, scale, factor)
                row += parts
            last = row >= rows
            flush(of_gamma, at, width, index, fresh, last, partials, None)
            if count > 1:
                flush(of_beta, at, width, index + parts * width, fresh, last, partials, None)
            fresh = False

    arrays = "address", "address", parameters_kind(element), "address", "address", SUMS
    return Kernel(kernel, (*arrays, SIZES, "index"), shape.threads)
