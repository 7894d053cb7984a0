"""The forward kernel of a normalized LSTM: all steps of some of the batch's rows.

Rows of a batch never meet, so a thread takes its rows through all steps. The rows of a step lie
one after the other, those of longer sequences first: a step's rows are the first of the one
before it.
"""

import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.contract.recurrent import LSTMForm
from numnorm.backends.cpu.compiler.jit import Twins, inlined, stand_alone, twins
from numnorm.backends.cpu.matmul.micro_kernel import make_product
from numnorm.backends.cpu.memory.borrowed import borrowed
from numnorm.backends.cpu.recurrent.common.cell_norm import make_cell_norm
from numnorm.backends.cpu.recurrent.common.steps import before_step, rows_of_step
from numnorm.backends.cpu.recurrent.common.zoneout import make_zoneout
from numnorm.backends.cpu.recurrent.lstm.gates import make_gate_norm, make_gates
from numnorm.backends.cpu.simd.access import Access, first_lanes, whole_lanes
from numnorm.backends.cpu.simd.activations import make_tanh
from numnorm.backends.cpu.simd.element_type import Storage
from numnorm.backends.cpu.simd.optional import part


def _make_new_cell(form: LSTMForm, storage: Storage, access: Access) -> Callable[..., Any]:
    """Return a compiled function of some elements: the cell before its norm, and the gate o."""
    read, _, write = access
    gates = make_gates(form, storage, access)

    @inlined
    def new_cell(z, xp, weights, found, before, cell, out, j, rest):
        f, i, o, g = gates(z, xp, weights, found, cell.size, j, rest)
        write(cell, j, f * read(before, j, rest) + i * g, rest)
        write(out, j, o, rest)

    return new_cell


def _make_new_state(form: LSTMForm, storage: Storage, access: Access) -> Callable[..., Any]:
    """Return a compiled function of some elements: the state, and the cell that is carried on."""
    read, term, write = access
    apply, real = make_cell_norm(form.cell, storage).apply, storage.working
    tanh, carries = make_tanh(real), form.carries_normalized
    apart, mixed = carries or form.zoneout, make_zoneout(form.zoneout, access).mixed

    @inlined
    def new_state(out, cell, weights, found, before, carried, states, keeps, j, rest):
        gamma, beta = weights
        gain, shift = term(gamma, j, rest, real(1)), term(beta, j, rest, real(0))
        value = read(cell, j, rest)
        normalized = apply(value, found, gain, shift)
        if apart:
            new = normalized if carries else value
            write(carried, j, mixed(new, before, keeps[1], j, rest), rest)
        new = read(out, j, rest) * tanh(normalized)
        write(states[1], j, mixed(new, states[0], keeps[0], j, rest), rest)

    return new_state


def _make_gates(form: LSTMForm, storage: Storage) -> Callable[..., Any]:
    """Return a compiled function of one row: the cell before its norm, and the gate o."""
    count, norm = storage.lanes, make_gate_norm(form, storage)
    some = _make_new_cell(form, storage, whole_lanes(count))
    last = _make_new_cell(form, storage, first_lanes(count))

    @inlined
    def gates(z, xp, before, cell, out, weights, place):
        whole = cell.size - cell.size % count
        rest = cell.size - whole
        found = norm.found(place)
        for j in range(0, whole, count):
            some(z, xp, weights, found, before, cell, out, j, count)
        if rest > 0:
            last(z, xp, weights, found, before, cell, out, whole, rest)

    return gates


def _make_find_all(form: LSTMForm, storage: Storage) -> Callable[..., Any]:
    """Return a compiled function of some rows: the statistics of what enters their gates.

    To find those of a row takes longer than to begin with those of the next, and to guess its mean
    longer than to guess that of the next.
    """
    norm = make_gate_norm(form, storage)

    @inlined
    def find_all(rows, z, at, xp, x_at, scaling, saved, start, found, left):
        for r in range(rows):
            norm.guess(z[at + r], part(xp, x_at + r), found[left + r])
        for r in range(rows):
            row, x_row = z[at + r], part(xp, x_at + r)
            norm.find(row, x_row, scaling, saved, start + r, found[left + r])

    return find_all


def _make_find_cells(form: LSTMForm, storage: Storage) -> Callable[..., Any]:
    """Return a compiled function of some rows: the statistics of their cells, likewise."""
    norm = make_cell_norm(form.cell, storage)

    @inlined
    def find_cells(rows, cell, to, scaling, saved, start, found, left):
        for r in range(rows):
            norm.guess(cell[to + r], found[left + r], 0)
        for r in range(rows):
            of_cell = norm.guessed(cell[to + r], scaling, found[left + r], 0)
            if saved[0].size > 0:
                norm.save(of_cell, saved[0], saved[1], start + r)
            norm.put(of_cell, found[left + r], 0)

    return find_cells


def _make_states(form: LSTMForm, storage: Storage) -> Callable[..., Any]:
    """Return a compiled function of one row: the state, and the cell that is carried on."""
    count, norm = storage.lanes, make_cell_norm(form.cell, storage)
    some = _make_new_state(form, storage, whole_lanes(count))
    last = _make_new_state(form, storage, first_lanes(count))

    @inlined
    def new_states(out, cell, before, carried, states, weights, shares, i, place):
        keeps = part(shares[0], i), part(shares[1], i)
        whole = cell.size - cell.size % count
        rest = cell.size - whole
        found = norm.got(place, 0)
        for j in range(0, whole, count):
            some(out, cell, weights, found, before, carried, states, keeps, j, count)
        if rest > 0:
            last(out, cell, weights, found, before, carried, states, keeps, whole, rest)

    return new_states


def _make_multiply(form: LSTMForm, storage: Storage) -> Callable[..., Any]:
    """Return a compiled function of one step's rows: their products with x and with the state.

    Those with x are left out if x has no elements.
    """
    lanes, onto = storage.lanes, not form.by_product
    product = make_product(lanes, onto=onto)

    @inlined
    def multiply(left, sizes, places, right, results, at, rows):
        wide = 4 * sizes[1]
        if onto and left[0].size > 0:
            results[0][at[0] * wide : (at[0] + rows) * wide] = 0
        for k in range(0 if left[0].size > 0 else 1, 2):
            # One product for both: to compile another takes a second.
            a, size, place = (
                (left[0], sizes[0], places[0]) if k == 0 else (left[1], sizes[1], places[1])
            )
            b, c, to = (right[0], results[0], at[0]) if k == 0 else (right[1], results[1], at[1])
            product(
                a, place * size, size, 1, rows, b, 0, size * lanes, size, c, to * wide, wide, wide
            )

    return multiply


@functools.cache
def make_lstm_forward(form: LSTMForm, storage: Storage) -> Twins:
    """Return the forward kernel of an LSTM.

    It takes

    - ``starts, counts (steps,)``: where each step's rows begin, and how many they are;
    - ``weights, weights_x``, the packed transposes of W_h and W_x;
    - ``x (rows, I)``, to be multiplied step by step; of no rows if those products are given;
    - ``z (rows, 4H)`` where the products go: rows of all steps, or of one; where a norm is not
      taken of each product, those with x are there, and those with the state are added;
    - ``xp (rows, 4H)``: else those with x, of all steps or of one, or None;
    - ``offset (4H,)``, and gamma and beta of z, of xp and of the cell;
    - for the gates' norm and the cell's: epsilon, epsilon on the deviation, the divisor;
    - ``keep_h, keep_c (rows, H)``: the shares of zoneout, or None;
    - ``cell (rows, H)``: the cell before its norm; ``carried (batch + rows, H)`` and
      ``state (batch + rows, H)``, whose first rows are given. `cell` and `carried` may have the
      batch's rows alone, each step's in place of the last;
    - ``out (batch, H)`` and ``found (batch, NORMS * NUMBERS)`` to work in;
    - mean and rstd of z, of xp and of the cell, all of size 0 to save nothing;
    - ``parts`` of the batch.
    """
    multiply = _make_multiply(form, storage)
    # Where the products with x go.
    of_x = inlined((lambda z, xp: xp) if form.by_product else (lambda z, xp: z))
    find_all, find_cells = _make_find_all(form, storage), _make_find_cells(form, storage)
    gates, new_states = _make_gates(form, storage), _make_states(form, storage)

    def kernel(
        starts, counts, weights, weights_x, x, z, xp,
        offset, gamma_h, beta_h, gamma_x, beta_x, gamma_c, beta_c,
        gate_eps, gate_eps_on_deviation, gate_count, cell_eps, cell_eps_on_deviation, cell_count,
        keep_h, keep_c, cell, carried, state, out, found,
        mean_h, rstd_h, mean_x, rstd_x, mean_c, rstd_c, parts, first, last,
    ):  # fmt: skip
        stand_alone()
        batch, width = counts[0], state.shape[1]
        left, right = first * batch // parts, last * batch // parts
        left_hand = borrowed(x.reshape(-1)), borrowed(state.reshape(-1))
        right_hand = borrowed(weights_x), borrowed(weights)
        results = borrowed(of_x(z, xp).reshape(-1)), borrowed(z.reshape(-1))
        z, xp, cell, out = borrowed(z), borrowed(xp), borrowed(cell), borrowed(out)
        carried, state = borrowed(carried), borrowed(state)
        of_gates = (
            borrowed(offset), borrowed(gamma_h), borrowed(beta_h),
            borrowed(gamma_x), borrowed(beta_x),
        )  # fmt: skip
        of_cell = borrowed(gamma_c), borrowed(beta_c)
        gate_scaling = gate_eps, gate_eps_on_deviation, gate_count
        cell_scaling = cell_eps, cell_eps_on_deviation, cell_count
        gate_saved = borrowed(mean_h), borrowed(rstd_h), borrowed(mean_x), borrowed(rstd_x)
        cell_saved = borrowed(mean_c), borrowed(rstd_c)
        keep_h, keep_c, found = borrowed(keep_h), borrowed(keep_c), borrowed(found)
        sizes, x_kept = (x.shape[1], width), of_x(z, xp).shape[0] > batch
        z_kept, cell_kept = z.shape[0] > batch, cell.shape[0] > batch
        carried_kept = carried.shape[0] > batch
        for s in range(starts.size):
            rows = rows_of_step(counts, s, left, right)
            if rows <= 0:
                break
            start, before = starts[s] + left, before_step(starts, s, batch) + left
            at, x_at = start if z_kept else left, start if x_kept else left
            to = start if cell_kept else left
            c_from, c_to = (before, batch + start) if carried_kept else (left, left)
            multiply(left_hand, sizes, (start, before), right_hand, results, (x_at, at), rows)
            find_all(rows, z, at, xp, x_at, gate_scaling, gate_saved, start, found, left)
            for r in range(rows):
                row, x_row, b = z[at + r], part(xp, x_at + r), left + r
                gates(row, x_row, carried[c_from + r], cell[to + r], out[b], of_gates, found[b])
            find_cells(rows, cell, to, cell_scaling, cell_saved, start, found, left)
            for r in range(rows):
                i, b, both = start + r, left + r, (state[before + r], state[batch + start + r])
                old, new, keeps = carried[c_from + r], carried[c_to + r], (keep_h, keep_c)
                new_states(out[b], cell[to + r], old, new, both, of_cell, keeps, i, found[b])

    return twins(f"lstm_forward.{form.name}.{storage.name}", kernel)
