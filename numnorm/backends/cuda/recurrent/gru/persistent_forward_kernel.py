"""The forward kernel of all steps of a normalized gated recurrent unit.

Its blocks wait for each other, as those of an LSTM do: for the states of the step before, and once
for the norms of both gates and of the rest.
"""

from typing import Any

from numnorm.backends.contract.recurrent import GRUForm
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import Kernel, cuda, device, grid_barrier, shared_memory
from numnorm.backends.cuda.recurrent.common.cell_norm import (
    NUMBERS,
    Parts,
    make_keep_statistics,
    make_kept_statistics,
    make_normalize,
)
from numnorm.backends.cuda.recurrent.gru.gates import GATES, OF_GATES, OF_REST, make_gates, places
from numnorm.backends.cuda.recurrent.gru.step import make_new_state
from numnorm.backends.cuda.recurrent.persistent.grid_statistics import make_gather, make_leave
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.recurrent.persistent.slice_matmul import (
    make_slice_products,
    make_take_weights,
)
from numnorm.backends.cuda.recurrent.persistent.slice_threads import count_of, make_place_of
from numnorm.backends.cuda.threads.row_columns import (
    make_read_columns,
    make_write_columns,
    row_columns,
)

# Of how many parts of a row blocks leave statistics for each other: of the product with the state
# alone, as those of x are there before.
SLICE_PLACES = 2


def _make_normalized(form: GRUForm, element: Element, shape: SliceShape) -> Any:
    """Return a device function that normalizes a thread's units of both products.

    ``normalized(both, rest, tables, sliced, row, xrow, rows, column, limit, scalings)``: the
    tables are ``slices, statistics``.
    """
    if form.norm is None:

        @device
        def plain(both, rest, tables, sliced, row, xrow, rows, column, limit, scalings):
            pass

        return plain
    formula, working, numbers = form.norm.formula, element.working, 2 * NUMBERS
    of_both, of_rest = Parts(1, OF_GATES.sections), Parts(1, OF_REST.sections)
    leave_both, leave_rest = (make_leave(formula, element, shape, p) for p in (of_both, of_rest))
    gather_both, gather_rest = (make_gather(formula, element, shape, p) for p in (of_both, of_rest))
    normalize_both, normalize_rest = (
        make_normalize(element, shape.of_units, parts) for parts in (OF_GATES, OF_REST)
    )
    keep, kept = make_keep_statistics(element, 1), make_kept_statistics(element, 1)
    all_places = places(form)

    @device
    def normalized(both, rest, tables, sliced, row, xrow, rows, column, limit, scalings):
        found = cuda.local.array(numbers, working)
        found_rest = cuda.local.array(numbers, working)
        slices, statistics = tables
        there = limit > 0
        kept(statistics, xrow, all_places, 2, found[NUMBERS:])
        kept(statistics, xrow, all_places, 3, found_rest[NUMBERS:])
        leave_both(both, sliced, 0, there, slices, row, rows, scalings[0], found)
        leave_rest(rest, sliced, 1, there, slices, row, rows, scalings[1], found_rest)
        grid_barrier()
        gather_both(sliced, 0, there, slices, row, rows, scalings[0], found)
        gather_rest(sliced, 1, there, slices, row, rows, scalings[1], found_rest)
        if there and column == 0:
            keep(statistics, xrow, all_places, 0, found)
            keep(statistics, xrow, all_places, 1, found_rest)
        normalize_both(both, found, column, limit)
        normalize_rest(rest, found_rest, column, limit)

    return normalized


def _make_step(form: GRUForm, element: Element, shape: SliceShape) -> Any:
    """Return a device function of what follows from the products of a step, of one unit of a row.

    ``step(products, of_x, before, addresses, tables, sliced, row, xrow, rows, column, limit,
    width, weights, numbers, scalings)``: the addresses are those of all products with the state,
    and of ``keep, h`` where the step's first row is. The state before becomes the new one.
    """
    columns, working = row_columns(element, shape.of_units), element.working
    write, normalized = (
        make_write_columns(element, columns),
        _make_normalized(form, element, shape),
    )
    gates_of, new_state = (
        make(form, element, shape.of_units) for make in (make_gates, make_new_state)
    )

    @device
    def step(
        products, of_x, before, addresses, tables, sliced, row, xrow, rows, column, limit, width,
        weights, numbers, scalings,
    ):  # fmt: skip
        both = cuda.local.array(4, working)
        rest = cuda.local.array(2, working)
        gates = cuda.local.array(4, working)
        new = cuda.local.array(1, working)
        z, keep, h = addresses
        if z != 0:
            for gate in range(GATES):
                write(z, (xrow * GATES + gate) * width, column, limit, products[gate:])
        for gate in range(2):
            both[gate], both[2 + gate] = products[gate], of_x[gate]
        rest[0], rest[1] = products[2], of_x[2]
        normalized(both, rest, tables, sliced, row, xrow, rows, column, limit, scalings)
        gates_of(both, rest, weights, numbers, column, width, gates)
        new_state(keep, row, width, column, gates, before, new)
        write(h, row * width, column, limit, new)
        before[0] = new[0]

    return step


def make_gru_persistent(form: GRUForm, element: Element, shape: SliceShape) -> Kernel:
    """Return the kernel of all steps of a gated recurrent unit, to be launched by its plan.

    It takes as addresses:

    - ``weights (3H, H)`` of the state, and ``xp (rows, 3H)``, the products with x of all steps;
    - the offsets and both gammas, as the kernel of one step; and ``keep (rows, H)``;
    - ``state (batch + rows, H)``, those given first;
    - ``products (rows, 3H)`` with the state, 0 if they are not to be saved;
    - ``statistics (rows, places, NUMBERS)``, where those of x are already, and ``slices``, room
      for NUMBERS of each slice of both parts of each row of the batch;
    - ``counts``, the int32 number of rows of each step; 0 if it is the batch in all;

    then ``steps, batch, group, slices, width``: how many steps, rows of the batch and of a group,
    slices and units there are; and the numbers of the kernel of one step.
    """
    place_of, working, size = make_place_of(shape), element.working, element.itemsize
    read = make_read_columns(element, row_columns(element, shape.of_units))
    take_weights = make_take_weights(GATES, element, shape)
    products_of = make_slice_products(GATES, element, shape)
    take_step = _make_step(form, element, shape)

    def kernel(
        weights, xp, offset, offset_x, offset_h, gamma_h, gamma_x, keep, state, products,
        statistics, slices_table, counts, steps, batch, group, slices, width, gain, bias,
        share, scale_share, eps, eps_on_deviation, root_eps,
        rest_share, rest_scale_share, rest_eps, rest_eps_on_deviation, rest_root_eps,
    ):  # fmt: skip
        values = cuda.local.array(GATES, working)
        of_x = cuda.local.array(GATES, working)
        before = cuda.local.array(1, working)
        memory, numbers = shared_memory(), (gain, bias)
        scalings = (
            (share, scale_share, eps, eps_on_deviation, root_eps),
            (rest_share, rest_scale_share, rest_eps, rest_eps_on_deviation, rest_root_eps),
        )
        sliced, column, first, mine = place_of(slices, group, batch, width)
        take_weights(memory, weights, column - sliced[2], width)
        others, tables = (offset, offset_x, offset_h, gamma_h, gamma_x), (slices_table, statistics)
        read(state, max(mine, 0) * width, column, width if mine >= 0 else 0, before)
        earlier, now, of_row = 0, batch, width * size
        for step in range(steps):
            count = count_of(counts, step, batch)
            row, limit = (mine, width) if 0 <= mine < count else (0, 0)
            xrow = now - batch + row
            for gate in range(GATES):
                read(xp, (xrow * GATES + gate) * width, column, limit, of_x[gate:])
            if step > 0:
                grid_barrier()
            products_of(
                memory, state, earlier + first, min(group, count - first), width, values
            )  # fmt: skip
            addresses = products, keep + (now - batch) * of_row, state + now * of_row
            take_step(
                values, of_x, before, addresses, tables, sliced, row, xrow, batch, column, limit,
                width, others, numbers, scalings,
            )  # fmt: skip
            earlier, now = now, now + count

    parameters = ("address",) * 13 + ("index",) * 5 + (element.working_name,) * 12
    return Kernel(kernel, parameters, shape.threads)
