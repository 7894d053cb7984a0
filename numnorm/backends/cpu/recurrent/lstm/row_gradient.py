"""The gradient of one row of one step of an LSTM."""

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


def _make_gates_again(
    spec: LSTMSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function of some units: the gates again."""
    gates, write, norm_each_product = (
        make_gates(spec, element_type, access),
        access.write,
        spec.norm_each_product,
    )

    @inlined
    def gates_again(rows, parameters, statistics, results, distance, j, tail):
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

    return gates_again


def _make_state_gradient(
    spec: LSTMSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function of some units: what reaches the normalized cell, and o."""
    read, _, write = access
    normalized, real = make_normalized(spec.cell, element_type, access), element_type.compute_type
    tanh, carries, zoned = make_tanh(real), spec.carries_normalized, spec.zoneout
    zoneout, state_gradient = make_zoneout(zoned, access), inlined(lstm_state_gradient)
    write_summed = make_write_summed(access)

    @inlined
    def gradient(dy, dh, dc, gates, cell, parameters, statistics, masks, result, sums, j, tail):
        gamma, beta, at = parameters.gamma_c, parameters.beta_c, j + 2 * cell.size
        tanh_c = tanh(normalized(cell, statistics, gamma, beta, j, tail))
        o, grad = read(gates, at, tail), read(dy, j, tail) + read(dh, j, tail)
        of_new, of_old = zoneout.gradient(grad, masks[0], j, tail)
        if zoned:
            write(dh, j, of_old, tail)
        of_cell, of_o = state_gradient(of_new, o, tanh_c, real(1))
        if carries:
            of_cell = of_cell + zoneout.gradient(read(dc, j, tail), masks[1], j, tail)[0]
        write(result, j, of_cell, tail)
        write_summed(gates, sums, at, of_o, tail)

    return gradient


def _make_gate_gradient(
    spec: LSTMSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function of some units: what reaches f, i, g and the cell before."""
    read, _, write = access
    real, carries, zoned = element_type.compute_type, spec.carries_normalized, spec.zoneout
    zoneout, cell_gradient = make_zoneout(zoned, access), inlined(lstm_cell_gradient)
    write_summed = make_write_summed(access)

    @inlined
    def gradient(dcell, dc, gates, c_prev, mask, sums, j, tail):
        width = dc.size
        f, i = read(gates, j, tail), read(gates, j + width, tail)
        g = read(gates, j + 3 * width, tail)
        of_cell = read(dcell, j, tail)
        of_new, of_old = zoneout.gradient(read(dc, j, tail), mask, j, tail)
        if not carries:
            of_cell = of_cell + of_new
        df, di, dg, past = cell_gradient(of_cell, read(c_prev, j, tail), f, i, g, real(1))
        write_summed(gates, sums, j, df, tail)
        write_summed(gates, sums, j + width, di, tail)
        write_summed(gates, sums, j + 3 * width, dg, tail)
        if zoned:
            past = past + of_old
        write(dc, j, past, tail)

    return gradient


@inlined
def _sections(sums, width):
    """Return a row's sums: of all that is added, both gammas of the gates, the cell's gradients."""
    wide = 4 * width
    of_cell = sums[3 * wide : 3 * wide + width], sums[3 * wide + width :]
    return sums[:wide], (sums[wide : 2 * wide], sums[2 * wide : 3 * wide]), of_cell


def make_row_gradient(spec: LSTMSpec, element_type: ElementType) -> Callable[..., None]:
    """Return a compiled function of the gradient of one row of one step."""
    gate_norm, cell_norm = (
        make_gate_norm(spec, element_type),
        make_cell_norm(spec.cell, element_type),
    )
    gates_again = make_unit_loop(
        lambda access: _make_gates_again(spec, element_type, access), element_type
    )
    through_state = make_unit_loop(
        lambda access: _make_state_gradient(spec, element_type, access), element_type
    )
    through_cell = make_unit_loop(
        lambda access: _make_gate_gradient(spec, element_type, access), element_type
    )
    direct = spec.gates is None

    @inlined
    def row(saved, parameters, coefficients, masks, gradients, scratch, sums, place):
        i, b, before, k, at, distance = place
        z, xp, cell, arrays = saved.z[i], part(saved.xp, i), saved.cell[i], saved.statistics
        c_prev, dz, dxp = saved.carried[before], gradients.dz[k], part(gradients.dxp, k)
        dy, dh, dc, width = gradients.dy[i], gradients.dh[b], gradients.dc[b], cell.size
        gates = dz if direct else scratch.gates[at]
        dn, dcell = scratch.normalized[at], scratch.cell[at]
        of_offset, of_gammas, of_cell = _sections(sums, width)
        shares = part(masks.h, i), part(masks.c, i)
        found = gate_norm.again(arrays, i)
        gates_again(width, ((z, xp, c_prev, cell, dy), parameters, found, gates, distance))
        found = cell_norm.saved(arrays.mean_c, arrays.rstd_c, i)
        through_state(width, (dy, dh, dc, gates, cell, parameters, found, shares, dn, of_offset))
        cell_norm.gradient(
            dn, cell, arrays.mean_c, arrays.rstd_c, i, parameters.gamma_c, parameters.beta_c,
            coefficients.second, of_cell, dcell,
        )  # fmt: skip
        through_cell(width, (dcell, dc, gates, c_prev, shares[1], of_offset))
        gate_norm.gradient(
            gates, z, xp, arrays, i, parameters, coefficients.first, of_gammas, (dz, dxp)
        )

    return row
