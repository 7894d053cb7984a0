"""The forward kernel of a normalized gated recurrent unit: what follows from a step's products.

The products are those of a library: a step waits for the one before it.
"""

from typing import Any

from numnorm.backends.contract.recurrent import GRUForm
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import Kernel, constant, cuda, device, make_load_one
from numnorm.backends.cuda.recurrent.common.cell_norm import (
    NUMBERS,
    ROOMS,
    make_cell_statistics,
    make_keep_statistics,
    make_normalize,
    room_for_parts,
)
from numnorm.backends.cuda.recurrent.common.zoneout import mixed
from numnorm.backends.cuda.recurrent.gru.gates import (
    GATES,
    OF_GATES,
    OF_REST,
    make_gates,
    make_read_products,
    places,
)
from numnorm.backends.cuda.threads.row_columns import (
    make_read_columns,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape


def _make_products(form: GRUForm, element: Element, shape: RowShape) -> Any:
    """Return a device function of a step's row: its products, normalized.

    ``products(z, xp, table, there, row, width, at, both, rest, scalings, room)`` also writes the
    row's statistics, unless the table is 0.
    """
    read = make_read_products(element, shape)
    if form.norm is None:

        @device
        def plain(z, xp, table, there, row, width, at, both, rest, scalings, room):
            read(z, xp, row, width, at, both, rest)

        return plain
    formula, working, load_one = form.norm.formula, element.working, make_load_one(element)
    of_both, of_rest = (
        make_cell_statistics(formula, element, shape, parts) for parts in (OF_GATES, OF_REST)
    )
    normalize_both, normalize_rest = (
        make_normalize(element, shape, parts) for parts in (OF_GATES, OF_REST)
    )
    keep, all_places, team = make_keep_statistics(element, 1), places(form), shape.team
    behind, numbers = ROOMS * room_for_parts(OF_GATES.count, shape), 2 * NUMBERS

    @device
    def products(z, xp, table, there, row, width, at, both, rest, scalings, room):
        found = cuda.local.array(numbers, working)
        found_rest = cuda.local.array(numbers, working)
        origins = cuda.local.array(2, working)
        first = row * GATES * width
        last = first + 2 * width
        read(z, xp, row, width, at, both, rest)
        origins[0], origins[1] = load_one(z, first), load_one(xp, first)
        of_both(both, origins, found, at, width, scalings[0], room)
        origins[0], origins[1] = load_one(z, last), load_one(xp, last)
        of_rest(rest, origins, found_rest, at, width, scalings[1], room[behind:])
        if there and table != 0 and cuda.threadIdx.x % team == 0:
            for n in range(2):  # of each product, those of its gates and its rest
                keep(table, row, all_places, 2 * n, found[n * NUMBERS :])
                keep(table, row, all_places, 2 * n + 1, found_rest[n * NUMBERS :])
        normalize_both(both, found, at, width)
        normalize_rest(rest, found_rest, at, width)

    return products


def make_new_state(form: GRUForm, element: Element, shape: RowShape) -> Any:
    """Return a device function ``new_state(keep, row, width, at, gates, before, new)``.

    The new state is made of the gates and of the one `before`, both of a thread's units.
    """
    columns, working, one = row_columns(element, shape), element.working, constant(element, 1.0)
    read, slots, zoned = make_read_columns(element, columns), columns.slots, form.zoneout

    @device
    def new_state(keep, row, width, at, gates, before, new):
        for k in range(slots):
            old = gates[k]
            new[k] = old * before[k] + (one - old) * gates[2 * slots + k]
        if zoned:
            share = cuda.local.array(slots, working)
            read(keep, row * width, at, width, share)
            for k in range(slots):
                new[k] = mixed(new[k], before[k], share[k])

    return new_state


def make_gru_forward(form: GRUForm, element: Element, shape: RowShape) -> Kernel:
    """Return the kernel of one step of a gated recurrent unit.

    It takes as addresses, each of what belongs to the step's first row:

    - ``z, xp (rows, 3H)``, the products with the state and with x;
    - ``offset (2H,)`` of both gates, ``offset_x (H,)`` of the rest, ``offset_h (H,)`` of what r
      lets pass; and the gammas of z and xp;
    - ``keep (rows, H)``, the shares of zoneout;
    - ``h_before (rows, H)``, the states that the step is handed; ``h (rows, H)``, those that it
      hands on; and ``table (rows, places, NUMBERS)``, the statistics, 0 if not to be saved;

    then ``rows, width`` (H); and as numbers AdaNorm's two, which stand for gamma and beta (else 1
    and 0), and the scaling, as `make_cell_statistics` takes it, of both gates' norm and the rest's.
    """
    columns, working = row_columns(element, shape), element.working
    slots, lanes, team, teams = columns.slots, columns.lanes, shape.team, shape.teams
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    products, gates_of = _make_products(form, element, shape), make_gates(form, element, shape)
    of_all = ROOMS * sum(room_for_parts(parts.count, shape) for parts in (OF_GATES, OF_REST))
    new_state, two, four = make_new_state(form, element, shape), 2 * slots, 4 * slots

    def kernel(
        z, xp, offset, offset_x, offset_h, gamma_h, gamma_x, keep, h_before, h, table, rows, width,
        gain, bias, share, scale_share, eps, eps_on_deviation, root_eps,
        rest_share, rest_scale_share, rest_eps, rest_eps_on_deviation, rest_root_eps,
    ):  # fmt: skip
        room = cuda.shared.array(of_all, working)
        both = cuda.local.array(four, working)
        rest = cuda.local.array(two, working)
        gates = cuda.local.array(four, working)
        before = cuda.local.array(slots, working)
        # A team behind the last row goes along, for the barriers' sake, and stores nothing.
        row, at = (
            cuda.blockIdx.x * teams + cuda.threadIdx.x // team,
            cuda.threadIdx.x % team * lanes,
        )
        there = row < rows
        row, limit = (row, width) if there else (rows - 1, 0)
        scalings = (
            (share, scale_share, eps, eps_on_deviation, root_eps),
            (rest_share, rest_scale_share, rest_eps, rest_eps_on_deviation, rest_root_eps),
        )
        products(z, xp, table, there, row, width, at, both, rest, scalings, room)
        weights = offset, offset_x, offset_h, gamma_h, gamma_x
        gates_of(both, rest, weights, (gain, bias), at, width, gates)
        first = row * width
        read(h_before, first, at, width, before)
        new_state(keep, row, width, at, gates, before, rest)
        write(h, first, at, limit, rest)

    parameters = ("address",) * 11 + ("index",) * 2 + (element.working_name,) * 12
    return Kernel(kernel, parameters, shape.threads)
