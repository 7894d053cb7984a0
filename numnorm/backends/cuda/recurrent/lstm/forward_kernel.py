"""The forward kernel of a normalized LSTM: what follows from the products of one step.

The products are those of a library: a step waits for the one before it.
"""

from typing import Any

from numnorm.backends.contract.recurrent import LSTMForm
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import Kernel, constant, cuda, device, tangent
from numnorm.backends.cuda.recurrent.common.cell_norm import (
    CELL,
    NUMBERS,
    ROOMS,
    bias_of,
    gain_of,
    make_cell_statistics,
    make_keep_statistics,
    make_normalize,
    normalized,
    room_for_parts,
)
from numnorm.backends.cuda.recurrent.common.zoneout import mixed
from numnorm.backends.cuda.recurrent.lstm.gates import (
    GATES,
    gate_parts,
    make_gates,
    make_origins,
    make_read_products,
    places,
    sections,
)
from numnorm.backends.cuda.threads.group_reductions import WARP, make_team_sum
from numnorm.backends.cuda.threads.row_columns import (
    make_column_weight,
    make_read_columns,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape


def _make_products(form: LSTMForm, element: Element, shape: RowShape) -> Any:
    """Return a device function of a step's row: its products, normalized.

    ``products(z, xp, sums, table, there, row, width, at, limit, values, scaling, room)`` also
    writes the sums of both products, unless their address is 0, and the row's statistics.
    """
    columns, parts, working = row_columns(element, shape), gate_parts(form), element.working
    write, slots, by_product = make_write_columns(element, columns), columns.slots, form.by_product
    read = make_read_products(form, element, shape, summed=False)

    @device
    def write_sums(sums, row, width, at, limit, values):
        if not by_product and sums != 0:
            for gate in range(GATES):
                first = (row * GATES + gate) * width
                write(sums, first, at, limit, values[gate * slots :])

    if form.gates is None:

        @device
        def plain(z, xp, sums, table, there, row, width, at, limit, values, scaling, room):
            read(z, xp, row, width, at, width, values)
            write_sums(sums, row, width, at, limit, values)

        return plain
    count, all_places, numbers = parts.count, places(form), parts.count * NUMBERS
    origins_of, keep = make_origins(form, element), make_keep_statistics(element, count)
    statistics = make_cell_statistics(form.gates.formula, element, shape, parts)
    normalize, team = make_normalize(element, shape, parts), shape.team

    @device
    def products(z, xp, sums, table, there, row, width, at, limit, values, scaling, room):
        found = cuda.local.array(numbers, working)
        origins = cuda.local.array(count, working)
        origins_of(z, xp, row, width, origins)
        read(z, xp, row, width, at, width, values)
        statistics(values, origins, found, at, width, scaling, room)
        # Not before: the sums may be written over the products that all threads have origins of.
        write_sums(sums, row, width, at, limit, values)
        if there and table != 0 and cuda.threadIdx.x % team == 0:
            keep(table, row, all_places, 0, found)
        normalize(values, found, at, width)

    return products


def _make_cell_of(form: LSTMForm, element: Element, shape: RowShape) -> Any:
    """Return a device function of a step's row: its cell, normalized.

    ``cell_of(cells, table, there, row, at, width, weights, numbers, scaling, room, normal)``.
    """
    columns, slots = row_columns(element, shape), row_columns(element, shape).slots
    if form.cell is None:

        @device
        def plain(cells, table, there, row, at, width, weights, numbers, scaling, room, normal):
            for k in range(slots):
                normal[k] = cells[k]

        return plain
    formula, working, team = form.cell.formula, element.working, shape.team
    statistics = make_cell_statistics(formula, element, shape, CELL)
    gain = make_column_weight(element, gain_of(form.cell, element), columns)
    bias = make_column_weight(element, bias_of(form.cell, element), columns)
    team_sum, apply, centred = (
        make_team_sum(element, team),
        device(formula.forward),
        formula.centred,
    )
    keep, all_places = make_keep_statistics(element, 1), places(form)
    behind, zero = ROOMS * room_for_parts(1, shape), constant(element, 0.0)

    @device
    def cell_of(cells, table, there, row, at, width, weights, numbers, scaling, room, normal):
        gamma, beta = weights
        found = cuda.local.array(NUMBERS, working)
        origins = cuda.local.array(1, working)
        origins[0] = zero
        if centred:  # the first cell, for all threads
            origins[0] = team_sum(cells[0] if at == 0 else zero, room[behind:])
        statistics(cells, origins, found, at, width, scaling, room)
        if there and table != 0 and cuda.threadIdx.x % team == 0:
            keep(table, row, all_places, all_places - 1, found)
        weight = cuda.local.array(slots, working)
        shift = cuda.local.array(slots, working)
        gain(gamma, numbers[0], 0, at, width, weight)
        bias(beta, numbers[1], 0, at, width, shift)
        for k in range(slots):
            normal[k] = apply(normalized(cells[k], found, 0), weight[k], shift[k])

    return cell_of


def make_write_states(form: LSTMForm, element: Element, shape: RowShape) -> Any:
    """Return a device function that stores a row's new state and cell.

    ``write_states(addresses, row, width, at, limit, gates, cells, before, normal)``: the addresses
    are ``keep_h, keep_c, h_before, h, c, cell``.
    """
    columns, working, tanh = row_columns(element, shape), element.working, tangent(element)
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    slots, zoned, carries = columns.slots, form.zoneout, form.carries_normalized
    apart, o = form.carries_normalized or form.zoneout, 2 * columns.slots

    @device
    def keep_some(new, keep, before, first, at, limit):
        share = cuda.local.array(slots, working)
        read(keep, first, at, limit, share)
        for k in range(slots):
            new[k] = mixed(new[k], before[k], share[k])

    @device
    def write_states(addresses, row, width, at, limit, gates, cells, before, normal):
        keep_h, keep_c, h_before, h, c, cell = addresses
        first = row * width
        if apart and cell != 0:
            write(cell, first, at, limit, cells)
        for k in range(slots):
            cells[k] = normal[k] if carries else cells[k]
            normal[k] = gates[o + k] * tanh(normal[k])
        if zoned:
            keep_some(cells, keep_c, before, first, at, limit)
            read(h_before, first, at, width, before)
            keep_some(normal, keep_h, before, first, at, limit)
        write(c, first, at, limit, cells)
        write(h, first, at, limit, normal)

    return write_states


def make_lstm_forward(form: LSTMForm, element: Element, shape: RowShape) -> Kernel:
    """Return the kernel of one step of an LSTM.

    It takes as addresses, each of what belongs to the step's first row:

    - ``z, xp (rows, 4H)``, the products with the state and with x;
    - ``offset (4H,)``, and the gammas of z, of xp and of the cell, and its beta;
    - ``keep_h, keep_c (rows, H)``, the shares of zoneout;
    - ``h_before, c_before (rows, H)``, the states that the step is handed; ``h, c (rows, H)``,
      those that it hands on, in place of the former if that is wished;
    - ``sums (rows, 4H)``, which may be xp: both products added up, where no norm is taken of each;
      ``cell (rows, H)``, before its norm, where the cell that is handed on is another; and
      ``table (rows, places, NUMBERS)``, the statistics: 0 for what is not to be saved;

    then ``rows, width`` (H); and as numbers AdaNorm's two, which stand for gamma and beta (else 1
    and 0), and the scaling, as `make_cell_statistics` takes it, of the gates' norm and the cell's.
    """
    columns, working, zero = row_columns(element, shape), element.working, constant(element, 0.0)
    slots, all_gates, lanes = columns.slots, GATES * columns.slots, columns.lanes
    team, teams = shape.team, shape.teams
    pieces, stride = columns.pieces, columns.stride
    read, gates_of = make_read_columns(element, columns), make_gates(form, element, shape)
    products, cell_of = _make_products(form, element, shape), _make_cell_of(form, element, shape)
    write_states = make_write_states(form, element, shape)
    of_gates = ROOMS * room_for_parts(gate_parts(form).count, shape)
    of_all = of_gates + ROOMS * room_for_parts(1, shape) + max(1, shape.threads // WARP)
    size = sections(form) * slots

    def kernel(
        z, xp, offset, gamma_h, gamma_x, gamma_c, beta_c, keep_h, keep_c, h_before, c_before, h, c,
        sums, cell, table, rows, width, gain, bias,
        share, scale_share, eps, eps_on_deviation, root_eps,
        cell_share, cell_scale_share, cell_eps, cell_eps_on_deviation, cell_root_eps,
    ):  # fmt: skip
        room = cuda.shared.array(of_all, working)
        values = cuda.local.array(size, working)
        gates = cuda.local.array(all_gates, working)
        before = cuda.local.array(slots, working)
        cells = cuda.local.array(slots, working)
        normal = cuda.local.array(slots, working)
        # A team behind the last row goes along, for the barriers' sake, and stores nothing.
        row, at = (
            cuda.blockIdx.x * teams + cuda.threadIdx.x // team,
            cuda.threadIdx.x % team * lanes,
        )
        there = row < rows
        row, limit = (row, width) if there else (rows - 1, 0)
        scaling = share, scale_share, eps, eps_on_deviation, root_eps
        products(z, xp, sums, table, there, row, width, at, limit, values, scaling, room)
        weights, numbers = (offset, gamma_h, gamma_x), (gain, bias)
        gates_of(values, weights, numbers, at, width, width, gates)
        read(c_before, row * width, at, width, before)
        for p in range(pieces):
            inside = at + p * stride < width
            for j in range(lanes):
                k = p * lanes + j
                new = gates[k] * before[k] + gates[slots + k] * gates[3 * slots + k]
                cells[k] = new if inside else zero
        scaling = (
            cell_share, cell_scale_share, cell_eps, cell_eps_on_deviation, cell_root_eps,
        )  # fmt: skip
        cell_of(
            cells, table, there, row, at, width, (gamma_c, beta_c), numbers, scaling,
            room[of_gates:], normal,
        )  # fmt: skip
        addresses = keep_h, keep_c, h_before, h, c, cell
        write_states(addresses, row, width, at, limit, gates, cells, before, normal)

    parameters = ("address",) * 16 + ("index",) * 2 + (element.working_name,) * 12
    return Kernel(kernel, parameters, shape.threads)
