"""The backward pass of one row of one step of an LSTM."""

from collections.abc import Callable

from numnorm.backends.contract.recurrent import LSTMSpec
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.recurrent.common.cell_norm import make_cell_norm, make_normalized
from numnorm.backends.cpu.recurrent.common.steps import prefetch_row
from numnorm.backends.cpu.recurrent.common.zoneout import make_zoneout
from numnorm.backends.cpu.recurrent.kernels.units import make_unit_loop, make_write_summed
from numnorm.backends.cpu.recurrent.lstm.gates import make_gate_norm, make_gates
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.activations import make_tanh
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.formulas.cells import lstm_cell_gradient, lstm_state_gradient


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
