"""Reductions over the threads of a team, and compensated sums.

A team works on one row together. It has a power of two of threads: a part of a warp, a warp, or
several warps. Every thread of the team gets the result. The reduction is a tree of the threads, in
the same order on any device.

In a compensated sum, a second sum collects what rounding loses of the first. The pair replaces a
float64 sum, which many devices compute slowly.
"""

import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import constant, cuda, device

WARP = 32
_ALL = 0xFFFFFFFF

# Makes a device function ``sums(values, smem)``, which sums each of `count` numbers over a row.
SumsOf = Callable[[int], Any]


def _sum(a, b):
    return a + b


def _larger(a, b):
    return b if a < b else a


@functools.cache
def make_team_sum(team: int) -> Any:
    """Return a device function ``team_sum(value, smem)``: the sum of a value over the team.

    For a team that is wider than a warp, `smem` is shared memory with one number for each warp of
    the block. No other sum may use it before the next barrier.
    """
    return _make_fold(team, _sum)


@functools.cache
def make_team_two_sums(team: int) -> Any:
    """Return a device function ``team_two_sums(a, b, smem)``: both sums over the team, one barrier.

    For a team that is wider than a warp, the team is the block, and `smem` is shared memory with
    two numbers for each warp.
    """
    in_warp = _make_fold_in_warp(min(team, WARP), device(_sum))
    if team <= WARP:

        @device
        def of_narrow_team(a, b, smem):
            return in_warp(a), in_warp(b)

        return of_narrow_team
    warps = team // WARP
    of_warps = _make_fold_in_warp(warps, device(_sum))

    @device
    def of_wide_team(a, b, smem):
        thread = cuda.threadIdx.x
        warp, lane = thread // WARP, thread % WARP
        a, b = in_warp(a), in_warp(b)
        if lane == 0:
            smem[warp] = a
            smem[warps + warp] = b
        cuda.syncthreads()
        return of_warps(smem[lane % warps]), of_warps(smem[warps + lane % warps])

    return of_wide_team


@functools.cache
def make_team_sums(team: int, count: int) -> Any:
    """Return a device function ``team_sums(values, smem)`` of `count` sums with one barrier.

    It replaces each number in the array `values` by the sum over the team. For a team that is
    wider than a warp, the team is the block, and `smem` is shared memory with `count` numbers for
    each warp.
    """
    return _make_folds(team, count, _sum)


@functools.cache
def make_team_largest_of(team: int, count: int) -> Any:
    """Return a device function ``largest_of(values, smem)``, like `make_team_sums` for maxima.

    It replaces each number by its maximum over the team. The numbers must not be negative.
    """
    return _make_folds(team, count, _larger)


@functools.cache
def make_team_largest(team: int) -> Any:
    """Return a device function ``team_largest(value, smem)``, like `make_team_sum` for the maximum.

    It ignores NaN and negative values.
    """
    return _make_fold(team, _larger)


@functools.cache
def make_any(element: ElementType, team: int) -> Any:
    """Return a device function ``any_of(flag)``: whether any team of the warp has set its flag.

    All teams of a warp take a branch together, because the shuffles of a sum need all threads. The
    threads of a wider team have the same flag already.
    """
    if team >= WARP:
        return device(lambda flag: flag)
    largest_of = make_team_largest(WARP)
    zero, one = constant(element, 0.0), constant(element, 1.0)
    return device(lambda flag: largest_of(one if flag else zero, None) > zero)


def _make_fold(team: int, fold: Callable[..., Any]) -> Any:
    in_warp = _make_fold_in_warp(min(team, WARP), device(fold))
    if team <= WARP:

        @device
        def of_narrow_team(value, smem):
            return in_warp(value)

        return of_narrow_team
    warps = team // WARP
    of_warps = _make_fold_in_warp(warps, device(fold))

    @device
    def of_wide_team(value, smem):
        thread = cuda.threadIdx.x
        warp, lane = thread // WARP, thread % WARP
        value = in_warp(value)
        if lane == 0:
            smem[warp] = value
        cuda.syncthreads()
        return of_warps(smem[warp // warps * warps + lane % warps])

    return of_wide_team


def _make_folds(team: int, count: int, fold: Callable[..., Any]) -> Any:
    in_warp = _make_fold_in_warp(min(team, WARP), device(fold))
    if team <= WARP:

        @device
        def of_narrow_team(values, smem):
            for k in range(count):
                values[k] = in_warp(values[k])

        return of_narrow_team
    warps = team // WARP
    of_warps = _make_fold_in_warp(warps, device(fold))

    @device
    def of_wide_team(values, smem):
        thread = cuda.threadIdx.x
        warp, lane = thread // WARP, thread % WARP
        for k in range(count):
            value = in_warp(values[k])
            if lane == 0:
                smem[k * warps + warp] = value
        cuda.syncthreads()
        for k in range(count):
            values[k] = of_warps(smem[k * warps + lane % warps])

    return of_wide_team


def _make_fold_in_warp(team: int, fold: Any) -> Any:
    steps = team.bit_length() - 1

    @device
    def fold_in_warp(value):
        for step in range(steps):
            value = fold(value, cuda.shfl_xor_sync(_ALL, value, team >> (step + 1)))
        return value

    return fold_in_warp


# Compensated sums


@device
def two_sum(a: Any, b: Any) -> Any:
    """Return the sum and what rounding it lost (Knuth 1969)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


@functools.cache
def make_add_each(count: int) -> Any:
    """Return a device function ``add_each(values, hi, lo)``.

    It adds `count` values to as many sums in `hi`, and what rounding lost to `lo`.
    """

    @device
    def add_each(values, hi, lo):
        for k in range(count):
            hi[k], lost = two_sum(hi[k], values[k])
            lo[k] += lost

    return add_each


@functools.cache
def make_joined(element: ElementType, of: ElementType) -> Any:
    """Return a device function ``joined(hi, lo)`` of a sum in the compute type of `of`.

    The lost part of an infinite sum is NaN: the sum stays infinite.
    """
    wide = element.compute_type if element.compute_name == "float64" else of.compute_type
    narrow = of.compute_type
    zero = constant(element, 0.0)

    @device
    def joined(hi, lo):
        return narrow(wide(hi) + wide(lo if lo == lo else zero))

    return joined
