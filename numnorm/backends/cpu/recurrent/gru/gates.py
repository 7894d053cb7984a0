"""The gates of a gated recurrent unit, and what enters them: the products, normalized.

A row has z, r and the candidate, one after the other: z and r are normalized together.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.recurrent import GRUSpec
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.recurrent.common.cell_norm import make_cell_norm, make_normalized
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.activations import make_sigmoid, make_tanh
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import slice_or_scalar
from numnorm.backends.formulas.cells import gru_candidate_input


class ProductNorm(NamedTuple):
    """Compiled functions of one row, of either product.

    Attributes
    ----------
    arrays : callable
        ``arrays(statistics)``: mean and rstd of the product with the state, and of that with x.
    find : callable
        ``find(row, scalings, saved, i)``: the statistics of both gates and of the rest, which are
        also saved if there is room for them.
    again : callable
        ``again(saved, i)``: the same, as they were saved.
    gradient : callable
        ``gradient(of_gates, of_rest, row, saved, i, weights, coefficients, sums, result)``, from the
        gradients of what the norms make of it; the sums are those of gamma.
    """

    arrays: Callable[..., Any]
    find: Callable[..., Any]
    again: Callable[..., Any]
    gradient: Callable[..., Any]


@functools.cache
def make_product_norm(spec: GRUSpec, element_type: ElementType) -> ProductNorm:
    """Return how a product is normalized."""
    norm = make_cell_norm(spec.norm, element_type)

    @inlined
    def arrays(statistics):
        of_x = statistics.mean_x, statistics.rstd_x
        return (statistics.mean_h, statistics.rstd_h), of_x

    @inlined
    def find(row, scalings, saved, i):
        two = row.size // 3 * 2
        of_gates = norm.statistics(row[:two], scalings[0])
        of_rest = norm.statistics(row[two:], scalings[1])
        if saved[0].size > 0:
            norm.save(of_gates, saved[0], saved[1], 2 * i)
            norm.save(of_rest, saved[0], saved[1], 2 * i + 1)
        return of_gates, of_rest

    @inlined
    def again(saved, i):
        mean, rstd = saved
        return norm.saved(mean, rstd, 2 * i), norm.saved(mean, rstd, 2 * i + 1)

    @inlined
    def gradient(of_gates, of_rest, row, saved, i, weights, coefficients, sums, result):
        mean, rstd = saved
        gamma, beta = weights
        two, three = of_gates.size, row.size
        norm.gradient(
            of_gates, row[:two], mean, rstd, 2 * i, slice_or_scalar(gamma, 0, two), slice_or_scalar(beta, 0, two),
            coefficients[0], (sums[:two], None), result[:two],
        )  # fmt: skip
        norm.gradient(
            of_rest, row[two:], mean, rstd, 2 * i + 1, slice_or_scalar(gamma, two, three),
            slice_or_scalar(beta, two, three), coefficients[1], (sums[two:], None), result[two:],
        )  # fmt: skip

    return ProductNorm(arrays, find, again, gradient)


def make_gates(
    spec: GRUSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., Any]:
    """Return a compiled ``gates(hp, xp, parameters, statistics, width, j, tail)`` of some units.

    It returns 1 - z, r, the candidate, and the product with the state's part of it. The statistics
    are those of both products.
    """
    read, normalized = access.read, make_normalized(spec.norm, element_type, access)
    sigmoid, tanh = make_sigmoid(element_type.compute_type), make_tanh(element_type.compute_type)
    candidate_input = inlined(gru_candidate_input)

    @inlined
    def gate_input(hp, xp, parameters, statistics, j, tail):
        of_h, of_x = statistics
        both = normalized(hp, of_h[0], parameters.gamma_h, parameters.beta_h, j, tail)
        both = both + normalized(xp, of_x[0], parameters.gamma_x, parameters.beta_x, j, tail)
        return both + read(parameters.offset, j, tail)

    @inlined
    def gates(hp, xp, parameters, statistics, width, j, tail):
        of_h, of_x = statistics
        keep = sigmoid(gate_input(hp, xp, parameters, statistics, j, tail) * -1.0)
        r = sigmoid(gate_input(hp, xp, parameters, statistics, j + width, tail))
        k = j + 2 * width
        from_h = normalized(hp, of_h[1], parameters.gamma_h, parameters.beta_h, k, tail)
        from_h = from_h + read(parameters.offset_h, j, tail)
        from_x = normalized(xp, of_x[1], parameters.gamma_x, parameters.beta_x, k, tail)
        from_x = from_x + read(parameters.offset, k, tail)
        return keep, r, tanh(candidate_input(from_x, r, from_h)), from_h

    return gates
