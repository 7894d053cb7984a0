"""Row ranges of the recurrent kernels, prefetching and group sums.

A step's rows are the first rows of the previous step. Backward kernels sum the parameters'
gradients for groups of batch rows.
"""

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.simd.vector import prefetch_l1
from numnorm.backends.cpu.statistics.accumulators import flush


@inlined
def rows_of_step(batch_sizes, s, left, right):
    """Return how many batch rows from `left` to `right` step `s` has; negative if none."""
    return min(batch_sizes[s], right) - left


@inlined
def before_step(offsets, s, batch):
    """Return the index of the first state before step `s`; the initial states come first."""
    return batch + offsets[s - 1] if s > 0 else 0


@inlined
def rows_of_groups(first, last, groups, parts, group, batch):
    """Return the range of batch rows of the parts from `first` to `last`, made of whole groups."""
    return first * groups // parts * group, min(last * groups // parts * group, batch)


@inlined
def to_next(offsets, begin, s, r, rows):
    """Return the distance from row `r` of step `s` to the next row of a backward pass.

    It is 0 at the end.
    """
    before = offsets[s - 1] - offsets[s] - r if s > begin else 0
    return 1 if r + 1 < rows else before


@inlined
def prefetch_row(row, distance, sections, j):
    """Prefetch the j-th element of each section of the row `distance` rows after this one.

    Hardware prefetchers do not predict the row order of a backward pass.
    """
    section = row.size // sections
    for k in range(sections):
        prefetch_l1(row, distance * row.size + k * section + j)


@inlined
def flush_groups(sums, totals, left, right, group):
    """Add the sums of these rows' groups to their totals and reset them to 0."""
    for g in range(left // group, -(-right // group)):
        flush(sums[g], totals[g])
