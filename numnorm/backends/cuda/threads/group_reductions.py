"""Reductions over the threads of a team, which work on one row together.

A team has a power of two of threads: a part of a warp, a warp, or several warps. Every thread of
the team gets the result. The reduction is a tree of the threads, in the same order on any device.
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
def make_team_sum(element: ElementType, team: int) -> Any:
    """Return a device function ``team_sum(value, smem)``: the sum of a value over the team.

    For a team that is wider than a warp, `smem` is shared memory with one number for each warp of
    the block. No other sum may use it before the next barrier.
    """
    return _make_fold(element, team, _sum)


@functools.cache
def make_team_two_sums(element: ElementType, team: int) -> Any:
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
    warps, zero = team // WARP, constant(element, 0.0)

    @device
    def of_wide_team(a, b, smem):
        thread = cuda.threadIdx.x
        warp, lane = thread // WARP, thread % WARP
        a, b = in_warp(a), in_warp(b)
        if lane == 0:
            smem[warp] = a
            smem[warps + warp] = b
        cuda.syncthreads()
        a = smem[lane] if lane < warps else zero
        b = smem[warps + lane] if lane < warps else zero
        return in_warp(a), in_warp(b)

    return of_wide_team


@functools.cache
def make_team_sums(element: ElementType, team: int, count: int) -> Any:
    """Return a device function ``team_sums(values, smem)`` of `count` sums with one barrier.

    It replaces each number in the array `values` by the sum over the team. For a team that is
    wider than a warp, the team is the block, and `smem` is shared memory with `count` numbers for
    each warp.
    """
    return _make_folds(element, team, count, _sum)


@functools.cache
def make_team_largest_of(element: ElementType, team: int, count: int) -> Any:
    """Return a device function ``largest_of(values, smem)``, like `make_team_sums` for maxima.

    It replaces each number by its maximum over the team. The numbers must not be negative.
    """
    return _make_folds(element, team, count, _larger)


@functools.cache
def make_team_largest(element: ElementType, team: int) -> Any:
    """Return a device function ``team_largest(value, smem)``, like `make_team_sum` for the maximum.

    It ignores NaN and negative values.
    """
    return _make_fold(element, team, _larger)


def _make_fold(element: ElementType, team: int, fold: Callable[..., Any]) -> Any:
    in_warp = _make_fold_in_warp(min(team, WARP), device(fold))
    if team <= WARP:

        @device
        def of_narrow_team(value, smem):
            return in_warp(value)

        return of_narrow_team
    warps, none = team // WARP, constant(element, 0.0)
    in_whole_warp = _make_fold_in_warp(WARP, device(fold))

    @device
    def of_wide_team(value, smem):
        thread = cuda.threadIdx.x
        warp, lane = thread // WARP, thread % WARP
        value = in_warp(value)
        if lane == 0:
            smem[warp] = value
        cuda.syncthreads()
        first = warp // warps * warps
        return in_whole_warp(smem[first + lane] if lane < warps else none)

    return of_wide_team


def _make_folds(element: ElementType, team: int, count: int, fold: Callable[..., Any]) -> Any:
    in_warp = _make_fold_in_warp(min(team, WARP), device(fold))
    if team <= WARP:

        @device
        def of_narrow_team(values, smem):
            for k in range(count):
                values[k] = in_warp(values[k])

        return of_narrow_team
    warps, none = team // WARP, constant(element, 0.0)

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
            values[k] = in_warp(smem[k * warps + lane] if lane < warps else none)

    return of_wide_team


def _make_fold_in_warp(team: int, fold: Any) -> Any:
    steps = team.bit_length() - 1

    @device
    def fold_in_warp(value):
        for step in range(steps):
            value = fold(value, cuda.shfl_xor_sync(_ALL, value, team >> (step + 1)))
        return value

    return fold_in_warp
