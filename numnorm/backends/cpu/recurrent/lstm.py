"""The LSTM: its gates, the forward and backward pass of one row of one step, and its `CellKind`.

A row of a product holds the gates f, i, o and g, one after the other. Each product, their sum as
one row, or each gate of the sum is normalized.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.recurrent import LSTMSpec
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.memory.kernel_arrays import window
from numnorm.backends.cpu.recurrent.arguments import (
    CellKind,
    Norms,
    Parameters,
    added_up,
    norm_pair,
)
from numnorm.backends.cpu.recurrent.cell_norm import CellNorm, make_cell_norm, make_normalized
from numnorm.backends.cpu.recurrent.units import (
    make_unit_loop,
    make_write_summed,
    make_zoneout,
    prefetch_row,
)
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.activations import make_sigmoid, make_tanh
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.formulas.cells import (
    lstm_cell,
    lstm_cell_gradient,
    lstm_state,
    lstm_state_gradient,
)

# The gates and the norms of their inputs


class GateNorm(NamedTuple):
    """Compiled functions for one row of the products.

    `z` is the product W_h h with the state and `xp` the product W_x x; unless each is normalized,
    `z` is their sum and `xp` None. Each gate's statistics are a pair, for z and for xp.

    Attributes
    ----------
    compute : callable
        ``compute(z, xp, scaling, saved, i)``: the statistics of the gates f, i, o, g. It also
        saves them in `saved`, a `Statistics`, unless its arrays have size 0.
    load : callable
        ``load(saved, i)``: the same, as they were saved.
    gradient : callable
        ``gradient(dz, z, xp, saved, i, parameters, coefficients, sums, results)`` maps the
        gradients of the gates' inputs to those of z and xp, the `results`, and adds those of both
        gammas to `sums`.
    """

    compute: Callable[..., Any]
    load: Callable[..., Any]
    gradient: Callable[..., Any]


@functools.cache
def make_gate_norm(spec: LSTMSpec, element_type: ElementType) -> GateNorm:
    """Return the norm of the gates of a spec."""
    norm = make_cell_norm(spec.gates, element_type)
    if spec.norm_each_product:
        return _norm_each_product(norm)
    return _separate(norm) if spec.separate else _none()


def _norm_each_product(norm: CellNorm) -> GateNorm:
    @inlined
    def compute(z, xp, scaling, saved, i):
        both = norm.statistics(z, scaling), norm.statistics(xp, scaling)
        if saved.mean_h.size > 0:
            norm.save(both[0], saved.mean_h, saved.rstd_h, i)
            norm.save(both[1], saved.mean_x, saved.rstd_x, i)
        return both, both, both, both

    @inlined
    def load(saved, i):
        stats_z = norm.saved(saved.mean_h, saved.rstd_h, i)
        both = stats_z, norm.saved(saved.mean_x, saved.rstd_x, i)
        return both, both, both, both

    @inlined
    def gradient(dz, z, xp, saved, i, parameters, coefficients, sums, results):
        norm.gradient(
            dz, z, saved.mean_h, saved.rstd_h, i, parameters.gamma_h, parameters.beta_h,
            coefficients, (sums[0], None), results[0],
        )  # fmt: skip
        norm.gradient(
            dz, xp, saved.mean_x, saved.rstd_x, i, parameters.gamma_x, parameters.beta_x,
            coefficients, (sums[1], None), results[1],
        )  # fmt: skip

    return GateNorm(compute, load, gradient)


def _separate(norm: CellNorm) -> GateNorm:
    @inlined
    def compute_one(z, scaling, saved, i, k):
        width = z.size // 4
        stats = norm.statistics(z[k * width : (k + 1) * width], scaling)
        if saved.mean_h.size > 0:
            norm.save(stats, saved.mean_h, saved.rstd_h, 4 * i + k)
        return stats

    @inlined
    def compute(z, xp, scaling, saved, i):
        f = i_ = o = g = compute_one(z, scaling, saved, i, 0)
        for k in range(1, 4):  # a loop, so that it is compiled once
            f, i_, o, g = i_, o, g, compute_one(z, scaling, saved, i, k)
        return (f, None), (i_, None), (o, None), (g, None)

    @inlined
    def load_one(saved, i, k):
        return norm.saved(saved.mean_h, saved.rstd_h, 4 * i + k), None

    @inlined
    def load(saved, i):
        f, i_ = load_one(saved, i, 0), load_one(saved, i, 1)
        return f, i_, load_one(saved, i, 2), load_one(saved, i, 3)

    @inlined
    def gradient(dz, z, xp, saved, i, parameters, coefficients, sums, results):
        width = dz.size // 4
        for k in range(4):
            left, right = k * width, (k + 1) * width
            norm.gradient(
                dz[left:right], z[left:right], saved.mean_h, saved.rstd_h, 4 * i + k,
                window(parameters.gamma_h, left, width), window(parameters.beta_h, left, width),
                coefficients, (sums[0][left:right], None), results[0][left:right],
            )  # fmt: skip

    return GateNorm(compute, load, gradient)


def _none() -> GateNorm:
    @inlined
    def load(saved, i):
        none = None, None
        return none, none, none, none

    @inlined
    def compute(z, xp, scaling, saved, i):
        return load(saved, i)

    @inlined
    def gradient(dz, z, xp, saved, i, parameters, coefficients, sums, results):
        pass

    return GateNorm(compute, load, gradient)


def make_gates(
    spec: LSTMSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., Any]:
    """Return a compiled ``gates(z, xp, parameters, statistics, width, j, tail)`` of a vector.

    It returns f, i, o and g; `statistics` are those of `GateNorm`.
    """
    gate_input = _make_gate_input(spec, element_type, access)
    sigmoid, tanh = make_sigmoid(element_type.compute_type), make_tanh(element_type.compute_type)

    @inlined
    def gates(z, xp, parameters, statistics, width, j, tail):
        f = sigmoid(gate_input(z, xp, parameters, statistics[0], j, tail))
        i = sigmoid(gate_input(z, xp, parameters, statistics[1], j + width, tail))
        o = sigmoid(gate_input(z, xp, parameters, statistics[2], j + 2 * width, tail))
        g = tanh(gate_input(z, xp, parameters, statistics[3], j + 3 * width, tail))
        return f, i, o, g

    return gates


def _make_gate_input(
    spec: LSTMSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., Any]:
    """Return a compiled ``gate_input(z, xp, parameters, statistics, j, tail)`` of one gate."""
    read, normalized = access.read, make_normalized(spec.gates, element_type, access)

    @inlined
    def of_sum(z, xp, parameters, statistics, j, tail):
        value = normalized(z, statistics[0], parameters.gamma_h, parameters.beta_h, j, tail)
        return value + read(parameters.offset, j, tail)

    @inlined
    def of_both(z, xp, parameters, statistics, j, tail):
        from_x = normalized(xp, statistics[1], parameters.gamma_x, parameters.beta_x, j, tail)
        return of_sum(z, xp, parameters, statistics, j, tail) + from_x

    return of_both if spec.norm_each_product else of_sum


# Forward


def _make_new_cell(
    spec: LSTMSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function that stores a vector of the cell before its norm and of o.

    ``new_cell(z, xp, parameters, statistics, c_prev, cell, o_gate, j, tail)``
    """
    read, _, write = access
    gates, new = make_gates(spec, element_type, access), inlined(lstm_cell)

    @inlined
    def new_cell(z, xp, parameters, statistics, c_prev, cell, o_gate, j, tail):
        f, i, o, g = gates(z, xp, parameters, statistics, cell.size, j, tail)
        write(cell, j, new(f, i, g, read(c_prev, j, tail)), tail)
        write(o_gate, j, o, tail)

    return new_cell


def _make_new_state(
    spec: LSTMSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function that stores the new state and the carried cell.

    ``new_state(o_gate, cell, parameters, statistics, cells, states, masks, j, tail)``, for a vector
    of units; `cells` and `states` are pairs of rows, the previous and the new one.
    """
    read, coefficient, write = access
    apply, real = make_cell_norm(spec.cell, element_type).apply, element_type.compute_type
    tanh, state, carries = make_tanh(real), inlined(lstm_state), spec.carries_normalized
    apart, blend = carries or spec.zoneout, make_zoneout(spec.zoneout, access).blend

    @inlined
    def new_state(o_gate, cell, parameters, statistics, cells, states, masks, j, tail):
        (c_prev, c), (h_prev, h) = cells, states
        gamma = coefficient(parameters.gamma_c, j, tail, real(1))
        beta = coefficient(parameters.beta_c, j, tail, real(0))
        value = read(cell, j, tail)
        normalized = apply(value, statistics, gamma, beta)
        if apart:
            new = normalized if carries else value
            write(c, j, blend(new, c_prev, masks[1], j, tail), tail)
        new = state(read(o_gate, j, tail), tanh(normalized))
        write(h, j, blend(new, h_prev, masks[0], j, tail), tail)

    return new_state


@inlined
def _cells(carried, index):
    """Return a row's previous and new carried cell; the same row if cells are not saved."""
    saved = carried.shape[0] > index.batch
    before = carried[index.before if saved else index.b]
    return before, carried[index.batch + index.i if saved else index.b]


@inlined
def _cell_row(cell, index):
    """Return a row's cell before its norm, or its output before a projection."""
    return cell[index.i if cell.shape[0] > index.batch else index.b]


def make_row(
    spec: LSTMSpec, element_type: ElementType
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the functions of `CellKind.make_row`: one up to the cell, one up to the state."""
    gate_norm = make_gate_norm(spec, element_type)
    cell_norm = make_cell_norm(spec.cell, element_type)
    new_cell = make_unit_loop(_make_new_cell, spec, element_type)
    new_state = make_unit_loop(_make_new_state, spec, element_type)
    projected = spec.projected

    @inlined
    def to_cell(z, xp, saved, parameters, scalings, masks, o, index):
        c_prev, _ = _cells(saved.carried, index)
        cell = _cell_row(saved.cell, index)
        statistics = gate_norm.compute(z, xp, scalings.first, saved.statistics, index.i)
        new_cell(o.size, (z, xp, parameters, statistics, c_prev, cell, o))

    @inlined
    def to_state(z, xp, saved, parameters, scalings, masks, o, index):
        i, arrays = index.i, saved.statistics
        cells, cell = _cells(saved.carried, index), _cell_row(saved.cell, index)
        h = _cell_row(saved.outputs, index) if projected else saved.state[index.batch + i]
        states = saved.state[index.before], h
        statistics = cell_norm.statistics(cell, scalings.second)
        if arrays.mean_c.size > 0:
            cell_norm.save(statistics, arrays.mean_c, arrays.rstd_c, i)
        row_masks = part(masks.h, i), part(masks.c, i)
        new_state(o.size, (o, cell, parameters, statistics, cells, states, row_masks))

    return to_cell, to_state


# Backward


def _make_recompute_gates(
    spec: LSTMSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function that stores the gates of a vector of units.

    ``recompute_gates(rows, parameters, statistics, results, distance, j, tail)``. `rows` are z, xp,
    c_prev, cell and dy, which it prefetches from the row `distance` rows away.
    """
    gates, write = make_gates(spec, element_type, access), access.write
    norm_each_product = spec.norm_each_product

    @inlined
    def recompute_gates(rows, parameters, statistics, results, distance, j, tail):
        z, xp, c_prev, cell, dy = rows
        width = dy.size
        prefetch_row(z, distance, 4, j)
        if norm_each_product:
            prefetch_row(xp, distance, 4, j)
        prefetch_row(c_prev, distance, 1, j)
        prefetch_row(cell, distance, 1, j)
        prefetch_row(dy, distance, 1, j)
        f, i, o, g = gates(z, xp, parameters, statistics, width, j, tail)
        write(results, j, f, tail)
        write(results, j + width, i, tail)
        write(results, j + 2 * width, o, tail)
        write(results, j + 3 * width, g, tail)

    return recompute_gates


def _make_state_gradient(
    spec: LSTMSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function that stores the gradients of the normalized cell and of o's input.

    ``gradient(dy, dh, dc, gates, cell, parameters, statistics, masks, result, sums, j, tail)``, for
    a vector of units. It overwrites o in `gates`; with zoneout also dh, by what passes to h_prev.
    """
    read, _, write = access
    normalized, real = make_normalized(spec.cell, element_type, access), element_type.compute_type
    tanh, carries, zoned = make_tanh(real), spec.carries_normalized, spec.zoneout
    zoneout, state_gradient = make_zoneout(zoned, access), inlined(lstm_state_gradient)
    projected = spec.projected
    write_summed = make_write_summed(access)

    @inlined
    def gradient(dy, dh, dc, gates, cell, parameters, statistics, masks, result, sums, j, tail):
        gamma, beta, o_at = parameters.gamma_c, parameters.beta_c, j + 2 * cell.size
        tanh_c = tanh(normalized(cell, statistics, gamma, beta, j, tail))
        o, d_state = read(gates, o_at, tail), read(dy, j, tail)
        if not projected:
            d_state = d_state + read(dh, j, tail)
        d_new, d_prev = zoneout.gradient(d_state, masks[0], j, tail)
        if zoned:
            write(dh, j, d_prev, tail)
        d_cell, d_o = state_gradient(d_new, o, tanh_c, real(1))
        if carries:
            d_cell = d_cell + zoneout.gradient(read(dc, j, tail), masks[1], j, tail)[0]
        write(result, j, d_cell, tail)
        write_summed(gates, sums, o_at, d_o, tail)

    return gradient


def _make_gate_gradient(
    spec: LSTMSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function that stores the gradients of the inputs of f, i, g and of c_prev.

    ``gradient(dcell, dc, gates, c_prev, mask, sums, j, tail)``, for a vector of units. It
    overwrites f, i and g in `gates`, and dc.
    """
    read, _, write = access
    real, carries, zoned = element_type.compute_type, spec.carries_normalized, spec.zoneout
    zoneout, cell_gradient = make_zoneout(zoned, access), inlined(lstm_cell_gradient)
    write_summed = make_write_summed(access)

    @inlined
    def gradient(dcell, dc, gates, c_prev, mask, sums, j, tail):
        width = dc.size
        f, i = read(gates, j, tail), read(gates, j + width, tail)
        g = read(gates, j + 3 * width, tail)
        d_cell = read(dcell, j, tail)
        d_new, d_prev = zoneout.gradient(read(dc, j, tail), mask, j, tail)
        if not carries:
            d_cell = d_cell + d_new
        df, di, dg, d_c_prev = cell_gradient(d_cell, read(c_prev, j, tail), f, i, g, real(1))
        write_summed(gates, sums, j, df, tail)
        write_summed(gates, sums, j + width, di, tail)
        write_summed(gates, sums, j + 3 * width, dg, tail)
        if zoned:
            d_c_prev = d_c_prev + d_prev
        write(dc, j, d_c_prev, tail)

    return gradient


@inlined
def _sections(sums, width):
    """Split a row of `Sums`: the offset, both gammas of the gates, gamma and beta of the cell."""
    wide = 4 * width
    cell_sums = sums[3 * wide : 3 * wide + width], sums[3 * wide + width :]
    return sums[:wide], (sums[wide : 2 * wide], sums[2 * wide : 3 * wide]), cell_sums


def make_row_gradient(spec: LSTMSpec, element_type: ElementType) -> Callable[..., None]:
    """Return the compiled gradient of one row that `CellKind.make_row_gradient` describes."""
    gate_norm = make_gate_norm(spec, element_type)
    cell_norm = make_cell_norm(spec.cell, element_type)
    recompute_gates = make_unit_loop(_make_recompute_gates, spec, element_type)
    state_gradient = make_unit_loop(_make_state_gradient, spec, element_type)
    gate_gradient = make_unit_loop(_make_gate_gradient, spec, element_type)
    projected = spec.projected
    in_place = spec.gates is None  # without a norm, dz is the gradient of the gates' inputs

    @inlined
    def row(saved, parameters, coefficients, masks, gradients, scratch, sums, index):
        i, b, before, k, slot, distance = index
        z, xp, cell, arrays = saved.z[i], part(saved.xp, i), saved.cell[i], saved.statistics
        c_prev, dz, dxp = saved.carried[before], gradients.dz[k], part(gradients.dxp, k)
        dh, dc, width = gradients.dh[b], gradients.dc[b], cell.size
        dy = scratch.outputs[b] if projected else gradients.dy[i]
        gates = dz if in_place else scratch.gates[slot]
        dn, dcell = scratch.normalized[slot], scratch.cell[slot]
        d_offset, d_gammas, cell_sums = _sections(sums, width)
        row_masks = part(masks.h, i), part(masks.c, i)
        stats = gate_norm.load(arrays, i)
        recompute_gates(width, ((z, xp, c_prev, cell, dy), parameters, stats, gates, distance))
        stats = cell_norm.saved(arrays.mean_c, arrays.rstd_c, i)
        state_gradient(width, (dy, dh, dc, gates, cell, parameters, stats, row_masks, dn, d_offset))
        cell_norm.gradient(
            dn, cell, arrays.mean_c, arrays.rstd_c, i, parameters.gamma_c, parameters.beta_c,
            coefficients.second, cell_sums, dcell,
        )  # fmt: skip
        gate_gradient(width, (dcell, dc, gates, c_prev, row_masks[1], d_offset))
        gate_norm.gradient(
            gates, z, xp, arrays, i, parameters, coefficients.first, d_gammas, (dz, dxp)
        )

    return row


# The kind of cell


def _norms(spec: LSTMSpec, width: int) -> Norms:
    return (spec.gates, width if spec.separate else 4 * width), (spec.cell, width)


def _statistics(spec: LSTMSpec) -> tuple[int, int, int]:
    gate_norms = 4 if spec.separate else 1
    return gate_norms if spec.gates else 0, int(spec.norm_each_product), int(spec.cell is not None)


def _parameters(spec: LSTMSpec, given: Any, ada: tuple[float, float]) -> Parameters:
    """Return the parameters, with the betas of the products added to the bias."""
    dtype, width = given.weight_h.dtype, given.weight_h.shape[0] // 4
    beta_c = given.beta_c
    if spec.cell is not None and spec.cell.parameters == 2 and beta_c is None:
        beta_c = np.zeros(width, dtype)
    norm_x = spec.gates if spec.norm_each_product else None
    return Parameters(
        added_up(4 * width, dtype, given.bias, given.beta_x, given.beta_h),
        None,
        *norm_pair(spec.gates, given.gamma_h, None, 4 * width, dtype, ada),
        *norm_pair(norm_x, given.gamma_x, None, 4 * width, dtype, ada),
        *norm_pair(spec.cell, given.gamma_c, beta_c, width, dtype, ada),
    )


def _gradients(totals: Array, width: int) -> dict[str, Array]:
    sections = np.cumsum([4, 4, 4, 1]) * width
    offset, gamma_h, gamma_x, gamma_c, beta_c = np.split(totals, sections)
    gradients = {"gamma_x": gamma_x, "gamma_h": gamma_h, "gamma_c": gamma_c, "beta_c": beta_c}
    return gradients | {"bias": offset, "beta_x": offset, "beta_h": offset}


LSTM = CellKind(
    name="lstm",
    gates=4,
    sums=14,
    norms_each_product=lambda spec: spec.norm_each_product,
    # Zoneout passes a part of the gradient to the previous state.
    accumulates=lambda spec: spec.zoneout,
    keeps_cell_apart=lambda spec: spec.carries_normalized or spec.zoneout,
    norms=_norms,
    statistics=_statistics,
    parameters=_parameters,
    gradients=_gradients,
    make_row=make_row,
    make_row_gradient=make_row_gradient,
    projects=lambda spec: spec.projected,
)
