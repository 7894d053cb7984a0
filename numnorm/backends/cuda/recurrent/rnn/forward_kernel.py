"""The forward kernel of a normalized plain recurrent network: what follows from a step's products.

The products are those of a library: a step waits for the one before it.
"""

from typing import Any

from numnorm.backends.contract.recurrent import RNNForm
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import Kernel, constant, cuda, device, make_load_one
from numnorm.backends.cuda.recurrent.common.cell_norm import (
    CELL,
    NUMBERS,
    ROOMS,
    gain_of,
    make_cell_statistics,
    make_keep_statistics,
    make_normalize,
    room_for_parts,
)
from numnorm.backends.cuda.recurrent.common.zoneout import mixed
from numnorm.backends.cuda.threads.activations import make_activation
from numnorm.backends.cuda.threads.row_columns import (
    make_column_weight,
    make_read_columns,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape


def make_new_state(form: RNNForm, element: Element, shape: RowShape) -> Any:
    """Return a device function ``new_state(values, weights, numbers, at, width, gain, result)``.

    It makes a row's new units of normalized sums, and finds gamma at them. The weights are
    ``offset, gamma``, and the numbers stand for gamma and beta where there is no array of them.
    """
    columns, slots = row_columns(element, shape), row_columns(element, shape).slots
    offset_at = make_column_weight(element, element, columns)
    gain_at = make_column_weight(element, gain_of(form.norm, element), columns)
    apply = device(form.norm.formula.forward if form.norm else lambda xhat, g, b: xhat)
    zero = constant(element, 0.0)
    activated = make_activation(element, rectified=form.rectified).value

    @device
    def new_state(values, weights, numbers, at, width, gain, result):
        offset_at(weights[0], zero, 0, at, width, result)
        gain_at(weights[1], numbers[0], 0, at, width, gain)
        for k in range(slots):
            result[k] = activated(apply(values[k], gain[k], numbers[1]) + result[k])

    return new_state


def _make_sums(form: RNNForm, element: Element, shape: RowShape) -> Any:
    """Return a device function of a step's row: the sums of both products, normalized.

    ``sums_of(z, xp, sums, table, there, row, width, at, limit, values, scaling, room)`` also
    writes the sums and their statistics, unless the address is 0.
    """
    columns, working, team = row_columns(element, shape), element.working, shape.team
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    slots = columns.slots

    @device
    def added(z, xp, row, width, at, values):
        other = cuda.local.array(slots, working)
        read(z, row * width, at, width, values)
        read(xp, row * width, at, width, other)
        for k in range(slots):
            values[k] += other[k]

    @device
    def write_sums(sums, row, width, at, limit, values):
        if sums != 0:
            write(sums, row * width, at, limit, values)

    if form.norm is None:

        @device
        def plain(z, xp, sums, table, there, row, width, at, limit, values, scaling, room):
            added(z, xp, row, width, at, values)
            write_sums(sums, row, width, at, limit, values)

        return plain
    statistics = make_cell_statistics(form.norm.formula, element, shape, CELL)
    load_one, keep = make_load_one(element), make_keep_statistics(element, 1)
    normalize = make_normalize(element, shape, CELL)

    @device
    def sums_of(z, xp, sums, table, there, row, width, at, limit, values, scaling, room):
        found = cuda.local.array(NUMBERS, working)
        origins = cuda.local.array(1, working)
        origins[0] = load_one(z, row * width) + load_one(xp, row * width)
        added(z, xp, row, width, at, values)
        statistics(values, origins, found, at, width, scaling, room)
        # Not before: the sums may be written over the product that all threads have origins of.
        write_sums(sums, row, width, at, limit, values)
        if there and table != 0 and cuda.threadIdx.x % team == 0:
            keep(table, row, 1, 0, found)
        normalize(values, found, at, width)

    return sums_of


def make_write_state(form: RNNForm, element: Element, shape: RowShape) -> Any:
    """Return a device function ``write_state(state, before, keep, row, width, at, limit, new)``."""
    columns, working, zoned = row_columns(element, shape), element.working, form.zoneout
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    slots = columns.slots

    @device
    def write_state(state, before, keep, row, width, at, limit, new):
        if zoned:
            old = cuda.local.array(slots, working)
            share = cuda.local.array(slots, working)
            read(before, row * width, at, width, old)
            read(keep, row * width, at, width, share)
            for k in range(slots):
                new[k] = mixed(new[k], old[k], share[k])
        write(state, row * width, at, limit, new)

    return write_state


def make_rnn_forward(form: RNNForm, element: Element, shape: RowShape) -> Kernel:
    """Return the kernel of one step of a plain recurrent network.

    It takes as addresses, each of what belongs to the step's first row:

    - ``z, xp (rows, H)``, the products with the state and with x;
    - ``offset (H,)`` and ``gamma (H,)``;
    - ``keep (rows, H)``, the shares of zoneout;
    - ``before (rows, H)``, the state that the step is handed; ``state (rows, H)``, the one that
      it hands on;
    - ``sums (rows, H)``, which may be xp: both products added up; and ``table (rows, NUMBERS)``,
      the statistics: 0 for what is not to be saved;

    then ``rows, width`` (H); and as numbers AdaNorm's two, which stand for gamma and beta (else 1
    and 0), and the scaling, as `make_cell_statistics` takes it.
    """
    columns, working, team, teams = (
        row_columns(element, shape),
        element.working,
        shape.team,
        shape.teams,
    )
    lanes, slots = columns.lanes, columns.slots
    sums_of, new_state = (make(form, element, shape) for make in (_make_sums, make_new_state))
    write_state, size = make_write_state(form, element, shape), ROOMS * room_for_parts(1, shape)

    def kernel(
        z, xp, offset, gamma, keep, before, state, sums, table, rows, width, gain, bias,
        share, scale_share, eps, eps_on_deviation, root_eps,
    ):  # fmt: skip
        room = cuda.shared.array(size, working)
        values = cuda.local.array(slots, working)
        weight = cuda.local.array(slots, working)
        new = cuda.local.array(slots, working)
        # A team behind the last row goes along, for the barriers' sake, and stores nothing.
        row, at = (
            cuda.blockIdx.x * teams + cuda.threadIdx.x // team,
            cuda.threadIdx.x % team * lanes,
        )
        there = row < rows
        row, limit = (row, width) if there else (rows - 1, 0)
        scaling = share, scale_share, eps, eps_on_deviation, root_eps
        sums_of(z, xp, sums, table, there, row, width, at, limit, values, scaling, room)
        new_state(values, (offset, gamma), (gain, bias), at, width, weight, new)
        write_state(state, before, keep, row, width, at, limit, new)

    parameters = ("address",) * 9 + ("index",) * 2 + (element.working_name,) * 7
    return Kernel(kernel, parameters, shape.threads)
