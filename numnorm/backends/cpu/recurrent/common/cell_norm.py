"""A norm inside a recurrent cell: the statistics of one row, and what they make of its elements."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.norms import Formula, Norm
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.rows.segment_loops import make_gradient_sums, make_input_gradients
from numnorm.backends.cpu.simd.element_type import Storage
from numnorm.backends.cpu.statistics.normalize import location, make_normalized
from numnorm.backends.cpu.statistics.row_normalizer import (
    make_near,
    make_spread,
    make_spread_around,
)
from numnorm.backends.cpu.statistics.saved import make_means, make_saved_statistics

# How many numbers of the working type the statistics of a row are.
NUMBERS = 4


class CellNorm(NamedTuple):
    """Compiled functions of one row.

    Attributes
    ----------
    statistics : callable
        ``statistics(row, scaling)``
    guess : callable
        ``guess(row, place, at)`` begins with those of a row, where they are put.
    guessed : callable
        ``guessed(row, scaling, place, at)``: the statistics of a row begun with.
    save : callable
        ``save(statistics, mean, rstd, i)`` stores them as the backward pass reads them.
    saved : callable
        ``saved(mean, rstd, i)``: the statistics again.
    put, got : callable
        ``put(statistics, place, at)`` and ``got(place, at)``: the statistics as `NUMBERS` of the
        working type, for a while.
    apply : callable
        ``apply(x, statistics, gamma, beta)`` of elements.
    gradient : callable
        ``gradient(dy, x, mean, rstd, i, gamma, beta, flows, sums, dx)`` of a row; what gamma
        and beta get of it is added to the sums.
    """

    statistics: Callable[..., Any]
    guess: Callable[..., Any]
    guessed: Callable[..., Any]
    save: Callable[..., Any]
    saved: Callable[..., Any]
    put: Callable[..., Any]
    got: Callable[..., Any]
    apply: Callable[..., Any]
    gradient: Callable[..., Any]


@functools.cache
def make_cell_norm(norm: Norm | None, storage: Storage) -> CellNorm:
    """Return the functions of a norm, or of none."""
    if norm is None:
        return _identity()
    return _norm(norm.formula, storage, summed=norm.parameters > 0)


class _Places(NamedTuple):
    """Compiled functions of the statistics of a row and of where they are put for a while."""

    guess: Callable[..., Any]
    guessed: Callable[..., Any]
    put: Callable[..., Any]
    got: Callable[..., Any]


def _places(formula: Formula, storage: Storage) -> _Places:
    near, around = make_near(formula, storage), make_spread_around(formula, storage)

    def guess_centred(row, place, at):
        place[at + 1] = near(row)

    def guess_uncentred(row, place, at):
        pass

    def put_centred(found, place, at):
        scale, high, low, rstd = found
        place[at], place[at + 1], place[at + 2], place[at + 3] = scale, high, low, rstd

    def put_uncentred(found, place, at):
        place[at], place[at + 3] = found[0], found[3]

    def got_centred(place, at):
        return place[at], place[at + 1], place[at + 2], place[at + 3]

    def got_uncentred(place, at):
        return place[at], None, None, place[at + 3]

    centred = guess_centred, put_centred, got_centred
    uncentred = guess_uncentred, put_uncentred, got_uncentred
    guess, put, got = map(inlined, centred if formula.centred else uncentred)

    @inlined
    def guessed(row, scaling, place, at):
        scale, high, low, rstd = around(row, scaling, got(place, at)[1])
        return scale, high, low, np.float64(rstd)

    return _Places(guess, guessed, put, got)


def _norm(formula: Formula, storage: Storage, *, summed: bool) -> CellNorm:
    real, spread, places = storage.working, make_spread(formula, storage), _places(formula, storage)
    forward, normalized = inlined(formula.forward), make_normalized(formula.centred)
    statistics_of, means_of = make_saved_statistics(storage), make_means(storage)
    gradient_sums = make_gradient_sums(formula, storage)
    input_gradients = make_input_gradients(formula, storage)

    @inlined
    def statistics(row, scaling):
        scale, high, low, rstd = spread(row, scaling)
        return scale, high, low, np.float64(rstd)

    @inlined
    def save(found, mean, rstd, i):
        scale, high, low, inverse = found
        mean[i] = location(high, low, inverse) / scale
        rstd[i] = inverse * scale

    @inlined
    def apply(x, found, gamma, beta):
        scale, high, low, rstd = found
        return forward(normalized(x, scale, high, low, real(rstd)), gamma, beta)

    def centred_mean(mean, i):
        return mean[i]

    def no_mean(mean, i):
        return None

    mean_of = inlined(centred_mean if formula.centred else no_mean)

    @inlined
    def saved(mean, rstd, i):
        return statistics_of(mean_of(mean, i), rstd[i])

    targets_of = inlined((lambda sums: sums) if summed else (lambda sums: (None, None)))

    @inlined
    def gradient(dy, x, mean, rstd, i, gamma, beta, flows, sums, dx):
        found, weights = saved(mean, rstd, i), (gamma, beta)
        sum_g, sum_g_xhat, _, _ = gradient_sums(dy, x, 0, 0, found, weights, targets_of(sums))
        input_gradients(dy, x, 0, found, weights, means_of(sum_g, sum_g_xhat, rstd[i], flows), dx)

    return CellNorm(
        statistics, places.guess, places.guessed, save, saved, places.put, places.got, apply,
        gradient,
    )  # fmt: skip


def _identity() -> CellNorm:
    @inlined
    def statistics(row, scaling):
        return None

    @inlined
    def guess(row, place, at):
        pass

    @inlined
    def guessed(row, scaling, place, at):
        return None

    @inlined
    def save(found, mean, rstd, i):
        pass

    @inlined
    def saved(mean, rstd, i):
        return None

    @inlined
    def put(found, place, at):
        pass

    @inlined
    def got(place, at):
        return None

    @inlined
    def apply(x, found, gamma, beta):
        return x

    @inlined
    def gradient(dy, x, mean, rstd, i, gamma, beta, flows, sums, dx):
        for j in range(dy.size):
            dx[j] = dy[j]

    return CellNorm(statistics, guess, guessed, save, saved, put, got, apply, gradient)
