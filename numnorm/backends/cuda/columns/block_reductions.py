"""Reductions over the teams of a block in shared memory. All teams have the same channels.

Each thread has a number for each of its channels; the numbers of neighbouring threads are
neighbours. The reduction is a tree of the teams, the same on any device. Its result is in the
elements of the first team.
"""

import functools
from typing import Any

from numnorm.backends.cuda.columns.column_shape import ColumnShape
from numnorm.backends.cuda.compiler.target import cuda, device
from numnorm.backends.formulas.norms import merge_centred_moments


@functools.cache
def make_fold_sums(shape: ColumnShape, slots: int) -> Any:
    """Return a device function ``fold(first, second)``, which adds over the teams of a block.

    `first` and `second` are shared arrays of sums, each with `slots` numbers for each thread. The
    total of each channel replaces the first team's number in the same array.
    """
    lanes, teams, levels = shape.lanes, shape.teams, shape.teams.bit_length() - 1
    threads = shape.threads

    @device
    def fold(first, second):
        thread = cuda.threadIdx.x
        for level in range(levels):
            step = teams >> (level + 1)
            cuda.syncthreads()
            if thread // lanes < step:
                for j in range(slots):
                    here = j * threads + thread
                    first[here] += first[here + step * lanes]
                    second[here] += second[here + step * lanes]

    return fold


@functools.cache
def make_fold_moments(shape: ColumnShape, slots: int) -> Any:
    """Return a device function ``fold(counts, means, m2s)``, which merges the moments of all teams.

    The shared float64 arrays have one count for each thread, the same for all of its channels, and
    `slots` means and m2s; the means are distances from a point near them, the same for all teams.
    The merged moments of each channel replace the moments of the first team. If a thread's count is
    0, its mean is not read.
    """
    lanes, teams, levels = shape.lanes, shape.teams, shape.teams.bit_length() - 1
    threads, merge = shape.threads, device(merge_centred_moments)

    @device
    def fold(counts, means, m2s):
        thread = cuda.threadIdx.x
        for level in range(levels):
            step = teams >> (level + 1)
            cuda.syncthreads()
            if thread // lanes < step:
                count, others = counts[thread], counts[thread + step * lanes]
                # Teams get rows in turn: only the last teams can have none.
                if others > 0:
                    for j in range(slots):
                        here = j * threads + thread
                        other = here + step * lanes
                        means[here], m2s[here] = merge(
                            count, means[here], m2s[here], others, means[other], m2s[other]
                        )
                    counts[thread] = count + others

    return fold
