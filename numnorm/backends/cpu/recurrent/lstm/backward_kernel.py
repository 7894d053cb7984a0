"""The backward kernel of a normalized LSTM: all steps of some of the batch's rows, in reverse.

The gates are computed again from what enters them: that takes less time than to store and load
them. What the parameters of the norms get is summed up for a few rows of the batch at a time, in
the working type, and flushed to float64 every few steps: those rows follow from the shape alone.
"""

import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.contract.recurrent import LSTMForm
from numnorm.backends.cpu.compiler.jit import Twins, inlined, stand_alone, twins
from numnorm.backends.cpu.matmul.micro_kernel import make_product
from numnorm.backends.cpu.memory.borrowed import borrowed
from numnorm.backends.cpu.recurrent.common.cell_norm import make_cell_norm
from numnorm.backends.cpu.recurrent.common.steps import (
    ask_for_row,
    before_step,
    flush_groups,
    rows_of_groups,
    rows_of_step,
    to_next,
)
from numnorm.backends.cpu.recurrent.common.zoneout import make_zoneout
from numnorm.backends.cpu.recurrent.lstm.gates import make_gate_norm, make_gates
from numnorm.backends.cpu.simd.access import Access, first_lanes, whole_lanes
from numnorm.backends.cpu.simd.activations import make_tanh
from numnorm.backends.cpu.simd.element_type import Storage
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.cpu.statistics.accumulators import ROWS_BETWEEN_FLUSHES


def _make_gates_again(form: LSTMForm, storage: Storage, access: Access) -> Callable[..., Any]:
    """Return a compiled function of some elements: the gates again."""
    gates, write = make_gates(form, storage, access), access.write

    @inlined
    def gates_again(z, xp, weights, found, row, j, rest):
        width = row.size // 4
        f, i, o, g = gates(z, xp, weights, found, width, j, rest)
        write(row, j, f, rest)
        write(row, j + width, i, rest)
        write(row, j + 2 * width, o, rest)
        write(row, j + 3 * width, g, rest)

    return gates_again


def _make_state_gradient(form: LSTMForm, storage: Storage, access: Access) -> Callable[..., Any]:
    """Return a compiled function of some elements: what reaches the normalized cell, and o."""
    read, term, write = access
    apply, real = make_cell_norm(form.cell, storage).apply, storage.working
    tanh, carries, zoned = make_tanh(real), form.carries_normalized, form.zoneout
    zoneout = make_zoneout(zoned, access)

    @inlined
    def state_gradient(slopes, dc, gates, cell, weights, found, keeps, dn, sums, j, rest):
        gamma, beta = weights
        gain, shift = term(gamma, j, rest, real(1)), term(beta, j, rest, real(0))
        out, at = tanh(apply(read(cell, j, rest), found, gain, shift)), j + 2 * cell.size
        o, slope = read(gates, at, rest), read(slopes[0], j, rest) + read(slopes[1], j, rest)
        if zoned:
            write(slopes[1], j, zoneout.kept(slope, keeps[0], j, rest), rest)
            slope = zoneout.passed(slope, keeps[0], j, rest)
        gradient = slope * o * (real(1) - out * out)
        if carries:
            gradient = gradient + zoneout.passed(read(dc, j, rest), keeps[1], j, rest)
        write(dn, j, gradient, rest)
        gradient = slope * out * o * (real(1) - o)
        write(gates, at, gradient, rest)
        write(sums, at, read(sums, at, rest) + gradient, rest)

    return state_gradient


def _make_gate_gradient(form: LSTMForm, storage: Storage, access: Access) -> Callable[..., Any]:
    """Return a compiled function of some elements: what reaches f, i, g and the cell before."""
    read, _, write = access
    real, carries, zoned = storage.working, form.carries_normalized, form.zoneout
    zoneout = make_zoneout(zoned, access)

    @inlined
    def put(gates, sums, j, gradient, rest):
        write(gates, j, gradient, rest)
        write(sums, j, read(sums, j, rest) + gradient, rest)

    @inlined
    def gate_gradient(dcell, dc, gates, before, keeps, sums, j, rest):
        width = dc.size
        f, i = read(gates, j, rest), read(gates, j + width, rest)
        g = read(gates, j + 3 * width, rest)
        slope, after = read(dcell, j, rest), read(dc, j, rest)
        if not carries:
            slope = slope + zoneout.passed(after, keeps[1], j, rest)
        put(gates, sums, j, slope * read(before, j, rest) * f * (real(1) - f), rest)
        put(gates, sums, j + width, slope * g * i * (real(1) - i), rest)
        put(gates, sums, j + 3 * width, slope * i * (real(1) - g * g), rest)
        slope = slope * f
        if zoned:
            slope = slope + zoneout.kept(after, keeps[1], j, rest)
        write(dc, j, slope, rest)

    return gate_gradient


def _make_through_gates(form: LSTMForm, storage: Storage) -> Callable[..., Any]:
    """Return a compiled function that fills a row's gates again.

    It asks for what the row `further` rows on will be filled with, and for those of `others`.
    """
    count, gates = storage.lanes, make_gate_norm(form, storage)
    some = _make_gates_again(form, storage, whole_lanes(count))
    last = _make_gates_again(form, storage, first_lanes(count))
    by_product = form.by_product

    @inlined
    def ask(z, xp, others, further, j):
        before, cell, dy = others
        ask_for_row(z, further, 4, j)
        if by_product:
            ask_for_row(xp, further, 4, j)
        ask_for_row(before, further, 1, j)
        ask_for_row(cell, further, 1, j)
        ask_for_row(dy, further, 1, j)

    @inlined
    def fill(z, xp, others, further, weights, saved, i, row):
        width = row.size // 4
        whole = width - width % count
        found = gates.again(saved, i)
        for j in range(0, whole, count):
            ask(z, xp, others, further, j)
            some(z, xp, weights, found, row, j, count)
        if whole < width:
            last(z, xp, weights, found, row, whole, width - whole)

    return fill


def _make_row(form: LSTMForm, storage: Storage) -> Callable[..., Any]:
    """Return a compiled function: a row's gates become the gradients of what enters them."""
    count, norm = storage.lanes, make_cell_norm(form.cell, storage)
    state_gradient = _make_state_gradient(form, storage, whole_lanes(count))
    last_of_state = _make_state_gradient(form, storage, first_lanes(count))
    gate_gradient = _make_gate_gradient(form, storage, whole_lanes(count))
    last_of_gates = _make_gate_gradient(form, storage, first_lanes(count))

    @inlined
    def row(others, dh, dc, gates, weights, saved, i, flows, keeps, dn, dcell, sums):
        before, cell, dy = others
        slopes = dy, dh
        gamma, beta = weights
        offset, of_cell = sums
        whole = dc.size - dc.size % count
        rest = dc.size - whole
        found = norm.saved(saved[0], saved[1], i)
        for j in range(0, whole, count):
            state_gradient(slopes, dc, gates, cell, weights, found, keeps, dn, offset, j, count)
        if rest > 0:
            last_of_state(slopes, dc, gates, cell, weights, found, keeps, dn, offset, whole, rest)
        norm.gradient(dn, cell, saved[0], saved[1], i, gamma, beta, flows, of_cell, dcell)
        for j in range(0, whole, count):
            gate_gradient(dcell, dc, gates, before, keeps, offset, j, count)
        if rest > 0:
            last_of_gates(dcell, dc, gates, before, keeps, offset, whole, rest)

    return row


@inlined
def _sections(sums, width):
    """Return a row's sums: of all that is added, both gammas of the gates, the cell's gradients."""
    four = 4 * width
    of_cell = sums[3 * four : 3 * four + width], sums[3 * four + width :]
    return sums[:four], (sums[four : 2 * four], sums[2 * four : 3 * four]), of_cell


# How many numbers for each unit there are in a row of sums.
SECTIONS = 14


@functools.cache
def make_lstm_backward(form: LSTMForm, storage: Storage) -> Twins:
    """Return the backward kernel of an LSTM.

    It takes

    - ``starts, counts`` as the forward pass; ``begin, end``, between which steps; packed W_h;
    - ``dy (rows, H)``, and ``dh, dc (batch, H)`` of the last step, which become the first's;
    - ``z, xp (rows, 4H)``, ``cell (rows, H)`` and ``carried (batch + rows, H)`` as the forward
      pass left them, the offset, gammas and betas, and its statistics;
    - for both norms: 1 over the number of elements, the same for the scale, and epsilon on the
      deviation;
    - ``keep_h, keep_c (rows, H)`` as the forward pass;
    - ``dz, dxp (rows of these steps, 4H)``, the results, the second None where xp is;
    - ``gates (batch, 4H)``, ``dn, dcell (batch, H)`` to work in;
    - ``sums, totals (groups, 14 H)`` of 0, the second float64, for the sums of each group of
      rows, and ``group``, how many that is; ``parts`` of the groups.
    """
    lanes, direct = storage.lanes, form.gates is None
    # With zoneout, the state's gradient has a share of the step after it already.
    product, row = make_product(lanes, onto=form.zoneout), _make_row(form, storage)
    fill, gate_norm = _make_through_gates(form, storage), make_gate_norm(form, storage)

    def kernel(
        starts, counts, begin, end, weights, dy, dh, dc, z, xp, cell, carried,
        offset, gamma_h, beta_h, gamma_x, beta_x, gamma_c, beta_c,
        mean_h, rstd_h, mean_x, rstd_x, mean_c, rstd_c,
        gate_mean_share, gate_scale_share, gate_eps_on_deviation,
        cell_mean_share, cell_scale_share, cell_eps_on_deviation, keep_h, keep_c,
        dz, dxp, gates, dn, dcell, sums, totals, group, parts, first, last,
    ):  # fmt: skip
        stand_alone()
        (batch, width), groups = dh.shape, sums.shape[0]
        left, right = rows_of_groups(first, last, groups, parts, group, batch)
        slopes, states = borrowed(dz.reshape(-1)), borrowed(dh.reshape(-1))
        dy, dh, dc, weights = borrowed(dy), borrowed(dh), borrowed(dc), borrowed(weights)
        z, xp, cell, carried = borrowed(z), borrowed(xp), borrowed(cell), borrowed(carried)
        of_gates = (
            borrowed(offset), borrowed(gamma_h), borrowed(beta_h),
            borrowed(gamma_x), borrowed(beta_x),
        )  # fmt: skip
        of_cell = borrowed(gamma_c), borrowed(beta_c)
        gate_saved = borrowed(mean_h), borrowed(rstd_h), borrowed(mean_x), borrowed(rstd_x)
        cell_saved = borrowed(mean_c), borrowed(rstd_c)
        gate_flows = gate_mean_share, gate_scale_share, gate_eps_on_deviation
        cell_flows = cell_mean_share, cell_scale_share, cell_eps_on_deviation
        dz, dxp, gates = borrowed(dz), borrowed(dxp), borrowed(gates)
        dn, dcell, keeps = borrowed(dn), borrowed(dcell), (borrowed(keep_h), borrowed(keep_c))
        sums, totals = borrowed(sums), borrowed(totals)
        between = max(1, ROWS_BETWEEN_FLUSHES // group)
        for s in range(end - 1, begin - 1, -1):
            rows = rows_of_step(counts, s, left, right)
            start, before = starts[s] + left, before_step(starts, s, batch) + left
            to = start - starts[begin]
            for r in range(rows):
                i, b, k, further = start + r, left + r, to + r, to_next(starts, begin, s, r, rows)
                added, of_norms, of_cells = _sections(sums[b // group], width)
                here = dz[k] if direct else gates[left]
                others = carried[before + r], cell[i], dy[i]
                fill(z[i], part(xp, i), others, further, of_gates, gate_saved, i, here)
                row(
                    others, dh[b], dc[b], here, of_cell, cell_saved, i, cell_flows,
                    (part(keeps[0], i), part(keeps[1], i)), dn[left], dcell[left], (added, of_cells)
                )  # fmt: skip
                gate_norm.gradient(
                    here, z[i], part(xp, i), gate_saved, i, of_gates, gate_flows, of_norms,
                    (dz[k], part(dxp, k)),
                )  # fmt: skip
            if rows > 0:
                product(
                    slopes, to * 4 * width, 4 * width, 1, rows, weights, 0, 4 * width * lanes,
                    4 * width, states, left * width, width, width,
                )  # fmt: skip
            if s % between == 0:
                flush_groups(sums, totals, left, right, group)

    return twins(f"lstm_backward.{form.name}.{storage.name}", kernel)
