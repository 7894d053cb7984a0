"""Parts of the passes of all cells: row ranges, loops over the units of a row, zoneout, dropout.

A step's rows are the first rows of the previous step. Backward kernels sum the parameters'
gradients for groups of batch rows.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.simd.access import VectorAccess, full_access, tail_access
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.vector import prefetch_l1
from numnorm.backends.cpu.statistics.accumulators import flush
from numnorm.backends.formulas.cells import zoneout_blend, zoneout_gradient

# Row ranges, prefetching and group sums


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


# Vectorized loops over the units of a row


def make_unit_loop(
    make: Callable[[Any, ElementType, VectorAccess], Any], spec: Any, element_type: ElementType
) -> Callable[..., None]:
    """Return a compiled ``loop(width, arguments)`` over all units of a row.

    For each vector of units from the j-th on, it calls ``function(*arguments, j, tail)`` with the
    number of its units. ``make(spec, element_type, access)`` returns that function.
    """
    count = element_type.lanes
    full = make(spec, element_type, full_access(count))
    last = make(spec, element_type, tail_access(count))

    @inlined
    def loop(width, arguments):
        whole = width - width % count
        for j in range(0, whole, count):
            full(*arguments, j, count)
        if whole < width:
            last(*arguments, whole, width - whole)

    return loop


def make_write_summed(access: VectorAccess) -> Callable[..., None]:
    """Return a compiled ``write(array, sums, j, value, tail)`` that also adds to the sums."""
    read, _, write = access

    @inlined
    def write_summed(array, sums, j, value, tail):
        write(array, j, value, tail)
        write(sums, j, read(sums, j, tail) + value, tail)

    return write_summed


@inlined
def no_second_half(z, xp, saved, parameters, scalings, masks, scratch, index):
    """Do nothing: the first half did all."""


# Zoneout: blend the new state with the previous one (Krueger et al. 2017)


class Zoneout(NamedTuple):
    """Compiled functions of a vector of units; `mask` is None without zoneout.

    Attributes
    ----------
    blend : callable
        ``blend(new, before, mask, j, tail)``: the blend of the values `new` and an array.
    gradient : callable
        ``gradient(dy, mask, j, tail)``: the gradients of `new` and of `before`, the latter None
        without zoneout.
    """

    blend: Callable[..., Any]
    gradient: Callable[..., Any]


def make_zoneout(zoneout: bool, access: VectorAccess) -> Zoneout:
    """Return the functions of zoneout; without it, `blend` returns `new`."""
    if not zoneout:
        return Zoneout(
            inlined(lambda new, before, mask, j, tail: new),
            inlined(lambda dy, mask, j, tail: (dy, None)),
        )
    read, blend_values, gradient_of = access.read, inlined(zoneout_blend), inlined(zoneout_gradient)

    @inlined
    def blend(new, before, mask, j, tail):
        return blend_values(new, read(before, j, tail), read(mask, j, tail))

    @inlined
    def gradient(dy, mask, j, tail):
        return gradient_of(dy, read(mask, j, tail))

    return Zoneout(blend, gradient)


# Dropout of the state in its product with the weights, one mask for all steps (Gal 2016)


def make_operand(dropout: bool) -> Callable[..., Any]:
    """Return a compiled ``operand(saved)``: the states that are multiplied by the weights."""
    return inlined((lambda saved: saved.dropped) if dropout else (lambda saved: saved.state))


def _make_drop(
    accumulate: bool, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    read, _, write = access

    @inlined
    def drop(values, mask, result, j, tail):
        value = read(values, j, tail) * read(mask, j, tail)
        write(result, j, read(result, j, tail) + value if accumulate else value, tail)

    return drop


def make_drop(element_type: ElementType, *, accumulate: bool = False) -> Callable[..., None]:
    """Return a compiled ``drop(values, masks, results, at, left, rows)``.

    It multiplies rows from `at` on by the masks of the batch rows from `left` on, and stores them
    as the same rows of the results. With `accumulate` it adds to these.
    """
    of_row = make_unit_loop(_make_drop, accumulate, element_type)

    @inlined
    def drop(values, masks, results, at, left, rows):
        for r in range(rows):
            row = values[at + r], masks[left + r], results[at + r]
            of_row(masks.shape[1], row)

    return drop
