"""The forward kernel of all steps of a normalized plain recurrent network.

Its blocks wait for each other, as those of an LSTM do: for the states of the step before, and once
for the norm.
"""

from typing import Any

from numnorm.backends.contract.recurrent import RNNForm
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import Kernel, cuda, device, grid_barrier, shared_memory
from numnorm.backends.cuda.recurrent.common.cell_norm import (
    CELL,
    NUMBERS,
    make_keep_statistics,
    make_normalize,
)
from numnorm.backends.cuda.recurrent.persistent.grid_statistics import make_exchange
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.recurrent.persistent.slice_matmul import (
    make_slice_products,
    make_take_weights,
)
from numnorm.backends.cuda.recurrent.persistent.slice_threads import count_of, make_place_of
from numnorm.backends.cuda.recurrent.rnn.step import make_new_state, make_write_state
from numnorm.backends.cuda.threads.row_columns import (
    make_read_columns,
    make_write_columns,
    row_columns,
)

GATES = 1


def _make_enter(form: RNNForm, element: Element, shape: SliceShape) -> Any:
    """Return a device function that normalizes the sum of both products.

    ``enter(values, saved, slices_table, sliced, row, xrow, rows, width, column, limit, scaling)``:
    it also writes what is `saved`, ``sums, table``, unless the address is 0.
    """
    write, working = (
        make_write_columns(element, row_columns(element, shape.of_units)),
        element.working,
    )

    @device
    def save(sums, xrow, width, column, limit, values):
        if sums != 0:
            write(sums, xrow * width, column, limit, values)

    if form.norm is None:

        @device
        def plain(
            values, saved, slices_table, sliced, row, xrow, rows, width, column, limit, scaling
        ):
            save(saved[0], xrow, width, column, limit, values)

        return plain
    exchange = make_exchange(form.norm.formula, element, shape, CELL)
    keep, normalize = (
        make_keep_statistics(element, 1),
        make_normalize(element, shape.of_units, CELL),
    )

    @device
    def enter(values, saved, slices_table, sliced, row, xrow, rows, width, column, limit, scaling):
        found = cuda.local.array(NUMBERS, working)
        sums, table = saved
        there = limit > 0
        save(sums, xrow, width, column, limit, values)
        exchange(values, sliced, 0, there, slices_table, row, rows, scaling, found)
        if there and table != 0 and column == 0:
            keep(table, xrow, 1, 0, found)
        normalize(values, found, column, limit)

    return enter


def make_rnn_persistent(form: RNNForm, element: Element, shape: SliceShape) -> Kernel:
    """Return the kernel of all steps of a plain recurrent network, to be launched by its plan.

    It takes as addresses:

    - ``weights (H, H)`` of the state, and ``xp (rows, H)``, the products with x of all steps;
    - ``offset (H,)`` and ``gamma (H,)``, and ``keep (rows, H)``, the shares of zoneout;
    - ``state (batch + rows, H)``, those given first;
    - ``sums (rows, H)``, which may be xp: both products added up; and ``table (rows, NUMBERS)``,
      the statistics: 0 for what is not to be saved;
    - ``slices``, room for NUMBERS of each slice of each row of the batch;
    - ``counts``, the int32 number of rows of each step; 0 if it is the batch in all;

    then ``steps, batch, group, slices, width``: how many steps, rows of the batch and of a group,
    slices and units there are; and the numbers of the kernel of one step.
    """
    place_of, working, size = make_place_of(shape), element.working, element.itemsize
    read = make_read_columns(element, row_columns(element, shape.of_units))
    take_weights = make_take_weights(GATES, element, shape)
    products_of = make_slice_products(GATES, element, shape)
    enter, new_state = (
        _make_enter(form, element, shape),
        make_new_state(form, element, shape.of_units),
    )
    write_state = make_write_state(form, element, shape.of_units)

    def kernel(
        weights, xp, offset, gamma, keep, state, sums, table, slices_table, counts,
        steps, batch, group, slices, width, gain, bias,
        share, scale_share, eps, eps_on_deviation, root_eps,
    ):  # fmt: skip
        values = cuda.local.array(1, working)
        of_x = cuda.local.array(1, working)
        weight = cuda.local.array(1, working)
        new = cuda.local.array(1, working)
        memory, scaling = shared_memory(), (share, scale_share, eps, eps_on_deviation, root_eps)
        sliced, column, first, mine = place_of(slices, group, batch, width)
        take_weights(memory, weights, column - sliced[2], width)
        earlier, now, of_row = 0, batch, width * size
        for step in range(steps):
            count = count_of(counts, step, batch)
            row, limit = (mine, width) if 0 <= mine < count else (0, 0)
            xrow = now - batch + row
            read(xp, xrow * width, column, limit, of_x)
            if step > 0:
                grid_barrier()
            products_of(
                memory, state, earlier + first, min(group, count - first), width, values
            )  # fmt: skip
            values[0] += of_x[0]
            enter(
                values, (sums, table), slices_table, sliced, row, xrow, batch, width, column,
                limit, scaling,
            )  # fmt: skip
            new_state(values, (offset, gamma), (gain, bias), column, width, weight, new)
            write_state(
                state + now * of_row, state + earlier * of_row, keep + (now - batch) * of_row,
                row, width, column, limit, new,
            )  # fmt: skip
            earlier, now = now, now + count

    parameters = ("address",) * 10 + ("index",) * 5 + (element.working_name,) * 7
    return Kernel(kernel, parameters, shape.threads)
