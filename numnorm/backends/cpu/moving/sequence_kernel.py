"""The kernel of moving windows along one channel at a time.

Where fewer than eight channels are adjacent, a vector holds eight steps of one channel. Sums go
from step to step, in the order of the kernel of adjacent channels, and into tables; all that is
derived from them is done for eight steps at once.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.memory.kernel_arrays import make_aligned_zeros, make_scratch, release
from numnorm.backends.cpu.moving.lanes import LANES, lane_access
from numnorm.backends.cpu.moving.window_kernels import make_statistics, unpacked
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.functions import maximum, reciprocal
from numnorm.backends.cpu.simd.vector import (
    load_scalar,
    make_load,
    make_zeros,
    multiply_add,
    store,
)

STRETCH = 512  # The blocks of short windows share the vectors of so many steps.
# Rows of the table: sums of the steps of a block up to a step and of their squares, sums of those
# of the block before that are in the window of the step and of their squares, and pivots.
_ROWS = 5


def stretch_count(count: int, window: int) -> int:
    """Return the number of stretches of a channel, given that of its blocks.

    The first block is a stretch of its own.
    """
    return 1 + -(-(count - 1) // max(1, STRETCH // window))


def _make_sums() -> Callable[..., Any]:
    """Return a compiled ``sums(table, at, bounds, pivot, size, row)``.

    It stores the sums of one block, whose anchor is at the index `at`, from index `row` on of the
    rows of the table. ``bounds`` are the window, the number of steps of the block, and how many
    steps before it are in its windows.
    """
    load, zero = make_load(1), make_zeros(np.float64, 1)

    @inlined
    def added(table, index, pivot, first, second):
        deviation = load(table, index) - pivot
        return first + deviation, multiply_add(deviation, deviation, second)

    @inlined
    def sums(table, at, bounds, pivot, size, row):
        window, end, earlier = bounds
        after, squares_after, before, squares_before = zero(), zero(), zero(), zero()
        # The sums of j steps before the anchor belong to the window that ends j steps before the
        # next anchor, if the channel has a step there.
        behind = 2 * size + row + window - 1
        if window == end:
            store(table, behind, before)
            store(table, behind + size, squares_before)
        # Two pairs of sums in one loop: their additions do not wait for each other.
        for i in range(max(end, earlier)):
            if i < end:
                after, squares_after = added(table, at + i, pivot, after, squares_after)
                store(table, row + i, after)
                store(table, row + i + size, squares_after)
            if i < earlier:
                before, squares_before = added(table, at - 1 - i, pivot, before, squares_before)
                if window - 2 - i < end:
                    store(table, behind - 1 - i, before)
                    store(table, behind - 1 - i + size, squares_before)

    return sums


def make_put(element_type: ElementType, adjacent: bool) -> Callable[..., Any]:
    """Return a compiled ``put(arrays, starts, offset, stride, count, results)``.

    It stores y, mean and rstd of `count` steps, at most those of a vector.
    """
    access, to_buffer = lane_access(element_type, adjacent), lane_access(element_type, True).write
    write, write_statistic = access.write, access.write_statistic
    converted = make_scratch(element_type.storage_dtype.type, LANES)
    statistic, origin = make_scratch(np.float64, LANES), make_scratch(np.int64, LANES)

    @inlined
    def put_some(array, starts, offset, stride, count, buffer):
        for lane in range(count):
            array[starts[0] + offset + lane * stride] = buffer[lane]

    @inlined
    def put(arrays, starts, offset, stride, count, results):
        _, y, means, rstds = arrays
        if count == LANES:
            write(y, starts, offset, results[0])
            if means.size > 0:
                write_statistic(means, starts, offset, results[1])
                write_statistic(rstds, starts, offset, results[2])
        else:
            buffer, values, first = converted(), statistic(), origin()
            first[0] = 0
            to_buffer(buffer, first, 0, results[0])
            put_some(y, starts, offset, stride, count, buffer)
            if means.size > 0:
                store(values, 0, results[1])
                put_some(means, starts, offset, stride, count, values)
                store(values, 0, results[2])
                put_some(rstds, starts, offset, stride, count, values)

    return put


def make_copied(element_type: ElementType, adjacent: bool) -> Callable[..., Any]:
    """Return a compiled ``copied(x, starts, stride, low, high, table, place)``.

    It copies the steps from `low` to `high` of a channel to the table, from the index `place` on,
    as float64, and returns at which index step 0 would be.
    """
    read, from_buffer = (
        lane_access(element_type, adjacent).read,
        lane_access(element_type, True).read,
    )
    storage, origin = element_type.storage_dtype.type, make_scratch(np.int64, LANES)
    scratch = make_scratch(storage, LANES)

    @inlined
    def copied(x, starts, stride, low, high, table, place):
        full = low + (high - low) // LANES * LANES
        for step in range(low, full, LANES):
            store(table, place + step - low, read(x, starts, step * stride))
        if full < high:
            buffer, first = scratch(), origin()
            first[0] = 0
            for lane in range(LANES):
                step = min(full + lane, high - 1)
                buffer[lane] = x[starts[0] + step * stride]
            store(table, place + full - low, from_buffer(buffer, first, 0))
        return place - low

    return copied


def _make_tables() -> Callable[..., Any]:
    """Return a compiled ``tables(table, size, at, windows, centred)``.

    It fills the rows of a stretch whose first step is at the index `at`. ``windows`` are the
    window, whether it still grows, the first step of the stretch at which a window ends and the
    one after the last, and how many more steps before and behind them have the first and the last
    window.
    """
    sums, zeros = _make_sums(), make_zeros(np.float64, LANES)

    @inlined
    def tables(table, size, at, windows, centred):
        window, growing, begin, end, before, after = windows
        # A step in `range` that is no constant would need code for an exception.
        for number in range((end + window - 1) // window):
            row = number * window
            own = min(window, end - row)
            earlier = 0 if growing else window - 1 - (begin if row == 0 else 0)
            pivot = load_scalar(table, at + row) * centred
            sums(table, at + row, (window, own, earlier), pivot, size, row)
            for i in range(0, own, LANES):
                store(table, 4 * size + row + i, zeros() + pivot)
                if growing:
                    store(table, 2 * size + i, zeros())
                    store(table, 3 * size + i, zeros())
        for row in range(_ROWS):
            for i in range(before):
                table[row * size + begin - before + i] = table[row * size + begin]
            for i in range(after):
                table[row * size + end + i] = table[row * size + end - 1]

    return tables


def _make_stretch(element_type: ElementType, adjacent: bool) -> Callable[..., Any]:
    """Return a compiled ``stretch(arrays, starts, stride, step, at, table, windows, options)``.

    It normalizes the steps from `step` on, which are in the table from the index `at` on.
    ``windows`` are the size of a row, the least length of a window and by how much the next one
    is longer, the first entry of the rows, and the one after the last.
    """
    statistics, put = make_statistics(), make_put(element_type, adjacent)
    load, numbers_of = make_load(LANES), make_scratch(np.float64, LANES)

    @inlined
    def stretch(arrays, starts, stride, step, at, table, windows, options):
        size, least, slope, begin, end = windows
        numbers = numbers_of()
        for lane in range(LANES):
            numbers[lane] = lane + 1.0
        for i in range(begin, end, LANES):
            length = maximum((load(numbers, 0) + 1.0 * i) * slope, least)
            mean, rstd = statistics(
                load(table, i) + load(table, 2 * size + i),
                load(table, size + i) + load(table, 3 * size + i),
                reciprocal(length),
                options,
            )
            pivot = load(table, 4 * size + i)
            lanes = ((load(table, at + i) - pivot) - mean) * rstd
            offset, count = (step + i) * stride, min(LANES, end - i)
            put(arrays, starts, offset, stride, count, (lanes, pivot + mean, rstd))

    return stretch


def make_sequence_windows_kernel(element_type: ElementType, adjacent: bool) -> Kernel:
    """Return a kernel with the arguments of that of `make_windows_kernel`.

    The steps of a channel are ``adjacent``, or else have others between them. In place of blocks
    there are stretches: the first block of a channel, and each time some of the others.
    """
    copied, tables = make_copied(element_type, adjacent), _make_tables()
    stretch, empty = _make_stretch(element_type, adjacent), make_aligned_zeros(np.float64, 1, True)
    scratch = make_scratch(np.int64, LANES)

    def kernel(x, y, mean, rstd, numbers, options, parts, first, last):
        shape, blocks, windows, options = unpacked(numbers, options)
        groups, stretches, anchor, new, begin = blocks
        window, shift, before, after = windows
        _, steps, inner = shape
        many = max(1, STRETCH // window)
        size = min(window * many, steps) + after + LANES
        table = empty((_ROWS * size + min(window * (many + 1), steps) + LANES,), 0)
        starts = scratch()
        for group in range(groups * first // parts, groups * last // parts):
            channel, k = group // stretches, group % stretches
            for lane in range(LANES):
                starts[lane] = channel // inner * steps * inner + channel % inner + lane * inner
            start = anchor + (0 if k == 0 else window * (1 + (k - 1) * many))
            end = min(window if k == 0 else many * window, steps - start)
            low = max(0, start - window)
            at = start + copied(x, starts, inner, low, start + end, table, _ROWS * size)
            own, growing = begin if k == 0 else 0, (new == 1) & (k == 0)
            more = before if k == 0 else 0, after if k == stretches - 1 else 0
            tables(table, size, at, (window, growing, own, end, *more), options[0])
            grows = growing & (own + 1 < window)
            least, slope = (own + 1.0, 1.0) if grows else (1.0 * window, 0.0)
            of_stretch = size, least, slope, own - more[0], end + more[1]
            arrays = x, y, mean, rstd
            step = start + shift
            stretch(arrays, starts, inner, step, at + shift, table, of_stretch, options)
        release(table)

    name = f"moving.sequences.{'adjacent' if adjacent else 'apart'}.{element_type.name}"
    return make_kernel(name, kernel)
