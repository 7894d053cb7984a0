"""The backward kernel of an LSTM with batch norm: one step, between two products."""

from typing import Any

from numnorm.backends.contract import LSTMForm
from numnorm.backends.cuda.batch_cell_statistics import (
    make_kept_column,
    make_place_of_cell,
    make_value,
    normalized_products,
)
from numnorm.backends.cuda.batch_lstm_gates import (
    make_gates_of_row,
    make_kept_gates,
    make_read_weights,
    weights_of_gates,
)
from numnorm.backends.cuda.cell_norms import NUMBERS, normalized
from numnorm.backends.cuda.column_teams import (
    LANES,
    STRIPS,
    THREADS,
    make_column_sums,
    room_for_folds,
)
from numnorm.backends.cuda.elements import Element
from numnorm.backends.cuda.lstm_gates import GATES
from numnorm.backends.cuda.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
    tangent,
)
from numnorm.backends.scalars import input_gradient


def sums_of(form: LSTMForm, units: int) -> dict[str, int]:
    """Return the sums that a step leaves: how many of each, in the order of a row."""
    of_gates = ("bias", "gamma_h", "gamma_x")[: 1 + normalized_products(form)]
    return dict.fromkeys(of_gates, GATES * units) | {"gamma_c": units, "beta_c": units}


def _make_through_cell(form: LSTMForm, element: Element) -> Any:
    """Return a device function of what of a thread's rows reaches the normalized cell.

    ``through_cell(arrays, source, found, of_cell, weights, pair, place, sums)`` leaves that in dn,
    the gates in dz, but in the place of o its slope, and adds up dn and dn times the normalized
    cell. The arrays are ``dy, product, dh, dc, dn, dz, cell``; the place is ``unit, width, limit,
    later``; gamma and beta of the cell are the pair.
    """
    load_one, store_one, tanh = make_load_one(element), make_store_one(element), tangent(element)
    gates_of_row, one = make_gates_of_row(form, element), constant(element, 1.0)
    working, carries = element.working, form.carries_normalized

    @device
    def through_cell(arrays, source, found, of_cell, weights, pair, place, sums):
        gates = cuda.local.array(GATES, working)
        dy, product, dh, dc, dn, dz, cell = arrays
        unit, width, limit, later = place
        row = cuda.threadIdx.x // LANES
        while row < limit:
            gates_of_row(source, row, found, weights, gates)
            here = row * width + unit
            normal = normalized(load_one(cell, here), of_cell, 0)
            output = tanh(normal * pair[0] + pair[1])
            slope = load_one(dy, here) + load_one(product if row < later else dh, here)
            of_normal = slope * gates[2] * (one - output * output)
            if carries:
                of_normal += load_one(dc, here)
            sums[0] += of_normal
            sums[1] += of_normal * normal
            store_one(dn, here, of_normal)
            gates[2] = slope * output * gates[2] * (one - gates[2])
            for gate in range(GATES):
                store_one(dz, (row * GATES + gate) * width + unit, gates[gate])
            row += STRIPS

    return through_cell


def _make_through_gates(form: LSTMForm, element: Element) -> Any:
    """Return a device function of the slopes of what enters the gates, for a thread's rows.

    ``through_gates(arrays, source, found, of_cell, gain, means, place, sums)`` leaves them in dz,
    hands on the gradient of the cell, and adds up the slopes, and the slopes times the normalized
    products. The arrays are ``before, dc, dn, dz, cell``.
    """
    load_one, store_one = make_load_one(element), make_store_one(element)
    value, gradient = make_value(element), device(input_gradient)
    products, carries = normalized_products(form), form.carries_normalized
    working, one = element.working, constant(element, 1.0)

    @device
    def through_gates(arrays, source, found, of_cell, gain, means, place, sums):
        gates = cuda.local.array(GATES, working)
        before, dc, dn, dz, cell = arrays
        unit, width, limit = place
        scale, factor = of_cell[0], of_cell[3]
        row = cuda.threadIdx.x // LANES
        while row < limit:
            here, first = row * width + unit, row * GATES * width + unit
            for gate in range(GATES):
                gates[gate] = load_one(dz, first + gate * width)
            f, i, g = gates[0], gates[1], gates[3]
            normal = normalized(load_one(cell, here), of_cell, 0)
            dcell = gradient(load_one(dn, here) * gain, normal, means[0], means[1], factor) * scale
            if not carries:
                dcell += load_one(dc, here)
            store_one(dc, here, dcell * f)
            gates[0] = dcell * load_one(before, here) * f * (one - f)
            gates[1] = dcell * g * i * (one - i)
            gates[3] = dcell * i * (one - g * g)
            for gate in range(GATES):
                store_one(dz, first + gate * width, gates[gate])
                sums[gate] += gates[gate]
                for p in range(products):
                    n = p * GATES + gate
                    sums[GATES + n] += gates[gate] * normalized(value(source, row, n), found, n)
            row += STRIPS

    return through_gates


def _make_through_norms(form: LSTMForm, element: Element) -> Any:
    """Return a device function of the gradients of the products, for a thread's rows.

    ``through_norms(dz, dxp, source, found, weights, means, unit, width, limit)``: the means are
    those of the slopes and then, of each product, those of the slopes times its normalized values,
    each times the gain.
    """
    load_one, store_one = make_load_one(element), make_store_one(element)
    value, gradient, by_product = make_value(element), device(input_gradient), form.by_product
    if form.gates is None:
        return device(lambda dz, dxp, source, found, weights, means, unit, width, limit: None)

    @device
    def through_norm(slope, source, row, n, found, weights, means):
        gain, at = weights[GATES + n], n * NUMBERS
        normal = normalized(value(source, row, n), found, n)
        mean_g, mean_g_xhat = means[n % GATES] * gain, means[GATES + n] * gain
        return gradient(slope * gain, normal, mean_g, mean_g_xhat, found[at + 3]) * found[at]

    @device
    def through_norms(dz, dxp, source, found, weights, means, unit, width, limit):
        row = cuda.threadIdx.x // LANES
        while row < limit:
            for gate in range(GATES):
                here = (row * GATES + gate) * width + unit
                slope = load_one(dz, here)
                store_one(dz, here, through_norm(slope, source, row, gate, found, weights, means))
                if by_product:
                    n = GATES + gate
                    store_one(dxp, here, through_norm(slope, source, row, n, found, weights, means))
            row += STRIPS

    return through_norms


def _make_leave_sums(form: LSTMForm, element: Element) -> Any:
    """Return a device function ``leave_sums(sums, of_gates, of_cell, unit, width)``."""
    store_one, count = make_store_one(element), weights_of_gates(form)

    @device
    def leave_sums(sums, of_gates, of_cell, unit, width):
        for n in range(count):
            store_one(sums, n * width + unit, of_gates[n])
        store_one(sums, count * width + unit, of_cell[1])
        store_one(sums, (count + 1) * width + unit, of_cell[0])

    return leave_sums


def make_batch_lstm_backward(form: LSTMForm, element: Element) -> Kernel:
    """Return the kernel of one step of an LSTM with batch norm.

    It takes as addresses, each of what belongs to the step's first row:

    - ``z, xp (rows, 4H)``, the products, the first their sum where no norm is taken of each; ``cell
      (rows, H)``, before its norm; ``before (rows, H)``, the cell that the step was handed; the
      ``table`` of statistics, of all steps; the offset and the parameters, as the forward kernel;
    - ``dy (rows, H)``; ``product (later, H)``, what the states get from the next step, which has
      the first `later` rows; ``dh, dc (rows, H)``, those of the last states, of which the latter
      become those of the cell before;
    - ``dz, dxp (rows, 4H)``, the results; ``dn (rows, H)``, for its own use; and ``sums``, a row as
      `sums_of` has it;

    then ``step, steps, rows, later, width``; and as a number 1 over the rows, 0 for statistics that
    are constants.
    """
    working, products = element.working, normalized_products(form)
    load_one, zero = make_load_one(element), constant(element, 0.0)
    read_weights, kept_gates, through_cell, through_gates, through_norms, leave_sums = (
        make(form, element)
        for make in (
            make_read_weights, make_kept_gates, _make_through_cell, _make_through_gates,
            _make_through_norms, _make_leave_sums,
        )
    )  # fmt: skip
    kept_column, place_of_cell = make_kept_column(element), make_place_of_cell(products)
    count, numbers = weights_of_gates(form), max(1, products * GATES * NUMBERS)
    two_sums, gate_sums = make_column_sums(element, 2), make_column_sums(element, count)
    room_size, by_product = room_for_folds(count), form.by_product

    @device
    def mean(total, share):
        # A constant statistic passes nothing on, a NaN neither.
        return total * share if share > zero else zero

    def kernel(
        z, xp, cell, before, table, offset, gamma_h, gamma_x, gamma_c, beta_c, dy, product, dh, dc,
        dz, dxp, dn, sums, step, steps, rows, later, width, share,
    ):  # fmt: skip
        room = cuda.shared.array(room_size, working)
        found = cuda.local.array(numbers, working)
        weights = cuda.local.array(count, working)
        of_cell = cuda.local.array(NUMBERS, working)
        cell_sums = cuda.local.array(2, working)
        all_sums = cuda.local.array(count, working)
        unit = cuda.blockIdx.x * LANES + cuda.threadIdx.x % LANES
        # A thread behind the last unit goes along, for the barriers' sake, and has no rows.
        there = unit < width
        unit, limit = (unit, rows) if there else (width - 1, 0)
        source = z, (xp if by_product else z), unit, width, GATES * width
        kept_gates(found, table, step, steps, width, unit)
        kept_column(of_cell, 0, table, place_of_cell(step, steps, width) + unit)
        read_weights(offset, gamma_h, gamma_x, unit, width, weights)
        gain, bias = load_one(gamma_c, unit), load_one(beta_c, unit)
        cell_sums[0], cell_sums[1] = zero, zero
        through_cell(
            (dy, product, dh, dc, dn, dz, cell), source, found, of_cell, weights, (gain, bias),
            (unit, width, limit, later), cell_sums,
        )  # fmt: skip
        two_sums(cell_sums, room)
        for n in range(count):
            all_sums[n] = zero
        means = mean(cell_sums[0] * gain, share), mean(cell_sums[1] * gain, share)
        through_gates(
            (before, dc, dn, dz, cell), source, found, of_cell, gain, means, (unit, width, limit),
            all_sums,
        )  # fmt: skip
        gate_sums(all_sums, room)
        if there and cuda.threadIdx.x < LANES:
            leave_sums(sums, all_sums, cell_sums, unit, width)
        for n in range(count):
            all_sums[n] = mean(all_sums[n], share)
        through_norms(dz, dxp, source, found, weights, all_sums, unit, width, limit)

    parameters = ("address",) * 18 + ("index",) * 5 + (element.working_name,)
    return Kernel(kernel, parameters, THREADS)
