"""The backward pass of one row of a GRU whose reset gate scales the state before the product.

The first half ends with the gradient of the candidate's product, the second begins with that of
the reset state. Between them the row of `Scratch.gates` holds the gradient of z, and r.
"""

from collections.abc import Callable

from numnorm.backends.contract.recurrent import GRUSpec
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.recurrent.common.dropout import make_operand
from numnorm.backends.cpu.recurrent.common.steps import prefetch_row
from numnorm.backends.cpu.recurrent.common.zoneout import make_zoneout
from numnorm.backends.cpu.recurrent.gru.reset_gates import (
    make_candidate,
    make_gates,
    make_part_norm,
)
from numnorm.backends.cpu.recurrent.gru.row_gradient import sections
from numnorm.backends.cpu.recurrent.kernels.units import make_unit_loop, make_write_summed
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.formulas.cells import gru_reset_gradient, gru_update_gradient


def _make_update_gradient(
    spec: GRUSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function that stores the gradients of the inputs of z and the candidate.

    ``gradient(rows, parameters, statistics, mask, result, sums, distance, j, tail)``, for a vector
    of units. `rows` are hp, xp, h_prev, dy and dh, which becomes a part of the gradient of h_prev.
    `statistics` is a pair, of the gates and of the candidate. `result` also gets r.
    """
    read, _, write = access
    gates, candidate_of = (
        make(spec, element_type, access) for make in (make_gates, make_candidate)
    )
    zoneout, zoned, real = (
        make_zoneout(spec.zoneout, access),
        spec.zoneout,
        element_type.compute_type,
    )
    update_gradient, write_summed = inlined(gru_update_gradient), make_write_summed(access)

    @inlined
    def gradient(rows, parameters, statistics, mask, result, sums, distance, j, tail):
        hp, xp, h_prev, dy, dh = rows
        width = dy.size
        prefetch_row(hp, distance, 3, j)
        prefetch_row(xp, distance, 3, j)
        prefetch_row(h_prev, distance, 1, j)
        prefetch_row(dy, distance, 1, j)
        keep, r = gates(hp, xp, parameters, statistics[0], width, j, tail)
        candidate = candidate_of(hp, xp, parameters, statistics[1], width, j, tail)
        d_new, d_prev = zoneout.gradient(read(dy, j, tail) + read(dh, j, tail), mask, j, tail)
        dz, d_candidate, d_h_prev = update_gradient(
            d_new, read(h_prev, j, tail), keep, candidate, real(1)
        )
        if zoned:
            d_h_prev = d_h_prev + d_prev
        write(dh, j, d_h_prev, tail)
        write_summed(result, sums[0], j, dz, tail)
        write(result, j + width, r, tail)
        write_summed(result, sums[0], j + 2 * width, d_candidate, tail)
        write(sums[1], j, read(sums[1], j, tail) + d_candidate, tail)

    return gradient


def _make_reset_gradient(
    spec: GRUSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function that overwrites r by the gradient of its input, and adds to dh.

    ``gradient(d_reset, operand, mask, dh, result, sums, j, tail)``, for a vector of units.
    """
    read, coefficient, write = access
    reset_gradient, real = inlined(gru_reset_gradient), element_type.compute_type
    write_summed = make_write_summed(access)

    @inlined
    def gradient(d_reset, operand, mask, dh, result, sums, j, tail):
        k = j + dh.size
        values = read(d_reset, j, tail), read(operand, j, tail), read(result, k, tail)
        dr, d_operand = reset_gradient(*values, real(1))
        d_h_prev = d_operand * coefficient(mask, j, tail, real(1))
        write(dh, j, read(dh, j, tail) + d_h_prev, tail)
        write_summed(result, sums, k, dr, tail)

    return gradient


def make_row_gradient(spec: GRUSpec, element_type: ElementType) -> Callable[..., None]:
    """Return the compiled gradient of one row that `CellKind.make_row_gradient` describes."""
    norm = make_part_norm(spec, element_type)
    gradient = make_unit_loop(_make_update_gradient, spec, element_type)

    @inlined
    def row(saved, parameters, coefficients, masks, gradients, scratch, sums, index):
        i, k, arrays = index.i, index.k, saved.statistics
        hp, xp, dy, dh = saved.z[i], saved.xp[i], gradients.dy[i], gradients.dh[index.b]
        width, result, mask = dy.size, scratch.gates[index.b], part(masks.h, i)
        d_offsets, d_gamma_h, d_gamma_x = sections(sums, width)
        rows = hp, xp, saved.state[index.before], dy, dh
        statistics = norm.load(arrays, i, 0), norm.load(arrays, i, 1)
        gradient(width, (rows, parameters, statistics, mask, result, d_offsets, index.distance))
        norm.gradient(
            result[2 * width :], hp, xp, arrays, i, 1, parameters, coefficients.second,
            (d_gamma_h, d_gamma_x), (gradients.dz[k], gradients.dxp[k]),
        )  # fmt: skip

    return row


def make_second_gradient(spec: GRUSpec, element_type: ElementType) -> Callable[..., None]:
    """Return the compiled gradient of one row that `CellKind.make_second_gradient` describes."""
    norm = make_part_norm(spec, element_type)
    gradient = make_unit_loop(_make_reset_gradient, spec, element_type)
    operand_of = make_operand(spec.recurrent_dropout)

    @inlined
    def row(saved, parameters, coefficients, masks, gradients, scratch, sums, index):
        i, b, k = index.i, index.b, index.k
        dh, result, d_reset = gradients.dh[b], scratch.gates[b], scratch.normalized[b]
        width = dh.size
        d_offsets, d_gamma_h, d_gamma_x = sections(sums, width)
        operand, mask = operand_of(saved)[index.before], part(masks.dropout, b)
        gradient(width, (d_reset, operand, mask, dh, result, d_offsets[0]))
        norm.gradient(
            result[: 2 * width], saved.z[i], saved.xp[i], saved.statistics, i, 0, parameters,
            coefficients.first, (d_gamma_h, d_gamma_x), (gradients.dz[k], gradients.dxp[k]),
        )  # fmt: skip

    return row
