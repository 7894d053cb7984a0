"""The forward kernel of all steps of a normalized LSTM: its blocks wait for each other.

A block has some units of some rows of the batch, from the first step to the last. What it needs of
the other blocks goes through the device's memory: the state of the step before, and of its slice
of a row that is normalized no more than four numbers. It waits for all blocks once for each.
"""

from typing import Any

from numnorm.backends.contract.recurrent import LSTMForm
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    grid_barrier,
    shared_memory,
)
from numnorm.backends.cuda.recurrent.common.cell_norm import (
    CELL,
    NUMBERS,
    Parts,
    bias_of,
    gain_of,
    make_keep_statistics,
    make_kept_statistics,
    make_normalize,
    normalized,
)
from numnorm.backends.cuda.recurrent.lstm.gates import (
    GATES,
    gate_parts,
    make_gates,
    places,
)
from numnorm.backends.cuda.recurrent.lstm.step import make_write_states
from numnorm.backends.cuda.recurrent.persistent.grid_statistics import make_exchange
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.recurrent.persistent.slice_matmul import (
    make_slice_products,
    make_take_weights,
)
from numnorm.backends.cuda.recurrent.persistent.slice_threads import count_of, make_place_of
from numnorm.backends.cuda.threads.row_columns import (
    make_column_weight,
    make_read_columns,
    make_write_columns,
    row_columns,
)


def slice_parts(form: LSTMForm) -> Parts:
    """Return what of a slice is normalized in each step: the statistics of x are there before."""
    return Parts(1, GATES) if form.by_product else gate_parts(form)


def slice_places(form: LSTMForm) -> int:
    """Return of how many parts of a row blocks leave statistics for each other, the cell last."""
    return slice_parts(form).count + (form.cell is not None)


def _make_enter(form: LSTMForm, element: Element, shape: SliceShape) -> Any:
    """Return a device function of what enters a thread's gates.

    ``enter(products, values, xrow, width, column, limit, sliced, row, rows, tables, scaling)``:
    the products with the state and, behind them, those with x become what enters the gates. The
    tables are ``slices, statistics``; the first products, if they are to be saved, go to an array.
    """
    by_product, write = (
        form.by_product,
        make_write_columns(element, row_columns(element, shape.of_units)),
    )

    @device
    def save(products, values, xrow, width, column, limit):
        if not by_product:
            for gate in range(GATES):
                values[gate] += values[GATES + gate]
        if products != 0:
            for gate in range(GATES):
                first = (xrow * GATES + gate) * width
                write(products, first, column, limit, values[gate:])

    if form.gates is None:

        @device
        def plain(products, values, xrow, width, column, limit, sliced, row, rows, tables, scaling):
            save(products, values, xrow, width, column, limit)

        return plain
    parts, all_places, working = gate_parts(form), places(form), element.working
    of_slices, count = slice_parts(form), gate_parts(form).count * NUMBERS
    exchange = make_exchange(form.gates.formula, element, shape, of_slices)
    keep = make_keep_statistics(element, of_slices.count)
    kept = make_kept_statistics(element, parts.count - of_slices.count)
    normalize = make_normalize(element, shape.of_units, gate_parts(form))
    others = of_slices.count

    @device
    def enter(products, values, xrow, width, column, limit, sliced, row, rows, tables, scaling):
        found = cuda.local.array(count, working)
        slices, statistics = tables
        there = limit > 0
        save(products, values, xrow, width, column, limit)
        if by_product:
            kept(statistics, xrow, all_places, others, found[others * NUMBERS :])
        exchange(values, sliced, 0, there, slices, row, rows, scaling, found)
        if there and column == 0:
            keep(statistics, xrow, all_places, 0, found)
        normalize(values, found, column, limit)

    return enter


def _make_cell_of(form: LSTMForm, element: Element, shape: SliceShape) -> Any:
    """Return a device function of a thread's cell, normalized.

    ``cell_of(cells, xrow, width, column, limit, weights, numbers, sliced, row, rows, tables,
    scaling, normal)``: the weights are ``gamma, beta``.
    """
    if form.cell is None:

        @device
        def plain(
            cells, xrow, width, column, limit, weights, numbers, sliced, row, rows, tables,
            scaling, normal,
        ):  # fmt: skip
            normal[0] = cells[0]

        return plain
    columns = row_columns(element, shape.of_units)
    gain = make_column_weight(element, gain_of(form.cell, element), columns)
    bias = make_column_weight(element, bias_of(form.cell, element), columns)
    exchange = make_exchange(form.cell.formula, element, shape, CELL)
    keep, all_places = make_keep_statistics(element, 1), places(form)
    apply, place = device(form.cell.formula.forward), slice_places(form) - 1
    working = element.working

    @device
    def cell_of(
        cells, xrow, width, column, limit, weights, numbers, sliced, row, rows, tables, scaling,
        normal,
    ):  # fmt: skip
        found = cuda.local.array(NUMBERS, working)
        weight = cuda.local.array(1, working)
        shift = cuda.local.array(1, working)
        slices, statistics = tables
        there = limit > 0
        exchange(cells, sliced, place, there, slices, row, rows, scaling, found)
        if there and column == 0:
            keep(statistics, xrow, all_places, all_places - 1, found)
        gain(weights[0], numbers[0], 0, column, width, weight)
        bias(weights[1], numbers[1], 0, column, width, shift)
        normal[0] = apply(normalized(cells[0], found, 0), weight[0], shift[0])

    return cell_of


def _make_step(form: LSTMForm, element: Element, shape: SliceShape) -> Any:
    """Return a device function of what follows from the products of a step, of one unit of a row.

    ``step(values, before, addresses, tables, rows_of, sliced, column, limit, batch, width,
    weights, numbers, scalings)``: the addresses are ``products, keep_h, keep_c, h_before, h, c,
    cell``, the last three where the step's first row is written; `rows_of` are the row's number in
    the batch and among the rows of x, and the weights ``offset, gamma_h, gamma_x, gamma_c,
    beta_c``. The cell before becomes the new one.
    """
    enter = _make_enter(form, element, shape)
    gates_of = make_gates(form, element, shape.of_units)
    cell_of, working = _make_cell_of(form, element, shape), element.working
    write_states = make_write_states(form, element, shape.of_units)
    zero = constant(element, 0.0)

    @device
    def step(
        values, before, addresses, tables, rows_of, sliced, column, limit, batch, width,
        weights, numbers, scalings,
    ):  # fmt: skip
        gates = cuda.local.array(GATES, working)
        cells = cuda.local.array(1, working)
        normal = cuda.local.array(1, working)
        products, keep_h, keep_c, h_before, h, c, cell = addresses
        row, xrow = rows_of
        of_gates, of_cell = scalings
        offset, gamma_h, gamma_x, gamma_c, beta_c = weights
        enter(
            products, values, xrow, width, column, limit, sliced, row, batch, tables, of_gates
        )  # fmt: skip
        gates_of(values, (offset, gamma_h, gamma_x), numbers, column, width, width, gates)
        new = gates[0] * before[0] + gates[1] * gates[3]
        cells[0] = new if column < limit else zero
        cell_of(
            cells, xrow, width, column, limit, (gamma_c, beta_c), numbers, sliced, row, batch,
            tables, of_cell, normal,
        )  # fmt: skip
        targets = keep_h, keep_c, h_before, h, c, cell
        write_states(targets, row, width, column, limit, gates, cells, before, normal)
        before[0] = cells[0]

    return step


def make_lstm_persistent(form: LSTMForm, element: Element, shape: SliceShape) -> Kernel:
    """Return the kernel of all steps of an LSTM, to be launched by its plan.

    It takes as addresses:

    - ``weights (4H, H)`` of the state, and ``xp (rows, 4H)``, the products with x of all steps;
    - the offset and the parameters, as the kernel of one step; ``keep_h, keep_c (rows, H)``;
    - ``state (batch + rows, H)``, those given first; ``carried``, the like of the cells or, if
      they are not to be kept, those of the batch, which become the last ones;
    - ``products (rows, 4H)``: what `Saved.z` is, which may be xp where no norm is taken of each
      product; ``cell (rows, H)``, as the kernel of one step; 0 for what is not to be saved;
    - ``statistics (rows, places, NUMBERS)``, where those of x are already, and ``slices``, room
      for NUMBERS of each slice of each part of each row of the batch;
    - ``counts``, the int32 number of rows of each step; 0 if it is the batch in all;

    then ``steps, batch, group, slices, width, kept``: how many steps, rows of the batch and of a
    group, slices and units there are, and whether all cells are kept; and the numbers of the
    kernel of one step.
    """
    place_of, working, size = make_place_of(shape), element.working, element.itemsize
    columns = row_columns(element, shape.of_units)
    read, take_weights = (
        make_read_columns(element, columns),
        make_take_weights(GATES, element, shape),
    )
    products_of = make_slice_products(GATES, element, shape)
    take_step, both = _make_step(form, element, shape), 2 * GATES

    def kernel(
        weights, xp, offset, gamma_h, gamma_x, gamma_c, beta_c, keep_h, keep_c, state, carried,
        products, cell, statistics, slices_table, counts, steps, batch, group, slices, width, kept,
        gain, bias, share, scale_share, eps, eps_on_deviation, root_eps,
        cell_share, cell_scale_share, cell_eps, cell_eps_on_deviation, cell_root_eps,
    ):  # fmt: skip
        values = cuda.local.array(both, working)
        before = cuda.local.array(1, working)
        memory, numbers = shared_memory(), (gain, bias)
        scalings = (
            (share, scale_share, eps, eps_on_deviation, root_eps),
            (cell_share, cell_scale_share, cell_eps, cell_eps_on_deviation, cell_root_eps),
        )
        sliced, column, first, mine = place_of(slices, group, batch, width)
        take_weights(memory, weights, column - sliced[2], width)
        others = offset, gamma_h, gamma_x, gamma_c, beta_c
        read(carried, max(mine, 0) * width, column, width if mine >= 0 else 0, before)
        earlier, now = 0, batch
        for step in range(steps):
            count = count_of(counts, step, batch)
            row, limit = (mine, width) if 0 <= mine < count else (0, 0)
            xrow, of_row = now - batch + row, width * size
            for gate in range(GATES):
                at = (xrow * GATES + gate) * width
                read(xp, at, column, limit, values[GATES + gate :])
            if step > 0:
                grid_barrier()
            products_of(
                memory, state, earlier + first, min(group, count - first), width, values
            )  # fmt: skip
            behind = (now - batch) * of_row
            addresses = (
                products, keep_h + behind, keep_c + behind,
                state + earlier * of_row, state + now * of_row,
                carried + (now * of_row if kept != 0 else 0), cell + behind if cell != 0 else 0,
            )  # fmt: skip
            take_step(
                values, before, addresses, (slices_table, statistics), (row, xrow), sliced,
                column, limit, batch, width, others, numbers, scalings,
            )  # fmt: skip
            earlier, now = now, now + count

    parameters = ("address",) * 16 + ("index",) * 6 + (element.working_name,) * 12
    return Kernel(kernel, parameters, shape.threads)
