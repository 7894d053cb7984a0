"""The forward kernel of an LSTM with batch norm: what follows from the products of one step.

No unit depends on another: a block takes some of them, for all rows.
"""

from typing import Any

from numnorm.backends.contract import LSTMForm
from numnorm.backends.cuda.batch_cell_statistics import (
    make_batch_statistics,
    make_keep_column,
    make_kept_column,
    make_place_of_cell,
    normalized_products,
    place_of_gate,
    room_for_statistics,
)
from numnorm.backends.cuda.batch_lstm_gates import (
    make_gates_of_row,
    make_kept_gates,
    make_read_weights,
    weights_of_gates,
)
from numnorm.backends.cuda.cell_norms import NUMBERS, normalized
from numnorm.backends.cuda.column_teams import LANES, STRIPS, THREADS
from numnorm.backends.cuda.elements import Element
from numnorm.backends.cuda.lstm_gates import GATES
from numnorm.backends.cuda.target import (
    Kernel,
    cuda,
    device,
    make_load_one,
    make_store_one,
    tangent,
)


def _make_products(form: LSTMForm, element: Element, training: bool) -> Any:
    """Return a device function of the statistics of the gates of a thread's unit.

    ``products(z, source, limit, found, tables, place, share, eps, room)``: the tables are those of
    statistics, and the moments; the place is ``step, steps, width, unit, there``. Where no norm is
    taken of each product, the source is that with x, and z is added to it.
    """
    load_one, store_one = make_load_one(element), make_store_one(element)
    count, by_product = GATES * normalized_products(form), form.by_product

    @device
    def add_products(z, source, limit):
        sums, _, at, section, span = source
        row = cuda.threadIdx.x // LANES
        while row < limit:
            for gate in range(GATES):
                here = row * span + gate * section + at
                store_one(sums, here, load_one(sums, here) + load_one(z, here))
            row += STRIPS

    kept_gates = make_kept_gates(form, element)
    if count == 0 or not training:

        @device
        def given(z, source, limit, found, tables, place, share, eps, room):
            step, steps, width, unit, _ = place
            if not by_product:
                add_products(z, source, limit)
            kept_gates(found, tables[0], step, steps, width, unit)

        return given
    statistics, keep_column = make_batch_statistics(element, count), make_keep_column(element)
    working = element.working

    @device
    def products(z, source, limit, found, tables, place, share, eps, room):
        squares = cuda.local.array(count, working)
        step, steps, width, unit, there = place
        table, moments = tables
        if not by_product:
            add_products(z, source, limit)
            cuda.syncthreads()  # all threads of a column begin with its first row
        statistics(source, limit, found, squares, share, eps, room)
        if there and cuda.threadIdx.x < LANES:
            for n in range(count):
                column = place_of_gate(n, step, steps, width) + unit
                keep_column(found, squares, n, table, moments, column)

    return products


def _make_cells(form: LSTMForm, element: Element, training: bool) -> Any:
    """Return a device function of the statistics of a thread's cells.

    ``cells(source, limit, found, tables, place, share, eps, room)``, as for the products.
    """
    place_of_cell = make_place_of_cell(normalized_products(form))
    kept_column = make_kept_column(element)
    if not training:

        @device
        def given(source, limit, found, tables, place, share, eps, room):
            step, steps, width, unit, _ = place
            kept_column(found, 0, tables[0], place_of_cell(step, steps, width) + unit)

        return given
    statistics, keep_column = make_batch_statistics(element, 1), make_keep_column(element)
    working = element.working

    @device
    def cells(source, limit, found, tables, place, share, eps, room):
        squares = cuda.local.array(1, working)
        step, steps, width, unit, there = place
        table, moments = tables
        cuda.syncthreads()  # all threads of a column begin with its first row
        statistics(source, limit, found, squares, share, eps, room)
        if there and cuda.threadIdx.x < LANES:
            column = place_of_cell(step, steps, width) + unit
            keep_column(found, squares, 0, table, moments, column)

    return cells


def make_batch_lstm_forward(form: LSTMForm, element: Element, *, training: bool) -> Kernel:
    """Return the kernel of one step of an LSTM with batch norm.

    It takes as addresses, each of what belongs to the step's first row:

    - ``z, xp (rows, 4H)``, the products with the state and with x; where no norm is taken of each,
      the latter become the sums of both;
    - ``offset (4H,)``, and the gammas of z, of xp and of the cell, and its beta;
    - ``before (rows, H)``, the cell that the step is handed; ``h, c (rows, H)``, what it hands on;
      ``cell (rows, H)``, before its norm, which is c unless the normalized one is carried;

    as the addresses of all steps, ``table``, the statistics: read unless `training`, else written;
    and ``means, variances`` of float64, then written too, or 0;
    then ``step, steps, rows, width`` (H); as numbers 1 over the rows, epsilon and its root; and, of
    float64, what a sum of squares is multiplied by for its variance.
    """
    working, products = element.working, normalized_products(form)
    load_one, store_one, tanh = make_load_one(element), make_store_one(element), tangent(element)
    gates_of_row, read_weights = (
        make(form, element) for make in (make_gates_of_row, make_read_weights)
    )
    find_products, find_cells = (
        make(form, element, training) for make in (_make_products, _make_cells)
    )
    numbers, count = max(1, products * GATES * NUMBERS), weights_of_gates(form)
    room_size = room_for_statistics(max(1, products * GATES)) if training else 1
    by_product, carries = form.by_product, form.carries_normalized

    def kernel(
        z, xp, offset, gamma_h, gamma_x, gamma_c, beta_c, before, h, c, cell, table, means,
        variances, step, steps, rows, width, share, eps, root_eps, to_variance,
    ):  # fmt: skip
        room = cuda.shared.array(room_size, working)
        found = cuda.local.array(numbers, working)
        weights = cuda.local.array(count, working)
        gates = cuda.local.array(GATES, working)
        unit = cuda.blockIdx.x * LANES + cuda.threadIdx.x % LANES
        # A thread behind the last unit goes along, for the barriers' sake, and has no rows.
        there = unit < width
        unit, limit = (unit, rows) if there else (width - 1, 0)
        source = (z if by_product else xp), xp, unit, width, GATES * width
        tables, place = (table, (means, variances, to_variance)), (step, steps, width, unit, there)
        find_products(z, source, limit, found, tables, place, share, (eps, root_eps), room)
        read_weights(offset, gamma_h, gamma_x, unit, width, weights)
        row = cuda.threadIdx.x // LANES
        while row < limit:
            gates_of_row(source, row, found, weights, gates)
            here = row * width + unit
            new = gates[0] * load_one(before, here) + gates[1] * gates[3]
            store_one(cell, here, new)
            store_one(h, here, gates[2])
            row += STRIPS
        source = cell, cell, unit, width, width
        find_cells(source, limit, found, tables, place, share, (eps, root_eps), room)
        gain, bias = load_one(gamma_c, unit), load_one(beta_c, unit)
        row = cuda.threadIdx.x // LANES
        while row < limit:
            here = row * width + unit
            normal = normalized(load_one(cell, here), found, 0) * gain + bias
            if carries:
                store_one(c, here, normal)
            store_one(h, here, load_one(h, here) * tanh(normal))
            row += STRIPS

    parameters = ("address",) * 14 + ("index",) * 4 + (element.working_name,) * 3 + ("float64",)
    return Kernel(kernel, parameters, THREADS)
