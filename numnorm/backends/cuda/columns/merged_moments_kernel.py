"""The kernel that merges the moments of the parts of each channel."""

from typing import Any

from numnorm.backends.cuda.columns.column_shape import ColumnShape
from numnorm.backends.cuda.compiler.element_type import FLOAT64
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
)
from numnorm.backends.formulas.norms import merge_moments

# A thread loads the moments of this many parts before it merges the first of them.
_AHEAD = 4


def _make_merge_parts() -> Any:
    """Return a device function ``merge_parts(parts, first, last, channels, channel, before)``.

    It merges `before`, a count and ``mean, mean_lo, m2``, with the moments of the parts from
    `first` to `last`, one after the other, and returns the same two. `parts` are the addresses
    ``counts, moments``.
    """
    load, merge, zero = make_load_one(FLOAT64), device(merge_moments), constant(FLOAT64, 0.0)
    one, kind = constant(FLOAT64, 1.0), FLOAT64.compute_type

    @device
    def merge_parts(parts, first, last, channels, channel, before):
        counts, moments = parts
        other_counts = cuda.local.array(_AHEAD, kind)
        other_means = cuda.local.array(_AHEAD, kind)
        other_lows = cuda.local.array(_AHEAD, kind)
        other_m2s = cuda.local.array(_AHEAD, kind)
        count, merged = before
        for start in range(first, last, _AHEAD):
            for u in range(_AHEAD):
                part = min(start + u, last - 1)
                here = part * 3 * channels + channel
                other_counts[u], other_means[u] = load(counts, part), load(moments, here)
                other_lows[u] = load(moments, here + channels)
                other_m2s[u] = load(moments, here + 2 * channels)
            for u in range(_AHEAD):
                if start + u < last:
                    other = other_means[u], other_lows[u], other_m2s[u]
                    if count > zero:
                        other = merge(count, merged, other_counts[u], other, one)
                    merged = other
                    count += other_counts[u]
        return count, merged

    return merge_parts


def _make_fold(shape: ColumnShape) -> Any:
    """Return a device function ``fold(counts, means, lows, m2s)``, which merges all teams.

    The shared arrays have a number for each thread. The result replaces the first team's numbers.
    """
    lanes, teams, levels = shape.lanes, shape.teams, shape.teams.bit_length() - 1
    merge, one = device(merge_moments), constant(FLOAT64, 1.0)

    @device
    def fold(counts, means, lows, m2s):
        here = cuda.threadIdx.x
        for level in range(levels):
            step = teams >> (level + 1)
            cuda.syncthreads()
            if here // lanes < step:
                there = here + step * lanes
                # Teams get parts in turn: only the last teams can have none.
                if counts[there] > 0:
                    means[here], lows[here], m2s[here] = merge(
                        counts[here], (means[here], lows[here], m2s[here]),
                        counts[there], (means[there], lows[there], m2s[there]), one,
                    )  # fmt: skip
                    counts[here] += counts[there]

    return fold


def make_merged_moments(shape: ColumnShape) -> Kernel:
    """Return the kernel that merges the moments of all parts in a fixed order.

    It takes the addresses ``counts, moments`` of the parts; ``mean, m2, mean_lo`` of earlier
    values, and ``merged_mean, merged_m2, merged_lo``, all of float64; ``parts, channels``; and the
    number ``before``, the count of the earlier values, which may be 0. Each lane has one channel.
    Each team merges neighbouring parts one after the other; the first team begins with the earlier
    moments. Then the teams are merged.
    """
    lanes, teams, threads, kind = shape.lanes, shape.teams, shape.threads, FLOAT64.compute_type
    load, store = make_load_one(FLOAT64), make_store_one(FLOAT64)
    fold, merge_parts = _make_fold(shape), _make_merge_parts()
    zero = constant(FLOAT64, 0.0)

    def kernel(
        counts, moments, mean, m2, mean_lo, merged_mean, merged_m2, merged_lo,
        parts, channels, before,
    ):  # fmt: skip
        counts_here = cuda.shared.array(threads, kind)
        means_here = cuda.shared.array(threads, kind)
        lows_here = cuda.shared.array(threads, kind)
        m2s_here = cuda.shared.array(threads, kind)
        thread = cuda.threadIdx.x
        channel, parts_each = cuda.blockIdx.x * lanes + thread % lanes, (parts + teams - 1) // teams
        active = channel < channels
        first = thread // lanes * parts_each
        last = min(first + parts_each, parts) if active else first
        count, earlier = zero, (zero, zero, zero)
        if active and thread < lanes and before > zero:
            count = before
            earlier = load(mean, channel), load(mean_lo, channel), load(m2, channel)
        counts_here[thread], merged = merge_parts(
            (counts, moments), first, last, channels, channel, (count, earlier)
        )
        means_here[thread], lows_here[thread], m2s_here[thread] = merged
        fold(counts_here, means_here, lows_here, m2s_here)
        if thread < lanes and active:
            store(merged_mean, channel, means_here[thread])
            store(merged_lo, channel, lows_here[thread])
            store(merged_m2, channel, m2s_here[thread])

    return Kernel(kernel, ("address",) * 8 + ("index",) * 2 + ("float64",), threads)
