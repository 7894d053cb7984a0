"""The gates of a gated recurrent unit, and what enters them: the products, normalized.

A row has z, r and the rest, one after the other: z and r are normalized together.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.recurrent import GRUForm
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.recurrent.common.cell_norm import make_cell_norm
from numnorm.backends.cpu.simd.access import Access
from numnorm.backends.cpu.simd.activations import make_sigmoid, make_tanh
from numnorm.backends.cpu.simd.element_type import Storage
from numnorm.backends.cpu.simd.optional import stretch


class ProductNorm(NamedTuple):
    """Compiled functions of one row, of either product.

    Attributes
    ----------
    find : callable
        ``find(row, scalings, saved, i)``: the statistics of both gates and of the rest, which are
        also saved if there is room for them.
    again : callable
        ``again(saved, i)``: the same, as they were saved.
    gradient : callable
        ``gradient(of_gates, of_rest, row, saved, i, weights, flows, sums, result)``, from the
        gradients of what the norms make of it; the sums are those of gamma.
    """

    find: Callable[..., Any]
    again: Callable[..., Any]
    gradient: Callable[..., Any]


@functools.cache
def make_product_norm(form: GRUForm, storage: Storage) -> ProductNorm:
    """Return how a product is normalized."""
    norm = make_cell_norm(form.norm, storage)

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
    def gradient(of_gates, of_rest, row, saved, i, weights, flows, sums, result):
        mean, rstd = saved
        gamma, beta = weights
        two, three = of_gates.size, row.size
        norm.gradient(
            of_gates, row[:two], mean, rstd, 2 * i, stretch(gamma, 0, two), stretch(beta, 0, two),
            flows[0], (sums[:two], None), result[:two],
        )  # fmt: skip
        norm.gradient(
            of_rest, row[two:], mean, rstd, 2 * i + 1, stretch(gamma, two, three),
            stretch(beta, two, three), flows[1], (sums[two:], None), result[two:],
        )  # fmt: skip

    return ProductNorm(find, again, gradient)


def make_gates(form: GRUForm, storage: Storage, access: Access) -> Callable[..., Any]:
    """Return a compiled ``gates(hp, xp, weights, found, width, j, rest)`` of some units.

    It returns 1 - z, r, the new state that they suggest, and what r lets pass of the old one: a
    state may be large, a new one not, so 1 - z has to have all its digits. The weights are
    ``offset, offset_h``, gamma and beta of the product with the state, and of that with x;
    `found` has the statistics of both.
    """
    read, term, _ = access
    apply, real = make_cell_norm(form.norm, storage).apply, storage.working
    sigmoid, tanh = make_sigmoid(real), make_tanh(real)

    @inlined
    def value(row, found, gamma, beta, j, rest):
        gain, shift = term(gamma, j, rest, real(1)), term(beta, j, rest, real(0))
        return apply(read(row, j, rest), found, gain, shift)

    @inlined
    def gates(hp, xp, weights, found, width, j, rest):
        offset, offset_h, gamma_h, beta_h, gamma_x, beta_x = weights
        of_h, of_x = found
        both = value(hp, of_h[0], gamma_h, beta_h, j, rest)
        both = both + value(xp, of_x[0], gamma_x, beta_x, j, rest)
        keep = sigmoid((both + read(offset, j, rest)) * -1.0)
        at = j + width
        both = value(hp, of_h[0], gamma_h, beta_h, at, rest)
        both = both + value(xp, of_x[0], gamma_x, beta_x, at, rest)
        r = sigmoid(both + read(offset, at, rest))
        at = at + width
        old = value(hp, of_h[1], gamma_h, beta_h, at, rest) + read(offset_h, j, rest)
        new = value(xp, of_x[1], gamma_x, beta_x, at, rest) + read(offset, at, rest)
        return keep, r, tanh(new + r * old), old

    return gates
