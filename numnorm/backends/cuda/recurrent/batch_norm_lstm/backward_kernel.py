"""The backward kernel of an LSTM with batch norm: one step, between two products."""

import functools
from typing import Any

from numnorm.backends.contract.recurrent import LSTMForm
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
    tangent,
)
from numnorm.backends.cuda.recurrent.batch_norm_lstm.column_threads import (
    LANES,
    STRIPS,
    STRIPS_OF_WARP,
    THREADS,
    make_column_sums,
    room_for_folds,
)
from numnorm.backends.cuda.recurrent.batch_norm_lstm.gates import (
    make_gates_of_row,
    make_read_terms,
    terms_of,
)
from numnorm.backends.cuda.recurrent.batch_norm_lstm.step_statistics import (
    make_kept_column,
    make_place_of_cell,
    normalized_products,
    place_of_gate,
)
from numnorm.backends.cuda.recurrent.common.cell_norm import NUMBERS, normalized
from numnorm.backends.cuda.recurrent.lstm.gates import GATES
from numnorm.backends.cuda.threads.group_reductions import WARP
from numnorm.backends.formulas.norms import input_gradient


def sums_of(form: LSTMForm, units: int) -> dict[str, int]:
    """Return the sums that a step leaves: how many of each, in the order of a row."""
    of_gates = ("bias", "gamma_h", "gamma_x")[: 1 + normalized_products(form)]
    return dict.fromkeys(of_gates, GATES * units) | {"gamma_c": units, "beta_c": units}


def _make_through_cell(form: LSTMForm, element: Element) -> Any:
    """Return a device function of what of a thread's rows reaches the normalized cell.

    ``through_cell(arrays, terms, of_cell, pair, place, sums)`` leaves that in dn, the gates in dz,
    but in the place of o its slope, and adds up dn and dn times the normalized cell. The arrays are
    ``z, xp, dy, product, dh, dc, dn, dz, cell``; gamma and beta of the cell are the pair; the place
    is ``unit, width, limit, later``.
    """
    load_one, store_one, tanh = make_load_one(element), make_store_one(element), tangent(element)
    gates_of_row, one = make_gates_of_row(form, element), constant(element, 1.0)
    working, carries = element.working, form.carries_normalized

    @device
    def through_cell(arrays, terms, of_cell, pair, place, sums):
        gates = cuda.local.array(GATES, working)
        z, xp, dy, product, dh, dc, dn, dz, cell = arrays
        unit, width, limit, later = place
        row = cuda.threadIdx.x // LANES
        while row < limit:
            gates_of_row(z, xp, row, width, unit, terms, gates)
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


def _make_gate_slopes(form: LSTMForm, element: Element) -> Any:
    """Return a device function of the slopes of what enters the gates, for a thread's rows.

    ``gate_slopes(arrays, of_cell, gain, means, place)`` leaves them in dz and, where a norm is
    taken of each product, in dxp, and hands on the gradient of the cell. The arrays are ``before,
    dc, dn, dz, dxp, cell``.
    """
    load_one, store_one = make_load_one(element), make_store_one(element)
    by_product, carries = form.by_product, form.carries_normalized
    gradient, one, working = device(input_gradient), constant(element, 1.0), element.working

    @device
    def gate_slopes(arrays, of_cell, gain, means, place):
        gates = cuda.local.array(GATES, working)
        before, dc, dn, dz, dxp, cell = arrays
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
                if by_product:
                    store_one(dxp, first + gate * width, gates[gate])
            row += STRIPS

    return gate_slopes


@functools.cache
def _make_mean(element: Element) -> Any:
    """Return a device function ``mean(total, share)``."""
    zero = constant(element, 0.0)

    @device
    def mean(total, share):
        # A constant statistic passes nothing on, a NaN neither.
        return total * share if share > zero else zero

    return mean


def _make_through_norm(element: Element) -> Any:
    """Return a device function of the gradients of one gate of one product, by a warp.

    ``through_norm(values, slopes, found, gain, sums, share, place)`` takes the place of the slopes;
    the place is ``at, span, limit``: the element in the first row, and the elements of a row.
    """
    load_one, store_one = make_load_one(element), make_store_one(element)
    gradient, mean = device(input_gradient), _make_mean(element)

    @device
    def through_norm(values, slopes, found, gain, sums, share, place):
        at, span, limit = place
        mean_g, mean_g_xhat = mean(sums[0] * gain, share), mean(sums[1] * gain, share)
        row = cuda.threadIdx.x // LANES % STRIPS_OF_WARP
        while row < limit:
            here = row * span + at
            normal, slope = normalized(load_one(values, here), found, 0), load_one(slopes, here)
            of_value = gradient(slope * gain, normal, mean_g, mean_g_xhat, found[3])
            store_one(slopes, here, of_value * found[0])
            row += STRIPS_OF_WARP

    return through_norm


def _make_through_gates(form: LSTMForm, element: Element) -> Any:
    """Return a device function of the gradients of the products, from the slopes of the gates.

    ``through_gates(arrays, sums, place, share)``: the arrays are ``z, xp, dz, dxp, table, gamma_h,
    gamma_x``, and the place is ``step, steps, width, unit, limit``. It leaves the sums of the
    slopes, and of the slopes times the normalized values. Each warp takes one gate of one product.
    """
    load_one, store_one = make_load_one(element), make_store_one(element)
    kept_column, sum_up = make_kept_column(element), make_column_sums(element, 2, 1)
    through_norm, count = _make_through_norm(element), GATES * normalized_products(form)
    working, zero, gates = element.working, constant(element, 0.0), max(GATES, count)

    @device
    def through_gates(arrays, sums, place, share):
        found = cuda.local.array(NUMBERS, working)
        totals = cuda.local.array(2, working)
        z, xp, dz, dxp, table, gamma_h, gamma_x = arrays
        step, steps, width, unit, limit = place
        n = cuda.threadIdx.x // WARP
        if n < gates:
            values, slopes = (z, dz) if n < GATES else (xp, dxp)
            at, span = n % GATES * width + unit, GATES * width
            if count > 0:
                kept_column(table, place_of_gate(n, step, steps, width) + unit, found)
            totals[0], totals[1] = zero, zero
            row = cuda.threadIdx.x // LANES % STRIPS_OF_WARP
            while row < limit:
                slope = load_one(slopes, row * span + at)
                totals[0] += slope
                if count > 0:
                    totals[1] += slope * normalized(load_one(values, row * span + at), found, 0)
                row += STRIPS_OF_WARP
            sum_up(totals, 0)
            if limit > 0 and cuda.threadIdx.x % WARP < LANES:
                if n < GATES:
                    store_one(sums, n * width + unit, totals[0])
                if count > 0:
                    store_one(sums, (GATES + n) * width + unit, totals[1])
            if count > 0:
                gain = load_one(gamma_h if n < GATES else gamma_x, at)
                through_norm(values, slopes, found, gain, totals, share, (at, span, limit))

    return through_gates


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
    load_one, zero, count = make_load_one(element), constant(element, 0.0), terms_of(form)
    read_terms, through_cell, gate_slopes, through_gates = (
        make(form, element)
        for make in (make_read_terms, _make_through_cell, _make_gate_slopes, _make_through_gates)
    )
    kept_column, place_of_cell = make_kept_column(element), make_place_of_cell(products)
    sum_up, mean, store_one = (
        make_column_sums(element, 2),
        _make_mean(element),
        make_store_one(element),
    )
    room_size, of_gates = room_for_folds(2), GATES * (1 + products)

    def kernel(
        z, xp, cell, before, table, offset, gamma_h, gamma_x, gamma_c, beta_c, dy, product, dh, dc,
        dz, dxp, dn, sums, step, steps, rows, later, width, share,
    ):  # fmt: skip
        room = cuda.shared.array(room_size, working)
        terms = cuda.local.array(count, working)
        of_cell = cuda.local.array(NUMBERS, working)
        totals = cuda.local.array(2, working)
        unit = cuda.blockIdx.x * LANES + cuda.threadIdx.x % LANES
        # A thread behind the last unit goes along, for the barriers' sake, and has no rows.
        unit, limit = (unit, rows) if unit < width else (width - 1, 0)
        place = step, steps, width, unit
        read_terms(table, (offset, gamma_h, gamma_x), place, terms)
        kept_column(table, place_of_cell(step, steps, width) + unit, of_cell)
        gain, bias = load_one(gamma_c, unit), load_one(beta_c, unit)
        totals[0], totals[1] = zero, zero
        through_cell(
            (z, xp, dy, product, dh, dc, dn, dz, cell), terms, of_cell, (gain, bias),
            (unit, width, limit, later), totals,
        )  # fmt: skip
        sum_up(totals, room)
        if limit > 0 and cuda.threadIdx.x < LANES:
            store_one(sums, of_gates * width + unit, totals[1])
            store_one(sums, (of_gates + 1) * width + unit, totals[0])
        means = mean(totals[0] * gain, share), mean(totals[1] * gain, share)
        gate_slopes(
            (before, dc, dn, dz, dxp, cell), of_cell, gain, means, (unit, width, limit)
        )  # fmt: skip
        cuda.syncthreads()  # a warp reads the slopes of other threads
        through_gates(
            (z, xp, dz, dxp, table, gamma_h, gamma_x), sums, (*place, limit), share
        )  # fmt: skip

    parameters = ("address",) * 18 + ("index",) * 5 + (element.working_name,)
    return Kernel(kernel, parameters, THREADS)
