"""The backward kernel of all steps of a normalized LSTM: its blocks wait for each other.

A block has the same units of some rows from the last step to the first, as forward. Of the others
it needs what reaches the gates in the step behind, and of a row that was normalized its sums.
"""

from typing import Any

from numnorm.backends.contract import LSTMForm
from numnorm.backends.cuda.cell_norms import NUMBERS
from numnorm.backends.cuda.elements import Element
from numnorm.backends.cuda.lstm_backward_kernel import make_step_back
from numnorm.backends.cuda.lstm_gates import GATES, gate_parts, places
from numnorm.backends.cuda.persistent_plans import SliceShape
from numnorm.backends.cuda.slice_products import make_column_products, make_take_columns
from numnorm.backends.cuda.target import (
    Kernel,
    constant,
    cuda,
    device,
    grid_barrier,
    load_index,
    make_load_one,
    make_store_one,
    shared_memory,
)
from numnorm.backends.cuda.team_sums import make_team_sums


def slice_sums(form: LSTMForm) -> tuple[int, int]:
    """Return of how many sums of a row blocks leave their shares: of its cell, and its gates."""
    return 2 * (form.cell is not None), 2 * gate_parts(form).count


def _make_sums(count: int, element: Element, units: int) -> Any:
    """Return a device function ``sums(values, room)`` of numbers that are summed over all slices.

    The room is ``table, first, slices, slice, there``: where the row's shares begin, and whether
    there is a row. They are added up in the same order by all blocks.
    """
    load_one, store_one = make_load_one(element), make_store_one(element)
    team_sums, zero = make_team_sums(element, units, count), constant(element, 0.0)

    @device
    def sums(values, room):
        table, first, slices, part, there = room
        unit = cuda.threadIdx.x % units
        team_sums(values, values)
        if there and unit == 0:
            for n in range(count):
                store_one(table, first + n * slices + part, values[n])
        grid_barrier()
        seen = slices if there else 0
        for n in range(count):
            values[n] = zero
            for other in range(unit, seen, units):
                values[n] += load_one(table, first + n * slices + other)
        team_sums(values, values)

    return sums


def _make_pass_on(element: Element, shape: SliceShape) -> Any:
    """Return a device function of what the states of a step get through the products behind it.

    ``pass_on(memory, dz, start, rows, first, row, column, width, product)``: of so many of the
    block's rows, from its first on, of a step whose rows begin at the start of dz. A thread stores
    that of its row and column; a negative row is none.
    """
    products_of, store_one = make_column_products(element, shape), make_store_one(element)
    working = element.working

    @device
    def pass_on(memory, dz, start, rows, first, row, column, width, product):
        found = cuda.local.array(1, working)
        products_of(memory, dz, start + first, rows, GATES * width, found)
        if row >= 0 and column < width and row - first < rows:
            store_one(product, row * width + column, found[0])

    return pass_on


def make_lstm_persistent_backward(form: LSTMForm, element: Element, shape: SliceShape) -> Kernel:
    """Return the kernel of all steps back, to be launched by its plan.

    It takes as addresses, each of the first row of all:

    - ``weights (4H, H)`` of the state;
    - ``z, xp, cell, carried, table``, as they were saved, and the offset, the parameters and what
      zoneout keeps, as the kernel of one step;
    - ``dy``; ``product (batch, H)``, which becomes what the first states get through the products;
      ``dh, dc (batch, H)`` and the results, as the kernel of one step;
    - ``sums``, room for the shares of all slices of the sums of the rows of the batch;
    - ``counts``, the int32 number of rows of each step; 0 if it is the batch in all;

    then ``steps, rows, batch, group, slices, width``, and the numbers of the kernel of one step.
    """
    units, size = shape.units, element.itemsize
    of_statistics = places(form) * NUMBERS * size
    take_columns = make_take_columns(element, shape)
    pass_on = _make_pass_on(element, shape)
    step_back = make_step_back(
        form, element, shape.of_units, lambda count: _make_sums(count, element, units)
    )
    of_cell, of_gates = slice_sums(form)

    def kernel(
        weights, z, xp, cell, carried, table, offset, gamma_h, gamma_x, gamma_c, beta_c,
        keep_h, keep_c, dy, product, dh, dc, dz, dxp, slopes, dn, sums, counts,
        steps, all_rows, batch, group, slices, width, gain, bias,
        mean_share, scale_share, eps_on_deviation,
        cell_mean_share, cell_scale_share, cell_eps_on_deviation,
    ):  # fmt: skip
        memory = shared_memory()
        part, first = cuda.blockIdx.x % slices, cuda.blockIdx.x // slices * group
        team, column = cuda.threadIdx.x // units, part * units + cuda.threadIdx.x % units
        mine = first + team if team < group and first + team < batch else -1
        take_columns(memory, weights, part * units, GATES * width, width)
        others = offset, gamma_h, gamma_x, gamma_c, beta_c
        flows = (
            (mean_share, scale_share, eps_on_deviation),
            (cell_mean_share, cell_scale_share, cell_eps_on_deviation),
        )
        start, later, of_row = all_rows, 0, width * size
        for step in range(steps, -1, -1):
            if step < steps:
                grid_barrier()
                behind = min(group, later - first)
                pass_on(memory, dz, start, behind, first, mine, column, width, product)
            if step > 0:
                count = load_index(counts, step - 1) if counts != 0 else batch
                before = load_index(counts, step - 2) if counts != 0 and step > 1 else batch
                start -= count
                there = mine >= 0 and mine < count
                row, limit = (mine, width) if there else (0, 0)
                now, earlier = start * of_row, (batch + start - before if step > 1 else 0) * of_row
                saved = cell + now, carried + earlier, table + start * of_statistics
                shares = row * (of_cell + of_gates) * slices
                rooms = (
                    (sums, shares, slices, part, there),
                    (sums, shares + of_cell * slices, slices, part, there),
                )
                step_back(
                    (z + GATES * now, xp + GATES * now), saved, others,
                    (keep_h + now, keep_c + now), (dy + now, product, dh, dc),
                    (dz + GATES * now, dxp + GATES * now, slopes + GATES * now, dn + now),
                    row, later, width, column, limit, (gain, bias), flows, rooms,
                )  # fmt: skip
                later = count

    parameters = ("address",) * 23 + ("index",) * 6 + (element.working_name,) * 8
    return Kernel(kernel, parameters, shape.threads)
