"""The kernels of a normalized LSTM: all steps of some of the batch's rows, forward and backward.

Rows of a batch never meet, so a thread takes its rows through all steps. The rows of a step lie
one after the other, those of longer sequences first: a step's rows are the first of the one
before it. The gates of a row are f, i, o and g, one after the other.
"""

import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.contract import CellForm
from numnorm.backends.cpu.activations import make_sigmoid, make_tanh
from numnorm.backends.cpu.borrowed import borrowed
from numnorm.backends.cpu.cell_norms import make_cell_norm
from numnorm.backends.cpu.column_reading import Access, first_lanes, whole_lanes
from numnorm.backends.cpu.jit import Twins, inlined, stand_alone, twins
from numnorm.backends.cpu.optional import part, stretch
from numnorm.backends.cpu.product_tiles import make_product
from numnorm.backends.cpu.storage import Storage


@inlined
def _rows_of_step(counts, s, left, right):
    return min(counts[s], right) - left


@inlined
def _before(starts, s, batch):
    """Return where the states before a step begin: those given come first."""
    return batch + starts[s - 1] if s > 0 else 0


def _make_gate_statistics(form: CellForm, storage: Storage) -> Callable[..., Any]:
    """Return a compiled ``statistics(z, scaling, saved, i)`` of each gate, saved as well."""
    norm = make_cell_norm(form.gates, storage)

    @inlined
    def together(z, scaling, saved, i):
        found = norm.statistics(z, scaling)
        if saved[0].size > 0:
            norm.save(found, saved[0], saved[1], i)
        return found, found, found, found

    @inlined
    def each(z, scaling, saved, i, k):
        width = z.size // 4
        found = norm.statistics(z[k * width : (k + 1) * width], scaling)
        if saved[0].size > 0:
            norm.save(found, saved[0], saved[1], 4 * i + k)
        return found

    @inlined
    def separate(z, scaling, saved, i):
        first, second = each(z, scaling, saved, i, 0), each(z, scaling, saved, i, 1)
        return first, second, each(z, scaling, saved, i, 2), each(z, scaling, saved, i, 3)

    return separate if form.separate else together


def _make_new_cell(form: CellForm, storage: Storage, access: Access) -> Callable[..., Any]:
    """Return a compiled function of some elements: the gates, and the cell before its norm."""
    read, term, write = access
    apply, real = make_cell_norm(form.gates, storage).apply, storage.working
    sigmoid, tanh = make_sigmoid(real), make_tanh(real)

    @inlined
    def value(z, xn, weights, found, j, rest):
        offset, gamma, beta = weights
        gain, shift = term(gamma, j, rest, real(1)), term(beta, j, rest, real(0))
        normalized = apply(read(z, j, rest), found, gain, shift)
        return normalized + term(xn, j, rest, real(0)) + read(offset, j, rest)

    @inlined
    def new_cell(z, xn, gates, weights, found, before, cell, j, rest):
        width = cell.size
        f = sigmoid(value(z, xn, weights, found[0], j, rest))
        i = sigmoid(value(z, xn, weights, found[1], j + width, rest))
        o = sigmoid(value(z, xn, weights, found[2], j + 2 * width, rest))
        g = tanh(value(z, xn, weights, found[3], j + 3 * width, rest))
        write(cell, j, f * read(before, j, rest) + i * g, rest)
        write(gates, j, f, rest)
        write(gates, j + width, i, rest)
        write(gates, j + 2 * width, o, rest)
        write(gates, j + 3 * width, g, rest)

    return new_cell


def _make_new_state(form: CellForm, storage: Storage, access: Access) -> Callable[..., Any]:
    """Return a compiled function of some elements: the state, and the cell that is carried on."""
    read, term, write = access
    apply, real = make_cell_norm(form.cell, storage).apply, storage.working
    tanh, carries = make_tanh(real), form.carries_normalized

    @inlined
    def new_state(gates, cell, weights, found, carried, state, j, rest):
        gamma, beta = weights
        gain, shift = term(gamma, j, rest, real(1)), term(beta, j, rest, real(0))
        normalized = apply(read(cell, j, rest), found, gain, shift)
        if carries:
            write(carried, j, normalized, rest)
        o = read(gates, j + 2 * cell.size, rest)
        write(state, j, o * tanh(normalized), rest)

    return new_state


def _make_row(form: CellForm, storage: Storage) -> Callable[..., Any]:
    """Return a compiled function that takes one row through one step."""
    count, statistics = storage.lanes, _make_gate_statistics(form, storage)
    norm = make_cell_norm(form.cell, storage)
    new_cell = _make_new_cell(form, storage, whole_lanes(count))
    last_of_cell = _make_new_cell(form, storage, first_lanes(count))
    new_state = _make_new_state(form, storage, whole_lanes(count))
    last_of_state = _make_new_state(form, storage, first_lanes(count))

    @inlined
    def row(z, xn, gates, before, cell, carried, state, weights, scalings, saved, i):
        of_gates, of_cell = weights
        whole = state.size - state.size % count
        rest = state.size - whole
        found = statistics(z, scalings[0], saved[0], i)
        for j in range(0, whole, count):
            new_cell(z, xn, gates, of_gates, found, before, cell, j, count)
        if rest > 0:
            last_of_cell(z, xn, gates, of_gates, found, before, cell, whole, rest)
        of_row = norm.statistics(cell, scalings[1])
        if saved[1][0].size > 0:
            norm.save(of_row, saved[1][0], saved[1][1], i)
        for j in range(0, whole, count):
            new_state(gates, cell, of_cell, of_row, carried, state, j, count)
        if rest > 0:
            last_of_state(gates, cell, of_cell, of_row, carried, state, whole, rest)

    return row


@functools.cache
def make_lstm_forward(form: CellForm, storage: Storage) -> Twins:
    """Return the forward kernel of an LSTM.

    It takes

    - ``starts, counts (steps,)``: where each step's rows begin, and how many they are;
    - ``weights``, the packed transpose of W_h;
    - ``z (rows, 4H)`` where the products go: rows of all steps, or of one; where a norm is not
      taken of each product, it holds the products with x, and they are added up;
    - ``xn (rows, 4H)``: the normalized products with x, or None;
    - ``offset (4H,)``, ``gate_gamma, gate_beta``, ``cell_gamma, cell_beta``;
    - for the gates' norm and the cell's: epsilon, epsilon on the deviation, the divisor;
    - ``gates (rows, 4H)``, which may be `xn` or `z`;
    - ``cell (rows, H)``: the cell before its norm; ``carried (batch + rows, H)`` and
      ``state (batch + rows, H)``, whose first rows are given. `cell` and `carried` may have the
      batch's rows alone, each step's in place of the last;
    - ``gate_mean, gate_rstd``, ``cell_mean, cell_rstd``, all of size 0 to save nothing;
    - ``parts`` of the batch.
    """
    lanes, onto = storage.lanes, not form.by_product
    product, row = make_product(lanes, onto=onto), _make_row(form, storage)

    def kernel(
        starts, counts, weights, z, xn, offset, gate_gamma, gate_beta, cell_gamma, cell_beta,
        gate_eps, gate_eps_on_deviation, gate_count, cell_eps, cell_eps_on_deviation, cell_count,
        gates, cell, carried, state,
        gate_mean, gate_rstd, cell_mean, cell_rstd, parts, first, last,
    ):  # fmt: skip
        stand_alone()
        batch, width = counts[0], state.shape[1]
        left, right = first * batch // parts, last * batch // parts
        products, states = borrowed(z.reshape(-1)), borrowed(state.reshape(-1))
        z, xn, gates, cell = borrowed(z), borrowed(xn), borrowed(gates), borrowed(cell)
        carried, state, weights = borrowed(carried), borrowed(state), borrowed(weights)
        of_gates = borrowed(offset), borrowed(gate_gamma), borrowed(gate_beta)
        of_cell = borrowed(cell_gamma), borrowed(cell_beta)
        scalings = (
            (gate_eps, gate_eps_on_deviation, gate_count),
            (cell_eps, cell_eps_on_deviation, cell_count),
        )
        saved = (
            (borrowed(gate_mean), borrowed(gate_rstd)),
            (borrowed(cell_mean), borrowed(cell_rstd)),
        )
        z_kept, cell_kept = z.shape[0] > batch, cell.shape[0] > batch
        carried_kept = carried.shape[0] > batch
        for s in range(starts.size):
            rows = _rows_of_step(counts, s, left, right)
            if rows <= 0:
                break
            start, before = starts[s] + left, _before(starts, s, batch) + left
            at = start if z_kept else left
            product(
                states, before * width, width, 1, rows, weights, 0, width * lanes, width,
                products, at * 4 * width, 4 * width, 4 * width,
            )  # fmt: skip
            for r in range(rows):
                i = start + r
                row(
                    z[at + r],
                    part(xn, i),
                    gates[i],
                    carried[before + r if carried_kept else left + r],
                    cell[i if cell_kept else left + r],
                    carried[batch + i if carried_kept else left + r],
                    state[batch + i],
                    (of_gates, of_cell),
                    scalings,
                    saved,
                    i,
                )

    return twins(f"lstm_forward.{form.name}.{storage.name}", kernel)


def _make_state_gradient(form: CellForm, storage: Storage, access: Access) -> Callable[..., Any]:
    """Return a compiled function of some elements: what reaches the normalized cell, and o."""
    read, term, write = access
    apply, real = make_cell_norm(form.cell, storage).apply, storage.working
    tanh, carries = make_tanh(real), form.carries_normalized

    @inlined
    def state_gradient(dy, dh, dc, gates, cell, weights, found, dn, dgates, j, rest):
        gamma, beta = weights
        gain, shift = term(gamma, j, rest, real(1)), term(beta, j, rest, real(0))
        out, at_o = tanh(apply(read(cell, j, rest), found, gain, shift)), j + 2 * cell.size
        o, slope = read(gates, at_o, rest), read(dy, j, rest) + read(dh, j, rest)
        gradient = slope * o * (real(1) - out * out)
        if carries:
            gradient = gradient + read(dc, j, rest)
        write(dn, j, gradient, rest)
        write(dgates, at_o, slope * out * o * (real(1) - o), rest)

    return state_gradient


def _make_gate_gradient(form: CellForm, storage: Storage, access: Access) -> Callable[..., Any]:
    """Return a compiled function of some elements: what reaches f, i, g and the cell before."""
    read, _, write = access
    real, carries = storage.working, form.carries_normalized

    @inlined
    def gate_gradient(dcell, dc, gates, before, dgates, j, rest):
        width = dc.size
        f, i = read(gates, j, rest), read(gates, j + width, rest)
        g = read(gates, j + 3 * width, rest)
        slope = read(dcell, j, rest)
        if not carries:
            slope = slope + read(dc, j, rest)
        write(dgates, j, slope * read(before, j, rest) * f * (real(1) - f), rest)
        write(dgates, j + width, slope * g * i * (real(1) - i), rest)
        write(dgates, j + 3 * width, slope * i * (real(1) - g * g), rest)
        write(dc, j, slope * f, rest)

    return gate_gradient


def _make_product_gradient(form: CellForm, storage: Storage) -> Callable[..., Any]:
    """Return a compiled function of one row: what reaches the product with the state."""
    norm = make_cell_norm(form.gates, storage)

    @inlined
    def together(dz, z, saved, i, gamma, beta, flows, result):
        norm.gradient(dz, z, saved[0], saved[1], i, gamma, beta, flows, result)

    @inlined
    def separate(dz, z, saved, i, gamma, beta, flows, result):
        width = dz.size // 4
        for k in range(4):
            left, right = k * width, (k + 1) * width
            norm.gradient(
                dz[left:right], z[left:right], saved[0], saved[1], 4 * i + k,
                stretch(gamma, left, right), stretch(beta, left, right), flows,
                result[left:right],
            )  # fmt: skip

    return separate if form.separate else together


def _make_gradient_row(form: CellForm, storage: Storage) -> Callable[..., Any]:
    """Return a compiled function that takes one row's gradients back through one step."""
    count, norm = storage.lanes, make_cell_norm(form.cell, storage)
    state_gradient = _make_state_gradient(form, storage, whole_lanes(count))
    last_of_state = _make_state_gradient(form, storage, first_lanes(count))
    gate_gradient = _make_gate_gradient(form, storage, whole_lanes(count))
    last_of_gates = _make_gate_gradient(form, storage, first_lanes(count))

    @inlined
    def gradient_row(
        dy, dh, dc, gates, before, cell, weights, saved, i, flows, dn, dcell, dgates
    ):  # fmt: skip
        gamma, beta = weights
        whole = dc.size - dc.size % count
        rest = dc.size - whole
        found = norm.saved(saved[0], saved[1], i)
        for j in range(0, whole, count):
            state_gradient(dy, dh, dc, gates, cell, weights, found, dn, dgates, j, count)
        if rest > 0:
            last_of_state(dy, dh, dc, gates, cell, weights, found, dn, dgates, whole, rest)
        norm.gradient(dn, cell, saved[0], saved[1], i, gamma, beta, flows, dcell)
        for j in range(0, whole, count):
            gate_gradient(dcell, dc, gates, before, dgates, j, count)
        if rest > 0:
            last_of_gates(dcell, dc, gates, before, dgates, whole, rest)

    return gradient_row


@functools.cache
def make_lstm_backward(form: CellForm, storage: Storage) -> Twins:
    """Return the backward kernel of an LSTM: what reaches its products, step by step.

    It takes

    - ``starts, counts`` as the forward pass;
    - ``weights``, the packed W_h;
    - ``dy (rows, H)``, the gradients of all states;
    - ``dh, dc (batch, H)``, those of the last state and cell, which become those of the first;
    - ``gates (rows, 4H)``, ``z (rows, 4H)``, ``cell (rows, H)`` and ``carried (batch + rows, H)``
      as the forward pass left them, the gammas and betas, and its statistics;
    - for both norms: 1 over the number of elements, the same for the scale, and epsilon on the
      deviation;
    - ``dn (rows, H)`` and ``dgates (rows, 4H)``, the results: what reaches the normalized cell,
      and what entered the gates;
    - ``dcell (batch, H)`` and ``dz (batch, 4H)`` to work in;
    - ``parts`` of the batch.
    """
    lanes = storage.lanes
    product, gradient_row = make_product(lanes, onto=False), _make_gradient_row(form, storage)
    product_gradient = _make_product_gradient(form, storage)

    def kernel(
        starts, counts, weights, dy, dh, dc, gates, z, cell, carried,
        gate_gamma, gate_beta, cell_gamma, cell_beta,
        gate_mean, gate_rstd, cell_mean, cell_rstd,
        gate_mean_share, gate_scale_share, gate_eps_on_deviation,
        cell_mean_share, cell_scale_share, cell_eps_on_deviation,
        dn, dgates, dcell, dz, parts, first, last,
    ):  # fmt: skip
        stand_alone()
        batch, width = dh.shape
        left, right = first * batch // parts, last * batch // parts
        slopes, states = borrowed(dz.reshape(-1)), borrowed(dh.reshape(-1))
        dy, dh, dc, gates = borrowed(dy), borrowed(dh), borrowed(dc), borrowed(gates)
        z, cell, carried = borrowed(z), borrowed(cell), borrowed(carried)
        dn, dgates, weights = borrowed(dn), borrowed(dgates), borrowed(weights)
        dcell, dz = borrowed(dcell), borrowed(dz)
        of_gates = borrowed(gate_gamma), borrowed(gate_beta)
        of_cell = borrowed(cell_gamma), borrowed(cell_beta)
        gate_saved = borrowed(gate_mean), borrowed(gate_rstd)
        cell_saved = borrowed(cell_mean), borrowed(cell_rstd)
        gate_flows = gate_mean_share, gate_scale_share, gate_eps_on_deviation
        cell_flows = cell_mean_share, cell_scale_share, cell_eps_on_deviation
        for s in range(starts.size - 1, -1, -1):
            rows = _rows_of_step(counts, s, left, right)
            start, before = starts[s] + left, _before(starts, s, batch) + left
            for r in range(rows):
                i = start + r
                gradient_row(
                    dy[i], dh[left + r], dc[left + r], gates[i], carried[before + r], cell[i],
                    of_cell, cell_saved, i, cell_flows, dn[i], dcell[left + r], dgates[i],
                )  # fmt: skip
                product_gradient(
                    dgates[i], z[i], gate_saved, i, of_gates[0], of_gates[1], gate_flows,
                    dz[left + r],
                )  # fmt: skip
            if rows > 0:
                product(
                    slopes, left * 4 * width, 4 * width, 1, rows, weights, 0, 4 * width * lanes,
                    4 * width, states, left * width, width, width,
                )  # fmt: skip

    return twins(f"lstm_backward.{form.name}.{storage.name}", kernel)
