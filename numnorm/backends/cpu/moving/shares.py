"""The share of a step in its exponential statistics: one for all channels, or one for each."""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.borrowed import window
from numnorm.backends.cpu.moving.lanes import LANES, LaneAccess
from numnorm.backends.cpu.simd.functions import reciprocal, where_at_most
from numnorm.backends.cpu.simd.vector import make_zeros

LEAST_SHARE = 5e-324  # of a step that counts
# From a share above this, 1 - share would lose digits. It is kept beside the share.
MOST = 0.75
_MORE = float(np.nextafter(MOST, 1.0))


@inlined
def chosen(share, one, other):
    """Return the lane of `one` where the share is at most `MOST`, else the lane of `other`."""
    return where_at_most(one, share, MOST) + where_at_most(other, _MORE, share)


@inlined
def halves(shares):
    """Return the shares, and what they leave of 1, which lie one behind the other."""
    size = shares.size // 2
    return window(shares, 0, size), window(shares, size, size)


def make_share_of(access: LaneAccess, missing: bool) -> Callable[..., Any]:
    """Return a compiled ``share_of(shares, starts, t, offset)``: the share of step t, and the rest.

    ``shares`` are the two arrays of `halves`.
    """
    read = access.read_statistic

    @inlined
    def of_all(shares, starts, t, offset):
        return shares[0][t], shares[1][t]

    @inlined
    def of_each(shares, starts, t, offset):
        return read(shares[0], starts, offset), read(shares[1], starts, offset)

    return of_each if missing else of_all


def make_shared_counts(access: LaneAccess, missing: bool) -> Callable[..., Any]:
    """Return a compiled ``inverse_count(shares, starts, stride, count)``.

    It returns the reciprocal of the number of first steps that count, which is infinite for none.
    """
    read, zeros = access.read_statistic, make_zeros(np.float64, LANES)

    @inlined
    def of_all(shares, starts, stride, count):
        return 1.0 / count

    @inlined
    def of_each(shares, starts, stride, count):
        counted = zeros()
        for t in range(count):
            share = read(shares[0], starts, t * stride)
            counted = counted + where_at_most(zeros() + 1.0, LEAST_SHARE, share)
        return reciprocal(counted)

    return of_each if missing else of_all
