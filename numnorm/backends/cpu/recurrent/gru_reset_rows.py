"""The passes of one row of a GRU whose reset gate scales the state before the product.

The first half of the backward pass ends with the gradient of the candidate's product, the second
begins with that of the reset state. Between them the row of `Scratch.gates` holds the gradient of
z, and r.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.recurrent import GRUSpec
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.kernel_arrays import window
from numnorm.backends.cpu.recurrent.cell_norm import make_cell_norm, make_normalized
from numnorm.backends.cpu.recurrent.gru_rows import make_gate_input, sections
from numnorm.backends.cpu.recurrent.units import (
    make_operand,
    make_unit_loop,
    make_write_summed,
    make_zoneout,
    prefetch_row,
)
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.activations import make_sigmoid, make_tanh
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.formulas.cells import gru_reset_gradient, gru_state, gru_update_gradient

# The gates and the candidate


def make_gates(
    spec: GRUSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., Any]:
    """Return a compiled ``gates(hp, xp, parameters, statistics, width, j, tail)``: 1 - z and r."""
    gate_input, sigmoid = (
        make_gate_input(spec, element_type, access),
        make_sigmoid(element_type.compute_type),
    )

    @inlined
    def gates(hp, xp, parameters, statistics, width, j, tail):
        keep = sigmoid(gate_input(hp, xp, parameters, statistics, j, tail) * -1.0)
        return keep, sigmoid(gate_input(hp, xp, parameters, statistics, j + width, tail))

    return gates


def make_candidate(
    spec: GRUSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., Any]:
    """Return a compiled ``candidate(hp, xp, parameters, statistics, width, j, tail)``."""
    read, normalized = access.read, make_normalized(spec.norm, element_type, access)
    tanh = make_tanh(element_type.compute_type)

    @inlined
    def candidate(hp, xp, parameters, statistics, width, j, tail):
        (stats_h, stats_x), k = statistics, j + 2 * width
        from_h = normalized(hp, stats_h, parameters.gamma_h, parameters.beta_h, k, tail)
        from_x = normalized(xp, stats_x, parameters.gamma_x, parameters.beta_x, k, tail)
        from_h = from_h + read(parameters.offset_h, j, tail)
        return tanh(from_x + read(parameters.offset, k, tail) + from_h)

    return candidate


class PartNorm(NamedTuple):
    """Compiled functions for the gates (part 0) or the candidate (part 1) of both products' rows.

    Attributes
    ----------
    compute : callable
        ``compute(hp, xp, scaling, saved, i, part)``: a pair of statistics, which are saved unless
        the arrays of `saved`, a `Statistics`, have size 0.
    load : callable
        ``load(saved, i, part)``: the same, as they were saved.
    gradient : callable
        ``gradient(dy, hp, xp, saved, i, part, parameters, coefficients, sums, results)`` maps the
        gradient of the norms' outputs to the gradient of both rows, and adds gamma's gradient to
        `sums`.
    """

    compute: Callable[..., Any]
    load: Callable[..., Any]
    gradient: Callable[..., Any]


@functools.cache
def make_part_norm(spec: GRUSpec, element_type: ElementType) -> PartNorm:
    """Return the norm of the gates or of the candidate."""
    norm = make_cell_norm(spec.norm, element_type)

    @inlined
    def bounds(row, part):
        middle = row.size // 3 * 2
        return (0, middle) if part == 0 else (middle, row.size)

    @inlined
    def compute(hp, xp, scaling, saved, i, part):
        first, stop = bounds(hp, part)
        stats_h = norm.statistics(hp[first:stop], scaling)
        stats_x = norm.statistics(xp[first:stop], scaling)
        if saved.mean_h.size > 0:
            norm.save(stats_h, saved.mean_h, saved.rstd_h, 2 * i + part)
            norm.save(stats_x, saved.mean_x, saved.rstd_x, 2 * i + part)
        return stats_h, stats_x

    @inlined
    def load(saved, i, part):
        k = 2 * i + part
        stats_h = norm.saved(saved.mean_h, saved.rstd_h, k)
        return stats_h, norm.saved(saved.mean_x, saved.rstd_x, k)

    @inlined
    def gradient(dy, hp, xp, saved, i, part, parameters, coefficients, sums, results):
        (first, stop), k = bounds(hp, part), 2 * i + part
        norm.gradient(
            dy, hp[first:stop], saved.mean_h, saved.rstd_h, k,
            window(parameters.gamma_h, first, dy.size), window(parameters.beta_h, first, dy.size),
            coefficients, (sums[0][first:stop], None), results[0][first:stop],
        )  # fmt: skip
        norm.gradient(
            dy, xp[first:stop], saved.mean_x, saved.rstd_x, k,
            window(parameters.gamma_x, first, dy.size), window(parameters.beta_x, first, dy.size),
            coefficients, (sums[1][first:stop], None), results[1][first:stop],
        )  # fmt: skip

    return PartNorm(compute, load, gradient)


# Forward


def _make_reset_state(
    spec: GRUSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function that stores 1 - z and the state times r of a vector of units.

    ``reset_state(hp, xp, parameters, statistics, operand, keep, reset, j, tail)``
    """
    read, _, write = access
    gates = make_gates(spec, element_type, access)

    @inlined
    def reset_state(hp, xp, parameters, statistics, operand, keep, reset, j, tail):
        one_minus_z, r = gates(hp, xp, parameters, statistics, keep.size, j, tail)
        write(keep, j, one_minus_z, tail)
        write(reset, j, r * read(operand, j, tail), tail)

    return reset_state


def _make_new_state(
    spec: GRUSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function that stores the new state of a vector of units.

    ``new_state(hp, xp, parameters, statistics, h_prev, keep, h, mask, j, tail)``
    """
    read, _, write = access
    candidate = make_candidate(spec, element_type, access)
    blend = make_zoneout(spec.zoneout, access).blend
    state, real = inlined(gru_state), element_type.compute_type

    @inlined
    def new_state(hp, xp, parameters, statistics, h_prev, keep, h, mask, j, tail):
        new = candidate(hp, xp, parameters, statistics, h.size, j, tail)
        new = state(read(keep, j, tail), new, read(h_prev, j, tail), real(1))
        write(h, j, blend(new, h_prev, mask, j, tail), tail)

    return new_state


def make_row(
    spec: GRUSpec, element_type: ElementType
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the functions of `CellKind.make_row`: one up to the reset state, one to the state."""
    norm = make_part_norm(spec, element_type)
    reset_state = make_unit_loop(_make_reset_state, spec, element_type)
    new_state = make_unit_loop(_make_new_state, spec, element_type)
    operand_of = make_operand(spec.recurrent_dropout)

    @inlined
    def to_reset(hp, xp, saved, parameters, scalings, masks, keep, index):
        operand, i = operand_of(saved)[index.before], index.i
        reset = saved.cell[i if saved.cell.shape[0] > index.batch else index.b]
        statistics = norm.compute(hp, xp, scalings.first, saved.statistics, i, 0)
        reset_state(keep.size, (hp, xp, parameters, statistics, operand, keep, reset))

    @inlined
    def to_state(hp, xp, saved, parameters, scalings, masks, keep, index):
        i, h_prev = index.i, saved.state[index.before]
        h, mask = saved.state[index.batch + i], part(masks.h, i)
        statistics = norm.compute(hp, xp, scalings.second, saved.statistics, i, 1)
        new_state(keep.size, (hp, xp, parameters, statistics, h_prev, keep, h, mask))

    return to_reset, to_state


# Backward


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
