"""The backward kernel of a normalized gated recurrent unit: what reaches a step's products.

As for the LSTM, the gates are made again of what enters them, and what reaches them before their
norm is stored for the sums over all steps.
"""

import functools
from typing import Any

from numnorm.backends.contract.recurrent import GRUForm
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import Kernel, constant, cuda, device
from numnorm.backends.cuda.recurrent.common.cell_norm import (
    NUMBERS,
    make_kept_statistics,
    make_normalize,
    room_for_parts,
)
from numnorm.backends.cuda.recurrent.common.gate_norm_gradient import (
    Stretch,
    make_gate_norm_gradient,
    make_gate_norm_terms,
)
from numnorm.backends.cuda.recurrent.common.state_gradient import make_state_slope
from numnorm.backends.cuda.recurrent.gru.gates import (
    GATES,
    OF_GATES,
    OF_REST,
    make_gates,
    make_read_products,
    places,
)
from numnorm.backends.cuda.threads.group_reductions import SumsOf, make_team_sums
from numnorm.backends.cuda.threads.row_columns import (
    make_read_columns,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape

# Two of each part of a row, where there is a norm.
SUMS = 2 * (OF_GATES.count + OF_REST.count)


def _make_gates_again(form: GRUForm, element: Element, shape: RowShape) -> Any:
    """Return a device function that makes a row's gates again.

    ``gates_again(z, xp, table, row, width, at, weights, numbers, normal, found, gates)``: it also
    finds the normalized products and their statistics, of both gates and of the rest.
    """
    read, gates_of = make_read_products(element, shape), make_gates(form, element, shape)
    if form.norm is None:

        @device
        def plain(z, xp, table, row, width, at, weights, numbers, normal, found, gates):
            read(z, xp, row, width, at, normal[0], normal[1])
            gates_of(normal[0], normal[1], weights, numbers, at, width, gates)

        return plain
    kept, all_places = make_kept_statistics(element, 1), places(form)
    normalize_both, normalize_rest = (
        make_normalize(element, shape, parts) for parts in (OF_GATES, OF_REST)
    )

    @device
    def gates_again(z, xp, table, row, width, at, weights, numbers, normal, found, gates):
        both, rest = normal
        for n in range(2):
            kept(table, row, all_places, 2 * n, found[0][n * NUMBERS :])
            kept(table, row, all_places, 2 * n + 1, found[1][n * NUMBERS :])
        read(z, xp, row, width, at, both, rest)
        normalize_both(both, found[0], at, width)
        normalize_rest(rest, found[1], at, width)
        gates_of(both, rest, weights, numbers, at, width, gates)

    return gates_again


def _make_gate_slopes(form: GRUForm, element: Element, shape: RowShape) -> Any:
    """Return a device function of what reaches the gates, and the state before.

    ``gate_slopes(before, dh, row, width, at, limit, gates, slope, kept)``: 1 - z and r become what
    reaches z and r, and the other two what reaches the rest of the product with the state and of
    that with x; dh that of the state before, with what was `kept` of it.
    """
    columns, working, one = row_columns(element, shape), element.working, constant(element, 1.0)
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    slots, zoned = columns.slots, form.zoneout

    @device
    def gate_slopes(before, dh, row, width, at, limit, gates, slope, kept):
        state = cuda.local.array(slots, working)
        read(before, row * width, at, width, state)
        for k in range(slots):
            old, r, suggested = gates[k], gates[slots + k], gates[2 * slots + k]
            z, passed = one - old, gates[3 * slots + k]
            of_new = slope[k] * z * (one - suggested * suggested)
            gates[k] = slope[k] * (suggested - state[k]) * z * old
            gates[slots + k] = of_new * passed * r * (one - r)
            gates[2 * slots + k], gates[3 * slots + k] = of_new * r, of_new
            slope[k] = slope[k] * old + kept[k] if zoned else slope[k] * old
        write(dh, row * width, at, limit, slope)

    return gate_slopes


def _make_write_slopes(element: Element, shape: RowShape) -> Any:
    """Return a device function that stores what reaches the norms' results, for either product.

    ``write_slopes(slopes_z, slopes_x, row, width, at, limit, slopes)``: the slopes are the four
    sections that `gate_slopes` leaves.
    """
    columns = row_columns(element, shape)
    write, slots = make_write_columns(element, columns), columns.slots

    @device
    def write_slopes(slopes_z, slopes_x, row, width, at, limit, slopes):
        first = row * GATES * width
        for gate in range(2):
            write(slopes_z, first + gate * width, at, limit, slopes[gate * slots :])
            write(slopes_x, first + gate * width, at, limit, slopes[gate * slots :])
        write(slopes_z, first + 2 * width, at, limit, slopes[2 * slots :])
        write(slopes_x, first + 2 * width, at, limit, slopes[3 * slots :])

    return write_slopes


def _make_through_norms(form: GRUForm, element: Element, shape: RowShape, sums_of: SumsOf) -> Any:
    """Return a device function that stores the gradients of a row's products.

    ``through_norms(slopes, normal, found, gammas, numbers, flows, room, dz, dxp, row, width, at,
    limit)``: the slopes are the sections that `gate_slopes` leaves; what is normal, its statistics
    and the flows are those of both gates and of the rest. Their sums are taken together.
    """
    if form.norm is None:

        @device
        def nothing(
            slopes, normal, found, gammas, numbers, flows, room, dz, dxp, row, width, at, limit
        ):  # fmt: skip
            pass

        return nothing
    stretches = (OF_GATES, Stretch(GATES, 0, 2)), (OF_REST, Stretch(GATES, 2, 1, shared=False))
    (add_gates, write_gates), (add_rest, write_rest) = (
        (
            make_gate_norm_terms(form.norm, element, shape, parts, stretch),
            make_gate_norm_gradient(form.norm, element, shape, parts, stretch),
        )
        for parts, stretch in stretches
    )
    of_rest, working, row_sums = (
        2 * row_columns(element, shape).slots,
        element.working,
        sums_of(SUMS),
    )
    behind = 2 * OF_GATES.count

    @device
    def through_norms(
        slopes, normal, found, gammas, numbers, flows, room, dz, dxp, row, width, at, limit
    ):  # fmt: skip
        sums = cuda.local.array(SUMS, working)
        both, rest = normal
        add_gates(slopes, both, gammas, numbers, width, at, sums)
        add_rest(slopes[of_rest:], rest, gammas, numbers, width, at, sums[behind:])
        row_sums(sums, room)
        write_gates(
            slopes, both, found[0], sums, gammas, numbers, flows[0], dz, dxp, row, width, at, limit
        )  # fmt: skip
        write_rest(
            slopes[of_rest:], rest, found[1], sums[behind:], gammas, numbers, flows[1], dz, dxp,
            row, width, at, limit,
        )  # fmt: skip

    return through_norms


def make_step_back(form: GRUForm, element: Element, shape: RowShape, sums_of: SumsOf) -> Any:
    """Return a device function of one row of a step.

    ``step_back(saved, weights, passed_on, results, row, later, width, at, limit, numbers, flows,
    room)``: ``z, xp, before, table``; ``offset, offset_x, offset_h, gamma_h, gamma_x``; ``dy,
    product, dh, keep``; ``dz, dxp, slopes_z, slopes_x``; AdaNorm's two; the three of both gates
    and of the rest; and the room of the sums.
    """
    working, slots = element.working, row_columns(element, shape).slots
    slope_of = make_state_slope(element, shape, zoneout=form.zoneout, past_every_step=True)
    gates_again, gate_slopes = (
        make(form, element, shape) for make in (_make_gates_again, _make_gate_slopes)
    )
    through_norms = _make_through_norms(form, element, shape, sums_of)
    write_slopes = _make_write_slopes(element, shape)
    two, four, of_parts = 2 * slots, 4 * slots, 2 * NUMBERS

    @device
    def step_back(
        saved, weights, passed_on, results, row, later, width, at, limit, numbers, flows, room
    ):  # fmt: skip
        both = cuda.local.array(four, working)
        rest = cuda.local.array(two, working)
        gates = cuda.local.array(four, working)
        found = cuda.local.array(of_parts, working)
        found_rest = cuda.local.array(of_parts, working)
        slope = cuda.local.array(slots, working)
        kept = cuda.local.array(slots, working)
        z, xp, before, table = saved
        dz, dxp, slopes_z, slopes_x = results
        normal, statistics = (both, rest), (found, found_rest)
        gates_again(z, xp, table, row, width, at, weights, numbers, normal, statistics, gates)
        slope_of(passed_on, row, width, at, later, slope, kept)
        gate_slopes(before, passed_on[2], row, width, at, limit, gates, slope, kept)
        write_slopes(slopes_z, slopes_x, row, width, at, limit, gates)
        through_norms(
            gates, normal, statistics, weights[3:], numbers, flows, room, dz, dxp, row, width, at,
            limit,
        )  # fmt: skip

    return step_back


def make_gru_backward(form: GRUForm, element: Element, shape: RowShape) -> Kernel:
    """Return the kernel of one step of a gated recurrent unit.

    It takes as addresses, each of what belongs to the step's first row:

    - ``z, xp (rows, 3H)``, the products; ``before (rows, H)``, the state that the step was handed;
      and the ``table`` of statistics;
    - the offsets, the gammas and ``keep``, as the forward kernel;
    - ``dy (rows, H)``; ``product (later, H)``, what the states get from the next step's product,
      which has the first `later` rows; ``dh (rows, H)``, what else they get, of the last states at
      first, which becomes that of the states before;
    - ``dz, dxp (rows, 3H)``, the results, where there is a norm; ``slopes_z, slopes_x (rows, 3H)``
      of what the norms make of the products, the results where there is none;

    then ``rows, later, width``; and as numbers AdaNorm's two, and of both gates' norm and the
    rest's ``mean_share, scale_share, eps_on_deviation``, as the backward kernel of rows.
    """
    lanes, working = row_columns(element, shape).lanes, element.working
    team, teams = shape.team, shape.teams
    sums_of = functools.partial(make_team_sums, element, team)
    step_back = make_step_back(form, element, shape, sums_of)
    of_all = room_for_parts(SUMS // 2, shape)

    def kernel(
        z, xp, before, table, offset, offset_x, offset_h, gamma_h, gamma_x, keep, dy, product, dh,
        dz, dxp, slopes_z, slopes_x, rows, later, width, gain, bias,
        mean_share, scale_share, eps_on_deviation,
        rest_mean_share, rest_scale_share, rest_eps_on_deviation,
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
            (rest_mean_share, rest_scale_share, rest_eps_on_deviation),
        )
        step_back(
            (z, xp, before, table), (offset, offset_x, offset_h, gamma_h, gamma_x),
            (dy, product, dh, keep), (dz, dxp, slopes_z, slopes_x), row, later, width, at, limit,
            (gain, bias), flows, room,
        )  # fmt: skip

    parameters = ("address",) * 17 + ("index",) * 3 + (element.working_name,) * 8
    return Kernel(kernel, parameters, shape.threads)
