"""The backward kernel of a normalized LSTM: what reaches the products of one step.

The gates are made again of what enters them. What reaches them before their norm, and what
reaches the normalized cell, is stored too: the gradients of the norms' parameters are sums of
those over all steps, which a kernel of its own takes afterwards. To add to them step by step would
take more memory traffic than all the rest of a step.
"""

import functools
from typing import Any

from numnorm.backends.contract.recurrent import LSTMForm
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import Kernel, constant, cuda, device, tangent
from numnorm.backends.cuda.recurrent.common.cell_norm import (
    CELL,
    NUMBERS,
    bias_of,
    gain_of,
    make_kept_statistics,
    make_normalize,
)
from numnorm.backends.cuda.recurrent.common.cell_norm_gradient import make_through_norm
from numnorm.backends.cuda.recurrent.common.gate_norm_gradient import (
    Stretch,
    make_through_gate_norm,
)
from numnorm.backends.cuda.recurrent.common.state_gradient import make_state_slope
from numnorm.backends.cuda.recurrent.common.zoneout import passed
from numnorm.backends.cuda.recurrent.lstm.gates import (
    GATES,
    gate_parts,
    make_gates,
    make_read_products,
    places,
    sections,
)
from numnorm.backends.cuda.threads.group_reductions import WARP, SumsOf, make_team_sums
from numnorm.backends.cuda.threads.row_columns import (
    make_column_weight,
    make_read_columns,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape


def _make_gates_again(form: LSTMForm, element: Element, shape: RowShape) -> Any:
    """Return a device function that makes a row's gates again.

    ``gates_again(z, xp, table, row, width, at, weights, numbers, values, found, gates)``: it also
    finds the normalized products and their statistics.
    """
    read = make_read_products(form, element, shape, summed=True)
    gates_of, parts = make_gates(form, element, shape), gate_parts(form)
    if form.gates is None:

        @device
        def plain(z, xp, table, row, width, at, weights, numbers, values, found, gates):
            read(z, xp, row, width, at, width, values)
            gates_of(values, weights, numbers, at, width, width, gates)

        return plain
    kept, normalize = (
        make_kept_statistics(element, parts.count),
        make_normalize(element, shape, parts),
    )
    all_places = places(form)

    @device
    def gates_again(z, xp, table, row, width, at, weights, numbers, values, found, gates):
        kept(table, row, all_places, 0, found)
        read(z, xp, row, width, at, width, values)
        normalize(values, found, at, width)
        gates_of(values, weights, numbers, at, width, width, gates)

    return gates_again


def _make_cell_gradient(form: LSTMForm, element: Element, shape: RowShape, sums_of: SumsOf) -> Any:
    """Return a device function of what reaches the cell before its norm.

    ``cell_gradient(cell, table, dn, row, width, at, limit, weights, numbers, flows, room, gates,
    slope, passes)``: the slope of the state becomes that of the cell, and o in the gates what
    reaches it. `passes` is what of dc reaches the new cell.
    """
    columns, working, tanh = row_columns(element, shape), element.working, tangent(element)
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    slots, o, one = columns.slots, 2 * columns.slots, constant(element, 1.0)
    carries = form.carries_normalized
    through_norm = make_through_norm(form.cell, element, shape, sums_of)
    at_cell = _make_cell_again(form, element, shape)
    stored = form.cell is not None and form.cell.parameters > 0

    @device
    def cell_gradient(
        cell, table, dn, row, width, at, limit, weights, numbers, flows, room, gates, slope, passes
    ):  # fmt: skip
        xhat = cuda.local.array(slots, working)
        found = cuda.local.array(NUMBERS, working)
        gain = cuda.local.array(slots, working)
        normal = cuda.local.array(slots, working)
        read(cell, row * width, at, width, xhat)
        at_cell(table, row, at, width, weights, numbers, found, xhat, gain, normal)
        for k in range(slots):
            out, gate = tanh(normal[k]), gates[o + k]
            gates[o + k] = slope[k] * out * gate * (one - gate)
            slope[k] = slope[k] * gate * (one - out * out)
            if carries:
                slope[k] += passes[k]
        if stored:
            write(dn, row * width, at, limit, slope)
        through_norm(slope, at, width, xhat, gain, numbers, found, flows, room)
        for k in range(slots):
            if not carries:
                slope[k] += passes[k]

    return cell_gradient


def _make_cell_again(form: LSTMForm, element: Element, shape: RowShape) -> Any:
    """Return a device function that normalizes a row's cell again.

    ``at_cell(table, row, at, width, weights, numbers, found, xhat, gain, normal)``: the cell, in
    `xhat`, becomes the normalized value; `gain` is gamma there, and `normal` the norm's result.
    """
    columns, slots = row_columns(element, shape), row_columns(element, shape).slots
    if form.cell is None:

        @device
        def plain(table, row, at, width, weights, numbers, found, xhat, gain, normal):
            for k in range(slots):
                normal[k] = xhat[k]

        return plain
    kept, all_places = make_kept_statistics(element, 1), places(form)
    gain_at = make_column_weight(element, gain_of(form.cell, element), columns)
    bias_at = make_column_weight(element, bias_of(form.cell, element), columns)
    apply, working = device(form.cell.formula.forward), element.working
    normalize = make_normalize(element, shape, CELL)

    @device
    def at_cell(table, row, at, width, weights, numbers, found, xhat, gain, normal):
        shift = cuda.local.array(slots, working)
        kept(table, row, all_places, all_places - 1, found)
        gain_at(weights[0], numbers[0], 0, at, width, gain)
        bias_at(weights[1], numbers[1], 0, at, width, shift)
        normalize(xhat, found, at, width)
        for k in range(slots):
            normal[k] = apply(xhat[k], gain[k], shift[k])

    return at_cell


def _make_gate_slopes(form: LSTMForm, element: Element, shape: RowShape) -> Any:
    """Return a device function of what reaches the gates, and the cell before.

    ``gate_slopes(before, dc, row, width, at, limit, gates, slope, kept)``: f, i and g become what
    reaches them; dc that of the cell before, with what was `kept` of it.
    """
    columns, working, one = row_columns(element, shape), element.working, constant(element, 1.0)
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    slots, zoned = columns.slots, form.zoneout

    @device
    def gate_slopes(before, dc, row, width, at, limit, gates, slope, kept):
        cell = cuda.local.array(slots, working)
        read(before, row * width, at, width, cell)
        for k in range(slots):
            f, i, g = gates[k], gates[slots + k], gates[3 * slots + k]
            gates[k] = slope[k] * cell[k] * f * (one - f)
            gates[slots + k] = slope[k] * g * i * (one - i)
            gates[3 * slots + k] = slope[k] * i * (one - g * g)
            slope[k] = slope[k] * f + kept[k] if zoned else slope[k] * f
        write(dc, row * width, at, limit, slope)

    return gate_slopes


def _make_after(form: LSTMForm, element: Element, shape: RowShape) -> Any:
    """Return a device function ``after(dc, keep_c, row, width, at, passes, kept)``.

    What of dc reaches the new cell, and what goes past the step.
    """
    columns, zoned = row_columns(element, shape), form.zoneout
    read, slots = make_read_columns(element, columns), columns.slots

    @device
    def after(dc, keep_c, row, width, at, passes, kept):
        read(dc, row * width, at, width, passes)
        if zoned:
            read(keep_c, row * width, at, width, kept)
            for k in range(slots):
                share = kept[k]
                kept[k] = share * passes[k]
                passes[k] = passed(passes[k], share)

    return after


def make_step_back(form: LSTMForm, element: Element, shape: RowShape, sums_of: SumsOf) -> Any:
    """Return a device function of one row of a step.

    ``step_back(products, saved, weights, keeps, passed_on, results, row, later, width, at, limit,
    numbers, flows, rooms)``: ``z, xp``; ``cell, before, table``; ``offset, gamma_h, gamma_x,
    gamma_c, beta_c``; ``keep_h, keep_c``; ``dy, product, dh, dc``; ``dz, dxp, slopes, dn``;
    AdaNorm's two; the gates' three and the cell's; and the rooms of the sums over the cell and
    the gates.
    """
    columns, working = row_columns(element, shape), element.working
    slots, all_gates = columns.slots, GATES * columns.slots
    parts, size = gate_parts(form).count, sections(form) * columns.slots
    slope_of = make_state_slope(element, shape, zoneout=form.zoneout, past_every_step=form.zoneout)
    gates_again, gate_slopes, after = (
        make(form, element, shape) for make in (_make_gates_again, _make_gate_slopes, _make_after)
    )
    cell_gradient, stretch = (
        _make_cell_gradient(form, element, shape, sums_of),
        Stretch(GATES, 0, GATES),
    )
    through_norm = make_through_gate_norm(
        form.gates, element, shape, gate_parts(form), stretch, sums_of
    )
    write, numbers = make_write_columns(element, columns), max(1, parts * NUMBERS)
    zoned = form.zoneout

    @device
    def step_back(
        products, saved, weights, keeps, passed_on, results, row, later, width, at, limit, pair,
        flows, rooms,
    ):  # fmt: skip
        values = cuda.local.array(size, working)
        gates = cuda.local.array(all_gates, working)
        found = cuda.local.array(numbers, working)
        slope = cuda.local.array(slots, working)
        passes = cuda.local.array(slots, working)
        kept = cuda.local.array(slots, working)
        z, xp = products
        cell, before, table = saved
        offset, gamma_h, gamma_x, gamma_c, beta_c = weights
        keep_h, keep_c = keeps
        dy, product, dh, dc = passed_on
        dz, dxp, slopes, dn = results
        gates_again(
            z, xp, table, row, width, at, (offset, gamma_h, gamma_x), pair, values, found, gates
        )  # fmt: skip
        slope_of((dy, product, dh, keep_h), row, width, at, later, slope, kept)
        if zoned:
            write(dh, row * width, at, limit, kept)
        after(dc, keep_c, row, width, at, passes, kept)
        cell_gradient(
            cell, table, dn, row, width, at, limit, (gamma_c, beta_c), pair, flows[1], rooms[0],
            gates, slope, passes,
        )  # fmt: skip
        gate_slopes(before, dc, row, width, at, limit, gates, slope, kept)
        for gate in range(GATES):
            first = (row * GATES + gate) * width
            write(slopes, first, at, limit, gates[gate * slots :])
        through_norm(
            gates, values, found, (gamma_h, gamma_x), pair, flows[0], rooms[1], dz, dxp, row,
            width, at, limit,
        )  # fmt: skip

    return step_back


def make_lstm_backward(form: LSTMForm, element: Element, shape: RowShape) -> Kernel:
    """Return the kernel of one step of an LSTM.

    It takes as addresses, each of what belongs to the step's first row:

    - ``z, xp (rows, 4H)``, the products, the first their sum where no norm is taken of each;
      ``cell (rows, H)``, before its norm; ``before (rows, H)``, the cell that the step was handed;
      and the ``table`` of statistics;
    - the offset and the parameters, and ``keep_h, keep_c``, as the forward kernel;
    - ``dy (rows, H)``; ``product (later, H)``, what the states get from the next step, which has
      the first `later` rows; ``dh, dc (rows, H)``, those of the last states, which become those of
      the cell before and, with zoneout, what of the state goes past this step;
    - ``dz, dxp (rows, 4H)``, the results, where the gates have a norm; ``slopes (rows, 4H)`` of
      what enters the gates, the results where they have none; ``dn (rows, H)``, that of the
      normalized cell, if its norm has parameters;

    then ``rows, later, width``; and as numbers AdaNorm's two, and of the gates' norm and the
    cell's ``mean_share, scale_share, eps_on_deviation``, as the backward kernel of rows.
    """
    lanes, working = row_columns(element, shape).lanes, element.working
    team, teams, warps = shape.team, shape.teams, max(1, shape.threads // WARP)
    sums_of = functools.partial(make_team_sums, element, team)
    step_back = make_step_back(form, element, shape, sums_of)
    of_cell, of_all = 2 * warps, 2 * warps * (1 + gate_parts(form).count)

    def kernel(
        z, xp, cell, before, table, offset, gamma_h, gamma_x, gamma_c, beta_c, keep_h, keep_c,
        dy, product, dh, dc, dz, dxp, slopes, dn, rows, later, width, gain, bias,
        mean_share, scale_share, eps_on_deviation,
        cell_mean_share, cell_scale_share, cell_eps_on_deviation,
    ):  # fmt: skip
        room = cuda.shared.array(of_all, working)
        # A team behind the last row goes along, for the barriers' sake, and stores nothing.
        row, at = (
            cuda.blockIdx.x * teams + cuda.threadIdx.x // team,
            cuda.threadIdx.x % team * lanes,
        )
        row, limit = (row, width) if row < rows else (rows - 1, 0)
        flows = (
            (mean_share, scale_share, eps_on_deviation),
            (cell_mean_share, cell_scale_share, cell_eps_on_deviation),
        )
        step_back(
            (z, xp), (cell, before, table), (offset, gamma_h, gamma_x, gamma_c, beta_c),
            (keep_h, keep_c), (dy, product, dh, dc), (dz, dxp, slopes, dn), row, later, width, at,
            limit, (gain, bias), flows, (room, room[of_cell:]),
        )  # fmt: skip

    parameters = ("address",) * 20 + ("index",) * 3 + (element.working_name,) * 8
    return Kernel(kernel, parameters, shape.threads)
