"""The forward and backward pass of one row of one step of a gated recurrent unit.

A product's row holds z, r and the candidate. z and r are normalized together, as one row of 2H
elements; the candidate is normalized by itself.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.recurrent import GRUSpec
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.kernel_arrays import window
from numnorm.backends.cpu.recurrent.cell_norm import make_cell_norm, make_normalized
from numnorm.backends.cpu.recurrent.units import (
    make_unit_loop,
    make_write_summed,
    make_zoneout,
    no_second_half,
    prefetch_row,
)
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.activations import make_sigmoid, make_tanh
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.formulas.cells import gru_candidate_input, gru_gradient, gru_state

# The gates and the norms of their inputs


class ProductNorm(NamedTuple):
    """Compiled functions for one row of a product; `saved` is a pair of arrays, mean and rstd.

    Attributes
    ----------
    arrays : callable
        ``arrays(statistics)``: `saved` of the product W_h h with the state, and of W_x x.
    compute : callable
        ``compute(row, scalings, saved, i)``: the statistics of the gates and of the candidate. It
        also saves them unless the arrays have size 0.
    load : callable
        ``load(saved, i)``: the same, as they were saved.
    gradient : callable
        ``gradient(d_gates, d_candidate, row, saved, i, weights, coefficients, sums, result)`` maps
        gradients of the norms' outputs to those of a row, and adds those of gamma to `sums`.
    """

    arrays: Callable[..., Any]
    compute: Callable[..., Any]
    load: Callable[..., Any]
    gradient: Callable[..., Any]


@functools.cache
def make_product_norm(spec: GRUSpec, element_type: ElementType) -> ProductNorm:
    """Return the norm of a product."""
    norm = make_cell_norm(spec.norm, element_type)

    @inlined
    def arrays(statistics):
        saved_x = statistics.mean_x, statistics.rstd_x
        return (statistics.mean_h, statistics.rstd_h), saved_x

    @inlined
    def compute(row, scalings, saved, i):
        middle = row.size // 3 * 2
        gate_stats = norm.statistics(row[:middle], scalings[0])
        candidate_stats = norm.statistics(row[middle:], scalings[1])
        if saved[0].size > 0:
            norm.save(gate_stats, saved[0], saved[1], 2 * i)
            norm.save(candidate_stats, saved[0], saved[1], 2 * i + 1)
        return gate_stats, candidate_stats

    @inlined
    def load(saved, i):
        mean, rstd = saved
        return norm.saved(mean, rstd, 2 * i), norm.saved(mean, rstd, 2 * i + 1)

    @inlined
    def gradient(d_gates, d_candidate, row, saved, i, weights, coefficients, sums, result):
        mean, rstd = saved
        gamma, beta = weights
        middle, rest = d_gates.size, row.size - d_gates.size
        norm.gradient(
            d_gates, row[:middle], mean, rstd, 2 * i,
            window(gamma, 0, middle), window(beta, 0, middle),
            coefficients[0], (sums[:middle], None), result[:middle],
        )  # fmt: skip
        norm.gradient(
            d_candidate, row[middle:], mean, rstd, 2 * i + 1,
            window(gamma, middle, rest), window(beta, middle, rest),
            coefficients[1], (sums[middle:], None), result[middle:],
        )  # fmt: skip

    return ProductNorm(arrays, compute, load, gradient)


def make_gate_input(
    spec: GRUSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., Any]:
    """Return a compiled ``gate_input(hp, xp, parameters, statistics, j, tail)`` of z or r.

    `statistics` is a pair, for both products.
    """
    read, normalized = access.read, make_normalized(spec.norm, element_type, access)

    @inlined
    def gate_input(hp, xp, parameters, statistics, j, tail):
        stats_h, stats_x = statistics
        value = normalized(hp, stats_h, parameters.gamma_h, parameters.beta_h, j, tail)
        value = value + normalized(xp, stats_x, parameters.gamma_x, parameters.beta_x, j, tail)
        return value + read(parameters.offset, j, tail)

    return gate_input


def make_gates(
    spec: GRUSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., Any]:
    """Return a compiled ``gates(hp, xp, parameters, statistics, width, j, tail)`` of a vector.

    It returns 1 - z, r, the candidate, and the normalized part of the candidate that r resets.
    `hp` and `xp` are the products W_h h with the state and W_x x, `statistics` is a pair, for both.
    """
    read, normalized = access.read, make_normalized(spec.norm, element_type, access)
    sigmoid, tanh = make_sigmoid(element_type.compute_type), make_tanh(element_type.compute_type)
    candidate_input = inlined(gru_candidate_input)
    gate_input = make_gate_input(spec, element_type, access)

    @inlined
    def gates(hp, xp, parameters, statistics, width, j, tail):
        stats_h, stats_x = statistics
        of_gates = stats_h[0], stats_x[0]
        keep = sigmoid(gate_input(hp, xp, parameters, of_gates, j, tail) * -1.0)
        r = sigmoid(gate_input(hp, xp, parameters, of_gates, j + width, tail))
        k = j + 2 * width
        from_h = normalized(hp, stats_h[1], parameters.gamma_h, parameters.beta_h, k, tail)
        from_h = from_h + read(parameters.offset_h, j, tail)
        from_x = normalized(xp, stats_x[1], parameters.gamma_x, parameters.beta_x, k, tail)
        from_x = from_x + read(parameters.offset, k, tail)
        return keep, r, tanh(candidate_input(from_x, r, from_h)), from_h

    return gates


# Forward


def _make_new_state(
    spec: GRUSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function that stores the new state of a vector of units.

    ``new_state(hp, xp, parameters, statistics, h_prev, h, mask, j, tail)``
    """
    read, _, write = access
    gates, blend = make_gates(spec, element_type, access), make_zoneout(spec.zoneout, access).blend
    state, real = inlined(gru_state), element_type.compute_type

    @inlined
    def new_state(hp, xp, parameters, statistics, h_prev, h, mask, j, tail):
        keep, _, candidate, _ = gates(hp, xp, parameters, statistics, h.size, j, tail)
        new = state(keep, candidate, read(h_prev, j, tail), real(1))
        write(h, j, blend(new, h_prev, mask, j, tail), tail)

    return new_state


def make_row(
    spec: GRUSpec, element_type: ElementType
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the functions of `CellKind.make_row`; the first does all."""
    norm = make_product_norm(spec, element_type)
    new_state = make_unit_loop(_make_new_state, spec, element_type)

    @inlined
    def row(hp, xp, saved, parameters, scalings, masks, scratch, index):
        i, (saved_h, saved_x) = index.i, norm.arrays(saved.statistics)
        h_prev, h = saved.state[index.before], saved.state[index.batch + i]
        statistics = norm.compute(hp, scalings, saved_h, i), norm.compute(xp, scalings, saved_x, i)
        new_state(h.size, (hp, xp, parameters, statistics, h_prev, h, part(masks.h, i)))

    return row, no_second_half


# Backward


def _make_gradient(
    spec: GRUSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function that stores the gradients of the gates' inputs and of h_prev.

    ``gradient(rows, parameters, statistics, mask, results, sums, distance, j, tail)``, for a vector
    of units. `rows` are hp, xp, h_prev, dy and dh, which becomes the gradient of h_prev. `results`
    and `sums` are pairs: for z, r and the candidate, and for the candidate's part of hp.
    """
    read, _, write = access
    gates, real = make_gates(spec, element_type, access), element_type.compute_type
    zoneout, zoned = make_zoneout(spec.zoneout, access), spec.zoneout
    cell_gradient, write_summed = inlined(gru_gradient), make_write_summed(access)

    @inlined
    def gradient(rows, parameters, statistics, mask, results, sums, distance, j, tail):
        hp, xp, h_prev, dy, dh = rows
        width = dy.size
        prefetch_row(hp, distance, 3, j)
        prefetch_row(xp, distance, 3, j)
        prefetch_row(h_prev, distance, 1, j)
        prefetch_row(dy, distance, 1, j)
        keep, r, candidate, from_h = gates(hp, xp, parameters, statistics, width, j, tail)
        d_new, d_prev = zoneout.gradient(read(dy, j, tail) + read(dh, j, tail), mask, j, tail)
        dz, dr, d_from_h, d_candidate, d_h_prev = cell_gradient(
            d_new, read(h_prev, j, tail), keep, r, candidate, from_h, real(1)
        )
        if zoned:
            d_h_prev = d_h_prev + d_prev
        write(dh, j, d_h_prev, tail)
        write_summed(results[0], sums[0], j, dz, tail)
        write_summed(results[0], sums[0], j + width, dr, tail)
        write_summed(results[0], sums[0], j + 2 * width, d_candidate, tail)
        write_summed(results[1], sums[1], j, d_from_h, tail)

    return gradient


@inlined
def sections(sums, width):
    """Split a row of `Sums`: both offsets, gamma_h, gamma_x."""
    offsets = sums[: 3 * width], sums[3 * width : 4 * width]
    return offsets, sums[4 * width : 7 * width], sums[7 * width :]


def make_row_gradient(spec: GRUSpec, element_type: ElementType) -> Callable[..., None]:
    """Return the compiled gradient of one row that `CellKind.make_row_gradient` describes."""
    norm = make_product_norm(spec, element_type)
    gradient = make_unit_loop(_make_gradient, spec, element_type)

    @inlined
    def row(saved, parameters, coefficients, masks, gradients, scratch, sums, index):
        i, k, (saved_h, saved_x) = index.i, index.k, norm.arrays(saved.statistics)
        hp, xp, dy, dh = saved.z[i], saved.xp[i], gradients.dy[i], gradients.dh[index.b]
        d_inputs, d_from_h = scratch.gates[index.scratch], scratch.normalized[index.scratch]
        width, mask = dy.size, part(masks.h, i)
        d_offsets, d_gamma_h, d_gamma_x = sections(sums, width)
        rows = hp, xp, saved.state[index.before], dy, dh
        statistics, results = (norm.load(saved_h, i), norm.load(saved_x, i)), (d_inputs, d_from_h)
        gradient(width, (rows, parameters, statistics, mask, results, d_offsets, index.distance))
        d_gates, d_from_x = d_inputs[: 2 * width], d_inputs[2 * width :]
        norm.gradient(
            d_gates, d_from_h, hp, saved_h, i, (parameters.gamma_h, parameters.beta_h),
            coefficients, d_gamma_h, gradients.dz[k],
        )  # fmt: skip
        norm.gradient(
            d_gates, d_from_x, xp, saved_x, i, (parameters.gamma_x, parameters.beta_x),
            coefficients, d_gamma_x, gradients.dxp[k],
        )  # fmt: skip

    return row
