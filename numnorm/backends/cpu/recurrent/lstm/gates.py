"""The gates of an LSTM, and what enters them: the products with x and with the state, normalized.

The gates of a row are f, i, o and g, one after the other.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.recurrent import LSTMForm
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.recurrent.common.cell_norm import NUMBERS, CellNorm, make_cell_norm
from numnorm.backends.cpu.simd.access import Access
from numnorm.backends.cpu.simd.activations import make_sigmoid, make_tanh
from numnorm.backends.cpu.simd.element_type import Storage
from numnorm.backends.cpu.simd.optional import stretch

# How many norms the gates have at most.
NORMS = 4


class GateNorm(NamedTuple):
    """Compiled functions of one row.

    Its products are `z`, with the state, and `xp`, with x; where the norm is taken of their sum,
    that is `z`, and `xp` is None.

    Attributes
    ----------
    guess : callable
        ``guess(z, xp, place)`` begins with the statistics, in a place.
    find : callable
        ``find(z, xp, scaling, saved, i, place)`` puts the statistics into that place.
        They are also saved if there is room for them: mean and rstd of z, mean and rstd of xp.
    found : callable
        ``found(place)``: those for each gate.
    again : callable
        ``again(saved, i)``: the same, as they were saved.
    gradient : callable
        ``gradient(dz, z, xp, saved, i, weights, flows, sums, results)``, from the gradients of
        what enters the gates to those of z and xp; the sums are those of both gammas.
    """

    guess: Callable[..., Any]
    find: Callable[..., Any]
    found: Callable[..., Any]
    again: Callable[..., Any]
    gradient: Callable[..., Any]


@functools.cache
def make_gate_norm(form: LSTMForm, storage: Storage) -> GateNorm:
    """Return how a form's gates are normalized."""
    norm = make_cell_norm(form.gates, storage)
    if form.by_product:
        return _by_product(norm)
    return _separate(norm) if form.separate else _none()


def _by_product(norm: CellNorm) -> GateNorm:
    @inlined
    def guess(z, xp, place):
        norm.guess(z, place, 0)
        norm.guess(xp, place, NUMBERS)

    @inlined
    def find(z, xp, scaling, saved, i, place):
        of_z = norm.guessed(z, scaling, place, 0)
        of_x = norm.guessed(xp, scaling, place, NUMBERS)
        if saved[0].size > 0:
            norm.save(of_z, saved[0], saved[1], i)
            norm.save(of_x, saved[2], saved[3], i)
        norm.put(of_z, place, 0)
        norm.put(of_x, place, NUMBERS)

    @inlined
    def found(place):
        both = norm.got(place, 0), norm.got(place, NUMBERS)
        return both, both, both, both

    @inlined
    def again(saved, i):
        both = norm.saved(saved[0], saved[1], i), norm.saved(saved[2], saved[3], i)
        return both, both, both, both

    @inlined
    def gradient(dz, z, xp, saved, i, weights, flows, sums, results):
        _, gamma_h, beta_h, gamma_x, beta_x = weights
        of_z, of_x = (sums[0], None), (sums[1], None)
        norm.gradient(dz, z, saved[0], saved[1], i, gamma_h, beta_h, flows, of_z, results[0])
        norm.gradient(dz, xp, saved[2], saved[3], i, gamma_x, beta_x, flows, of_x, results[1])

    return GateNorm(guess, find, found, again, gradient)


def _separate(norm: CellNorm) -> GateNorm:
    @inlined
    def guess(z, xp, place):
        width = z.size // 4
        for k in range(4):
            norm.guess(z[k * width : (k + 1) * width], place, k * NUMBERS)

    @inlined
    def find(z, xp, scaling, saved, i, place):
        width = z.size // 4
        for k in range(4):
            here = z[k * width : (k + 1) * width]
            of_gate = norm.guessed(here, scaling, place, k * NUMBERS)
            if saved[0].size > 0:
                norm.save(of_gate, saved[0], saved[1], 4 * i + k)
            norm.put(of_gate, place, k * NUMBERS)

    @inlined
    def found_one(place, k):
        return norm.got(place, k * NUMBERS), None

    @inlined
    def found(place):
        f, i = found_one(place, 0), found_one(place, 1)
        return f, i, found_one(place, 2), found_one(place, 3)

    @inlined
    def again_one(saved, i, k):
        return norm.saved(saved[0], saved[1], 4 * i + k), None

    @inlined
    def again(saved, i):
        f, i_ = again_one(saved, i, 0), again_one(saved, i, 1)
        return f, i_, again_one(saved, i, 2), again_one(saved, i, 3)

    @inlined
    def gradient(dz, z, xp, saved, i, weights, flows, sums, results):
        _, gamma, beta, _, _ = weights
        width = dz.size // 4
        for k in range(4):
            left, right = k * width, (k + 1) * width
            here = sums[0][left:right], None
            norm.gradient(
                dz[left:right], z[left:right], saved[0], saved[1], 4 * i + k,
                stretch(gamma, left, right), stretch(beta, left, right), flows, here,
                results[0][left:right],
            )  # fmt: skip

    return GateNorm(guess, find, found, again, gradient)


def _none() -> GateNorm:
    @inlined
    def guess(z, xp, place):
        pass

    @inlined
    def find(z, xp, scaling, saved, i, place):
        pass

    @inlined
    def found(place):
        none = None, None
        return none, none, none, none

    @inlined
    def again(saved, i):
        none = None, None
        return none, none, none, none

    @inlined
    def gradient(dz, z, xp, saved, i, weights, flows, sums, results):
        pass

    return GateNorm(guess, find, found, again, gradient)


def make_gates(form: LSTMForm, storage: Storage, access: Access) -> Callable[..., Any]:
    """Return a compiled ``gates(z, xp, weights, found, width, j, rest)`` of some units: f, i, o, g.

    The weights are ``offset, gamma_h, beta_h, gamma_x, beta_x``, and the statistics those of
    each gate.
    """
    value = _make_value(form, storage, access)
    sigmoid, tanh = make_sigmoid(storage.working), make_tanh(storage.working)

    @inlined
    def gates(z, xp, weights, found, width, j, rest):
        f = sigmoid(value(z, xp, weights, found[0], j, rest))
        i = sigmoid(value(z, xp, weights, found[1], j + width, rest))
        o = sigmoid(value(z, xp, weights, found[2], j + 2 * width, rest))
        g = tanh(value(z, xp, weights, found[3], j + 3 * width, rest))
        return f, i, o, g

    return gates


def _make_value(form: LSTMForm, storage: Storage, access: Access) -> Callable[..., Any]:
    """Return a compiled ``value(z, xp, weights, found, j, rest)``: what enters one gate."""
    read, term, _ = access
    apply, real = make_cell_norm(form.gates, storage).apply, storage.working

    @inlined
    def of_sum(z, xp, weights, found, j, rest):
        offset, gamma, beta, _, _ = weights
        gain, shift = term(gamma, j, rest, real(1)), term(beta, j, rest, real(0))
        return apply(read(z, j, rest), found[0], gain, shift) + read(offset, j, rest)

    @inlined
    def of_both(z, xp, weights, found, j, rest):
        _, _, _, gamma, beta = weights
        gain, shift = term(gamma, j, rest, real(1)), term(beta, j, rest, real(0))
        of_x = apply(read(xp, j, rest), found[1], gain, shift)
        return of_sum(z, xp, weights, found, j, rest) + of_x

    return of_both if form.by_product else of_sum
