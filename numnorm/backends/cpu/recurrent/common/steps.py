"""Which rows a kernel of recurrent steps takes: those of a step are the first of the one before.

In the backward passes, what the parameters get is summed up for groups of rows of the batch.
"""

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.simd.vector import prefetch_l1
from numnorm.backends.cpu.statistics.accumulators import flush


@inlined
def rows_of_step(batch_sizes, s, left, right):
    """Return how many of the batch's rows from left to right a step has, or less than 0."""
    return min(batch_sizes[s], right) - left


@inlined
def before_step(offsets, s, batch):
    """Return where the states before a step begin: those given come first."""
    return batch + offsets[s - 1] if s > 0 else 0


@inlined
def rows_of_groups(first, last, groups, parts, group, batch):
    """Return between which rows of the batch the groups of some of all parts lie."""
    return first * groups // parts * group, min(last * groups // parts * group, batch)


@inlined
def to_next(offsets, begin, s, r, rows):
    """Return how many rows after the r-th of a step the one lies that a backward pass takes next.

    That is 0 after the last of all.
    """
    before = offsets[s - 1] - offsets[s] - r if s > begin else 0
    return 1 if r + 1 < rows else before


@inlined
def prefetch_row(row, distance, sections, j):
    """Ask for the j-th element of each section of the row `distance` rows on in the same table.

    The processor does not guess which rows are next where steps are taken backward.
    """
    section = row.size // sections
    for k in range(sections):
        prefetch_l1(row, distance * row.size + k * section + j)


@inlined
def flush_groups(sums, totals, left, right, group):
    """Add the sums of these rows to their totals, and begin again."""
    for g in range(left // group, -(-right // group)):
        flush(sums[g], totals[g])
