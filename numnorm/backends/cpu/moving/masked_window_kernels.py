"""The kernels of moving windows in which steps are missing.

They add as the kernels of full windows do, but the step at an anchor may be missing. So the steps
before an anchor and those from it on have a pivot each, the one that is nearest to the anchor, and
with a count of each the sums before it are moved to the other pivot.

The kernel along one channel at a time is to that of adjacent channels what `sequence_kernel` is to
`window_kernels`: the same operations, of which the sums go from step to step.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.memory.kernel_arrays import make_aligned_zeros, make_scratch, release
from numnorm.backends.cpu.moving.lanes import LANES, LaneAccess, lane_access, make_locate
from numnorm.backends.cpu.moving.missing_steps import HALF, MASK
from numnorm.backends.cpu.moving.sequence_kernel import STRETCH, make_copied, make_put
from numnorm.backends.cpu.moving.window_kernels import make_outputs, make_statistics, unpacked
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.functions import reciprocal, where_at_most
from numnorm.backends.cpu.simd.vector import load_scalar, make_load, make_zeros, multiply_add, store
from numnorm.backends.formulas.moving import moved_sums

# Adjacent channels


def _make_added(access: LaneAccess, read_mask: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled ``added(x, keep, starts, offset, centred, pivot, sums)``.

    It returns the pivot, which is the first value that is kept, and the sums with one more step.
    """
    read = access.read

    @inlined
    def added(x, keep, starts, offset, centred, pivot, sums):
        first, second, count = sums
        held = read_mask(keep, starts, offset)
        value = where_at_most(read(x, starts, offset), HALF, held)
        pivot = where_at_most(pivot, HALF, count) + where_at_most(value * centred, count, 0.0)
        deviation = where_at_most(value - pivot, HALF, held)
        second = multiply_add(deviation, deviation, second)
        return pivot, (first + deviation, second, count + held)

    return added


def _make_suffix_sums(added: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled ``suffix_sums(x, keep, starts, stride, count, centred, table)``.

    The table gets, for each j up to `count`, the sums of the last j steps before the anchor. It
    returns their pivot.
    """
    zeros = make_zeros(np.float64, LANES)

    @inlined
    def suffix_sums(x, keep, starts, stride, count, centred, table):
        pivot, sums = zeros(), (zeros(), zeros(), zeros())
        for j in range(count + 1):
            if j > 0:
                pivot, sums = added(x, keep, starts, -j * stride, centred, pivot, sums)
            store(table, 3 * LANES * j, sums[0])
            store(table, 3 * LANES * j + LANES, sums[1])
            store(table, 3 * LANES * j + 2 * LANES, sums[2])
        return pivot

    return suffix_sums


_moved_sums = inlined(moved_sums)


def make_merged() -> Callable[..., Any]:
    """Return a compiled ``merged(earlier, before, pivot, sums)``.

    It returns a pivot that lies in the window, and the sums of all its steps around it.
    """

    @inlined
    def merged(earlier, before, pivot, sums):
        first, second, count = before
        pivot = where_at_most(pivot, HALF, sums[2]) + where_at_most(earlier, sums[2], 0.0)
        # Without a step before the anchor, `earlier` may be any number.
        distance = where_at_most(earlier - pivot, HALF, count)
        first, second = _moved_sums(first, second, count, distance, multiply_add)
        return pivot, (sums[0] + first, sums[1] + second, sums[2] + count)

    return merged


def _make_block(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``block(arrays, keep, starts, stride, windows, growing, options, table)``.

    It normalizes by the windows around one anchor. ``windows`` are as for `moving.window_kernels`.
    """
    access = lane_access(element_type, True)
    added = _make_added(access, lane_access(MASK, True).read)
    suffix_sums, merged = _make_suffix_sums(added), make_merged()
    outputs, statistics = make_outputs(access), make_statistics()
    load, zeros = make_load(LANES), make_zeros(np.float64, LANES)

    @inlined
    def block(arrays, keep, starts, stride, windows, growing, options, table):
        window, begin, end, shift, before, after = windows
        x, last = arrays[0], 0 if growing else window - 1 - begin
        earlier = suffix_sums(x, keep, starts, stride, last, options[0], table)
        pivot, sums = zeros(), (zeros(), zeros(), zeros())
        for i in range(end):
            pivot, sums = added(x, keep, starts, i * stride, options[0], pivot, sums)
            if i >= begin:
                suffix = 0 if growing else 3 * LANES * (window - 1 - i)
                of_suffix = (
                    load(table, suffix),
                    load(table, suffix + LANES),
                    load(table, suffix + 2 * LANES),
                )
                own, (first, second, count) = merged(earlier, of_suffix, pivot, sums)
                mean, rstd = statistics(first, second, reciprocal(count), options)
                low = i + shift - (before if i == begin else 0)
                high = i + shift + 1 + (after if i == end - 1 else 0)
                unknown = low - 1, first  # no step of the range is known: `first` is any vector
                outputs(arrays, starts, stride, (low, high), unknown, own, mean, rstd)

    return block


def make_masked_windows_kernel(element_type: ElementType) -> Kernel:
    """Return a kernel ``(x, keep, y, mean, rstd, numbers, options, parts)``.

    ``keep`` is 1 for each step that counts, or else 0, of the size of x. The other arguments are
    as for `make_windows_kernel`. A window in which no step counts has statistics of NaN.
    """
    block = _make_block(element_type)
    locate = make_locate(True, 0, 0)
    zeros, scratch = make_aligned_zeros(np.float64, 1), make_scratch(np.int64, LANES)

    def kernel(x, keep, y, mean, rstd, numbers, options, parts, first, last):
        shape, blocks, windows, options = unpacked(numbers, options)
        groups, count, anchor, new, begin = blocks
        window, shift, before, after = windows
        steps, stride = shape[1], shape[2]
        starts = scratch()
        table = zeros((3 * LANES * min(window, steps),), 0)
        for group in range(groups * first // parts, groups * last // parts):
            k = locate(group, shape, count, anchor, window, starts)
            of_block = (
                window,
                begin if k == 0 else 0,
                min(window, steps - anchor - k * window),
                shift,
                before if k == 0 else 0,
                after if k == count - 1 else 0,
            )
            growing = (new == 1) & (k == 0)
            block((x, y, mean, rstd), keep, starts, stride, of_block, growing, options, table)
        release(table)

    return make_kernel(f"moving.masked_windows.{element_type.name}", kernel)


# One channel at a time


# Rows of the table: two sums and a count of a block's steps up to a step, two sums and a count of
# the steps of the block before it, and the pivot of each block.
_ROWS = 8


def _make_sums() -> Callable[..., Any]:
    """Return a compiled ``sums(table, places, bounds, centred, size, row)``.

    It stores the sums and pivots of one block from index `row` on of the rows of the table.
    ``places`` are the index of the anchor, and from there to its place in the mask. ``bounds`` are
    as for the sums without missing steps.
    """
    load, zero = make_load(1), make_zeros(np.float64, 1)

    @inlined
    def added(table, index, mask, pivot, sums):
        first, second, count = sums
        held = load(table, index + mask)
        deviation = where_at_most(load(table, index) - pivot, HALF, held)
        second = multiply_add(deviation, deviation, second)
        return first + deviation, second, count + held

    @inlined
    def nearest(table, at, mask, step, most, centred):
        """Return the first value that counts, of so many in one direction; 0 if there is none."""
        i = 0
        while i < most and load_scalar(table, at + mask + i * step) < HALF:
            i += 1
        return load(table, at + i * step) * centred if i < most else zero()

    @inlined
    def put_sums(table, place, size, sums):
        store(table, place, sums[0])
        store(table, place + size, sums[1])
        store(table, place + 2 * size, sums[2])

    @inlined
    def sums(table, places, bounds, centred, size, row):
        at, mask = places
        window, end, earlier = bounds
        after, before = (zero(), zero(), zero()), (zero(), zero(), zero())
        pivot = nearest(table, at, mask, 1, end, centred)
        earlier_pivot = nearest(table, at - 1, mask, -1, earlier, centred)
        behind = 3 * size + row + window - 1
        if window == end:
            put_sums(table, behind, size, before)
        for i in range(max(end, earlier)):
            if i < end:
                after = added(table, at + i, mask, pivot, after)
                put_sums(table, row + i, size, after)
            if i < earlier:
                before = added(table, at - 1 - i, mask, earlier_pivot, before)
                if window - 2 - i < end:
                    put_sums(table, behind - 1 - i, size, before)
        for i in range(end):
            store(table, row + i + 6 * size, pivot)
            store(table, row + i + 7 * size, earlier_pivot)

    return sums


def _make_tables() -> Callable[..., Any]:
    """Return a compiled ``tables(table, size, places, windows, centred)``.

    It fills the rows of a stretch, as the function of this name without missing steps does.
    """
    sums, zeros = _make_sums(), make_zeros(np.float64, LANES)

    @inlined
    def tables(table, size, places, windows, centred):
        window, growing, begin, end, before, after = windows
        at, mask = places
        for number in range((end + window - 1) // window):
            row = number * window
            own = min(window, end - row)
            earlier = 0 if growing else window - 1 - (begin if row == 0 else 0)
            sums(table, (at + row, mask), (window, own, earlier), centred, size, row)
        if growing:
            for row in range(3, 6):
                for i in range(0, end, LANES):
                    store(table, row * size + i, zeros())
        for row in range(_ROWS):
            for i in range(before):
                table[row * size + begin - before + i] = table[row * size + begin]
            for i in range(after):
                table[row * size + end + i] = table[row * size + end - 1]

    return tables


def _make_stretch(element_type: ElementType, adjacent: bool) -> Callable[..., Any]:
    """Return a compiled ``stretch(arrays, starts, stride, step, at, table, entries, options)``.

    It normalizes the steps from `step` on, which are in the table from the index `at` on.
    ``entries`` are the size of a row, the first entry of the rows, and the one after the last.
    """
    statistics, merged = make_statistics(), make_merged()
    put, load = make_put(element_type, adjacent), make_load(LANES)

    @inlined
    def loaded(table, place, size):
        return load(table, place), load(table, place + size), load(table, place + 2 * size)

    @inlined
    def stretch(arrays, starts, stride, step, at, table, entries, options):
        size, begin, end = entries
        for i in range(begin, end, LANES):
            own, before = loaded(table, i, size), loaded(table, 3 * size + i, size)
            nearest, pivot = load(table, 7 * size + i), load(table, 6 * size + i)
            pivot, (first, second, count) = merged(nearest, before, pivot, own)
            mean, rstd = statistics(first, second, reciprocal(count), options)
            lanes = ((load(table, at + i) - pivot) - mean) * rstd
            offset, some = (step + i) * stride, min(LANES, end - i)
            put(arrays, starts, offset, stride, some, (lanes, pivot + mean, rstd))

    return stretch


def make_masked_sequences_kernel(element_type: ElementType, adjacent: bool) -> Kernel:
    """Return a kernel with the same arguments as the one of `make_masked_windows_kernel`.

    `adjacent` and the groups are as for `make_sequence_windows_kernel`.
    """
    copied, copied_mask = make_copied(element_type, adjacent), make_copied(MASK, adjacent)
    tables, stretch = _make_tables(), _make_stretch(element_type, adjacent)
    empty, scratch = make_aligned_zeros(np.float64, 1, True), make_scratch(np.int64, LANES)

    def kernel(x, keep, y, mean, rstd, numbers, options, parts, first, last):
        shape, blocks, windows, options = unpacked(numbers, options)
        groups, stretches, anchor, new, begin = blocks
        window, shift, before, after = windows
        _, steps, inner = shape
        many = max(1, STRETCH // window)
        size = min(window * many, steps) + after + LANES
        span = min(window * (many + 1), steps) + LANES
        table = empty((_ROWS * size + 2 * span,), 0)
        starts = scratch()
        for group in range(groups * first // parts, groups * last // parts):
            channel, k = group // stretches, group % stretches
            for lane in range(LANES):
                starts[lane] = channel // inner * steps * inner + channel % inner + lane * inner
            start = anchor + (0 if k == 0 else window * (1 + (k - 1) * many))
            end = min(window if k == 0 else many * window, steps - start)
            low = max(0, start - window)
            place = _ROWS * size
            at = start + copied(x, starts, inner, low, start + end, table, place)
            copied_mask(keep, starts, inner, low, start + end, table, place + span)
            own, growing = begin if k == 0 else 0, (new == 1) & (k == 0)
            more = before if k == 0 else 0, after if k == stretches - 1 else 0
            tables(table, size, (at, span), (window, growing, own, end, *more), options[0])
            arrays, entries = (x, y, mean, rstd), (size, own - more[0], end + more[1])
            stretch(arrays, starts, inner, start + shift, at + shift, table, entries, options)
        release(table)

    name = f"moving.masked_sequences.{'adjacent' if adjacent else 'apart'}.{element_type.name}"
    return make_kernel(name, kernel)
