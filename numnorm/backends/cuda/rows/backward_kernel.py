"""The backward kernels of all row norms, for rows that fit the registers of a team.

dx needs the sums of ``g = dL/dxhat`` and of ``g * xhat`` over the row. The gradients of gamma and
beta are sums of ``dy * xhat`` and of ``dy``: over the rows of each column, or over each segment.
"""

from typing import Any

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cuda.compiler.element_type import ElementType, compute_element_type
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.rows.arguments import (
    SIZES,
    STATISTICS,
    SUMS,
    parameters_kind,
    scaling_kind,
)
from numnorm.backends.cuda.rows.parameter_sums import (
    ROWS_BETWEEN_FLUSHES,
    make_flush,
    smem_for_folding,
)
from numnorm.backends.cuda.statistics.row_statistics import (
    make_means,
    make_saved_statistics,
    normalized,
)
from numnorm.backends.cuda.threads.reductions import WARP, make_team_two_sums
from numnorm.backends.cuda.threads.row_columns import (
    RowColumns,
    Weights,
    make_read_columns,
    make_weight,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape
from numnorm.backends.formulas.norms import input_gradient

# Sums over a row in registers


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
    slots = columns.slots
    backward = device(formula.backward)
    zero = constant(element, 0.0)

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
    load_one = make_load_one(of)
    compute_type = element.compute_type
    return device(lambda parameter, channel: compute_type(load_one(parameter.address, channel)))


def make_sums_in_segment(formula: Formula, element: ElementType, columns: RowColumns) -> Any:
    """Return a device function that turns dy of one segment into g, and sums over the segment.

    ``sums_in_segment(grads, values, at, left, right, gamma, beta)`` returns this thread's parts of
    the sums of g, of g * xhat, of dy * xhat and of dy, over the columns from `left` to `right`.
    """
    lanes, vectors, stride = columns.lanes, columns.vectors, columns.stride
    backward = device(formula.backward)
    zero = constant(element, 0.0)

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
    team = shape.team
    zero = constant(element, 0.0)
    gamma_of, beta_of = (make_segment_weight(element, of) for of in (weights.gamma, weights.beta))
    sums_in_segment = make_sums_in_segment(formula, element, row_columns(element, shape))
    store_one = make_store_one(compute_element_type(element))
    team_two_sums = make_team_two_sums(team)
    half = smem_for_sums(shape)

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


# Kernels


def backward_parameters(element: ElementType) -> tuple[Any, ...]:
    """Return the kinds of the parameters of a kernel that stores dx of rows.

    They are the addresses of dy and x; `SavedStatistics`; `RowParameters`; the address of dx,
    which may be dy or x; the address of what is added to dx, 0 for nothing; `PartialSums`;
    `RowSizes`; the number of parts of the rows; and `RowScaling`.
    """
    groups = STATISTICS, parameters_kind(element), "address", "address", SUMS, SIZES
    return "address", "address", *groups, "index", scaling_kind(element)


def make_normalize(element: ElementType, columns: RowColumns) -> Any:
    """Return a device function ``normalize(values, at, limit, coefficients)``: x becomes xhat.

    `coefficients` are what `make_saved_statistics` returns. Columns from `limit` on become 0.
    """
    lanes, vectors, stride = columns.lanes, columns.vectors, columns.stride
    zero = constant(element, 0.0)

    @device
    def normalize(values, at, limit, coefficients):
        scale, mean_hi, mean_lo, factor = coefficients
        for p in range(vectors):
            active = at + p * stride < limit
            for j in range(lanes):
                k = p * lanes + j
                # A column behind the end of the row could get an infinite xhat.
                values[k] = (
                    normalized(values[k] * scale, mean_hi, mean_lo, factor) if active else zero
                )

    return normalize


def _make_read_normalized(
    formula: Formula, element: ElementType, saved: ElementType, shape: RowShape
) -> Any:
    """Return a device function that reads a row: xhat into `values`, dy into `grads`.

    ``read_normalized(dy, x, saved, row, width, limit, at, values, grads)`` returns
    ``scale, factor``, whose product is rstd. Columns from `limit` on become 0.
    """
    columns = row_columns(element, shape)
    read_columns, normalize = make_read_columns(element, columns), make_normalize(element, columns)
    statistics = make_saved_statistics(formula, element, saved)

    @device
    def read_normalized(dy, x, saved, row, width, limit, at, values, grads):
        read_columns(x, row * width, at, limit, values)
        read_columns(dy, row * width, at, limit, grads)
        coefficients = statistics(saved.mean, saved.rstd, row)
        normalize(values, at, limit, coefficients)
        return coefficients[0], coefficients[3]

    return read_normalized


def make_row_means(element: ElementType) -> Any:
    """Return `make_means`' function, ``means(sum_g, sum_g_xhat, scale, factor, scaling)``."""
    means_of = make_means(element)

    @device
    def means(sum_g, sum_g_xhat, scale, factor, scaling):
        inv_count, inv_divisor, eps_on_deviation = scaling
        return means_of(sum_g, sum_g_xhat, scale, factor, inv_count, inv_divisor, eps_on_deviation)

    return means


def make_write_gradient(element: ElementType, columns: RowColumns, *, adds: bool = False) -> Any:
    """Return a device function that stores dx of a row from g and xhat in registers.

    ``write_gradient(dx, dtotal, first, at, limit, grads, values, means, scale, factor)``. If it
    `adds`, it adds the elements at the address `dtotal` to dx.
    """
    read_columns = make_read_columns(element, columns)
    write_columns = make_write_columns(element, columns)
    gradient = device(input_gradient)
    slots = columns.slots

    @device
    def write_gradient(dx, dtotal, first, at, limit, grads, values, means, scale, factor):
        for k in range(slots):
            grad = gradient(grads[k], values[k], means[0], means[1], factor)
            values[k] = grad * scale
        if adds:
            read_columns(dtotal, first, at, limit, grads)
            for k in range(slots):
                values[k] += grads[k]
        write_columns(dx, first, at, limit, values)

    return write_gradient


def make_row_backward(
    formula: Formula,
    element: ElementType,
    saved: ElementType,
    weights: Weights,
    count: int,
    shape: RowShape,
    *,
    adds: bool = False,
) -> Kernel:
    """Return the kernel of rows that fit the registers of a team.

    It takes what `backward_parameters` names, and has a block for each part of the rows. The norm
    has `count` parameters. Only rows whose segments share no parameters are added to.

    If segments share parameters, the kernel stores the sums of each segment in ``sums (parameters,
    rows * segments)``. Otherwise it stores the sums of each part in ``sums (parameters, parts,
    width)``. The number of parts is then a multiple of the number of channels. If a team has more
    than `ROWS_BETWEEN_FLUSHES` rows, the kernel also needs the table ``lost``, of the same size.
    The tables have the compute type.
    """
    if weights.shared and count:
        return _of_segments(formula, element, saved, weights, count, shape)
    return _of_columns(formula, element, saved, weights, count, shape, adds=adds)


def _make_gradient_of_row(
    formula: Formula,
    element: ElementType,
    saved: ElementType,
    count: int,
    shape: RowShape,
    *,
    adds: bool,
) -> Any:
    """Return a device function that stores dx of a row, and adds to the sums of its columns.

    ``gradient_of_row(arrays, row, width, limit, at, registers, of_parameters, smem, scaling)``:
    `arrays` are dy, x, the saved statistics, dx and what is added to it; `registers` are xhat, g,
    gamma and beta; `of_parameters` are the sums of each column for dgamma and dbeta.
    """
    columns = row_columns(element, shape)
    read_normalized = _make_read_normalized(formula, element, saved, shape)
    gradient_sums = make_column_gradient_sums(formula, element, count, columns)
    team_two_sums = make_team_two_sums(shape.team)
    means_of = make_row_means(element)
    write_gradient = make_write_gradient(element, columns, adds=adds)

    @device
    def gradient_of_row(arrays, row, width, limit, at, registers, of_parameters, smem, scaling):
        dy, x, statistics, dx, dtotal = arrays
        values, grads, weight, bias = registers
        scale, factor = read_normalized(dy, x, statistics, row, width, limit, at, values, grads)
        of_gamma, of_beta = of_parameters
        g, g_xhat = gradient_sums(grads, values, weight, bias, of_gamma, of_beta)
        g, g_xhat = team_two_sums(g, g_xhat, smem)
        means = means_of(g, g_xhat, scale, factor, scaling)
        write_gradient(dx, dtotal, row * width, at, limit, grads, values, means, scale, factor)

    return gradient_of_row


def _of_columns(
    formula: Formula,
    element: ElementType,
    saved: ElementType,
    weights: Weights,
    count: int,
    shape: RowShape,
    *,
    adds: bool,
) -> Kernel:
    columns = row_columns(element, shape)
    zero = constant(element, 0.0)
    compute_type = element.compute_type
    team, teams = shape.team, shape.teams
    lanes, slots = columns.lanes, columns.slots
    weight_of = make_weight(element, weights.gamma, columns, shared=False)
    bias_of = make_weight(element, weights.beta, columns, shared=False)
    gradient_of_row = _make_gradient_of_row(formula, element, saved, count, shape, adds=adds)
    flush = make_flush(element, shape)
    folding = smem_for_folding(element, shape) if count else 1
    half = smem_for_sums(shape)
    both = 2 * smem_for_sums(shape)

    def kernel(dy, x, statistics, parameters, dx, dtotal, partials, sizes, parts, scaling):
        smem = cuda.shared.array(both, compute_type)
        folded = cuda.shared.array(folding, compute_type)
        values = cuda.local.array(slots, compute_type)
        grads = cuda.local.array(slots, compute_type)
        weight = cuda.local.array(slots, compute_type)
        bias = cuda.local.array(slots, compute_type)
        of_gamma = cuda.local.array(slots, compute_type)
        of_beta = cuda.local.array(slots, compute_type)
        thread, part = cuda.threadIdx.x, cuda.blockIdx.x
        at, turn, fresh = thread % team * lanes, 0, True
        rows, width, _, channels = sizes
        # All rows of a part have one channel. A remainder is slow, and one channel needs none.
        channel = part % channels if channels > 1 else 0
        start, mine = (part - channel) * teams + channel, thread // team * channels
        weight_of(parameters.gamma, channel * width, at, sizes, weight)
        bias_of(parameters.beta, channel * width, at, sizes, bias)
        while fresh or start < rows:
            for k in range(slots):
                of_gamma[k], of_beta[k] = zero, zero
            stop = min(start + ROWS_BETWEEN_FLUSHES * teams * parts, rows)
            while start < stop:
                # A team behind the last row takes part in the barriers with a row of width 0.
                active = start + mine < rows
                row, limit = (start + mine, width) if active else (0, 0)
                gradient_of_row(
                    (dy, x, statistics, dx, dtotal), row, width, limit, at,
                    (values, grads, weight, bias), (of_gamma, of_beta), smem[turn:], scaling,
                )  # fmt: skip
                turn, start = half - turn, start + teams * parts
            last, first = start >= rows, part * width
            if count > 0:
                flush(of_gamma, at, width, first, fresh, last, partials, folded)
            if count > 1:
                first += parts * width
                flush(of_beta, at, width, first, fresh, last, partials, folded)
            fresh = False

    return Kernel(kernel, backward_parameters(element), shape.threads)


def _of_segments(
    formula: Formula,
    element: ElementType,
    saved: ElementType,
    weights: Weights,
    count: int,
    shape: RowShape,
) -> Kernel:
    columns = row_columns(element, shape)
    compute_type = element.compute_type
    team, teams = shape.team, shape.teams
    lanes, slots = columns.lanes, columns.slots
    read_normalized = _make_read_normalized(formula, element, saved, shape)
    gradient_sums = make_segment_gradient_sums(formula, element, weights, count, shape)
    team_two_sums = make_team_two_sums(team)
    means_of = make_row_means(element)
    write_gradient = make_write_gradient(element, columns)
    half = smem_for_sums(shape)
    both = 2 * half

    def kernel(dy, x, statistics, parameters, dx, dtotal, partials, sizes, parts, scaling):
        smem = cuda.shared.array(both, compute_type)
        values = cuda.local.array(slots, compute_type)
        grads = cuda.local.array(slots, compute_type)
        thread, part = cuda.threadIdx.x, cuda.blockIdx.x
        at, turn, (rows, width, segment, channels) = thread % team * lanes, 0, sizes
        segments, start, mine = width // segment, part * teams, thread // team
        channel = (start + mine) * segments % channels
        next_channel = parts * teams * segments % channels
        while start < rows:
            row, active = start + mine, start + mine < rows
            limit = width if active else 0
            row = row if active else 0
            scale, factor = read_normalized(dy, x, statistics, row, width, limit, at, values, grads)
            g, g_xhat, turn = gradient_sums(
                grads, values, row, active, at, sizes, segments, channel, parameters, partials.sums,
                smem, turn,
            )  # fmt: skip
            g, g_xhat = team_two_sums(g, g_xhat, smem[turn:])
            turn = half - turn
            means = means_of(g, g_xhat, scale, factor, scaling)
            write_gradient(dx, 0, row * width, at, limit, grads, values, means, scale, factor)
            channel += next_channel
            channel -= channels if channel >= channels else 0
            start += teams * parts

    return Kernel(kernel, backward_parameters(element), shape.threads)
