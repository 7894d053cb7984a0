"""The kernel that merges the moments of the parts of each channel."""

from typing import Any

from numnorm.backends.cuda.columns.block_reductions import make_fold_moments
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

    It merges ``count, mean, m2`` in `before` with the moments of the parts from `first` to `last`,
    one after the other, and returns the same three. `parts` are the addresses ``counts, means,
    m2s``.
    """
    load, merge, zero = make_load_one(FLOAT64), device(merge_moments), constant(FLOAT64, 0.0)
    kind = FLOAT64.compute_type

    @device
    def merge_parts(parts, first, last, channels, channel, before):
        counts, means, m2s = parts
        other_counts = cuda.local.array(_AHEAD, kind)
        other_means = cuda.local.array(_AHEAD, kind)
        other_m2s = cuda.local.array(_AHEAD, kind)
        count, mean, m2 = before
        for start in range(first, last, _AHEAD):
            for u in range(_AHEAD):
                part = min(start + u, last - 1)
                here = part * channels + channel
                other_counts[u], other_means[u] = load(counts, part), load(means, here)
                other_m2s[u] = load(m2s, here)
            for u in range(_AHEAD):
                if start + u < last:
                    if count > zero:
                        mean, m2 = merge(
                            count, mean, m2, other_counts[u], other_means[u], other_m2s[u]
                        )
                    else:
                        mean, m2 = other_means[u], other_m2s[u]
                    count += other_counts[u]
        return count, mean, m2

    return merge_parts


def make_merged_moments(shape: ColumnShape) -> Kernel:
    """Return the kernel that merges the moments of all parts in a fixed order.

    It takes the addresses ``counts, means, m2s`` of the moments of the parts, ``mean, m2`` of
    earlier values, and ``merged_mean, merged_m2``, all of float64; ``parts, channels``; and the
    number ``before``, the count of the earlier values, which may be 0. Each lane has one channel.
    Each team merges neighbouring parts one after the other; the first team begins with the earlier
    moments. Then the teams are merged.
    """
    lanes, teams, threads, kind = shape.lanes, shape.teams, shape.threads, FLOAT64.compute_type
    load, store = make_load_one(FLOAT64), make_store_one(FLOAT64)
    fold, merge_parts = make_fold_moments(shape, 1), _make_merge_parts()
    zero = constant(FLOAT64, 0.0)

    def kernel(
        counts, means, m2s, mean, m2, merged_mean, merged_m2, parts, channels, before
    ):  # fmt: skip
        counts_here = cuda.shared.array(threads, kind)
        means_here = cuda.shared.array(threads, kind)
        m2s_here = cuda.shared.array(threads, kind)
        thread = cuda.threadIdx.x
        channel, parts_each = cuda.blockIdx.x * lanes + thread % lanes, (parts + teams - 1) // teams
        active = channel < channels
        first = thread // lanes * parts_each
        last = min(first + parts_each, parts) if active else first
        count, centre, squares = zero, zero, zero
        if active and thread < lanes and before > zero:
            count, centre, squares = before, load(mean, channel), load(m2, channel)
        counts_here[thread], means_here[thread], m2s_here[thread] = merge_parts(
            (counts, means, m2s), first, last, channels, channel, (count, centre, squares)
        )
        fold(counts_here, means_here, m2s_here)
        if thread < lanes and active:
            store(merged_mean, channel, means_here[thread])
            store(merged_m2, channel, m2s_here[thread])

    return Kernel(kernel, ("address",) * 7 + ("index",) * 2 + ("float64",), threads)
