"""The gates of a gated recurrent unit and the norms of their inputs.

A product's row holds z, r and the candidate. z and r are normalized together, as one row of 2H
elements; the candidate is normalized by itself.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.recurrent import GRUSpec
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.borrowed import window
from numnorm.backends.cpu.recurrent.common.cell_norm import make_cell_norm, make_normalized
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.activations import make_sigmoid, make_tanh
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.formulas.cells import gru_candidate_input


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
