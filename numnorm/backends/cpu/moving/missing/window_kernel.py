"""The kernel of moving windows in which steps are missing.

It adds as the kernel of full windows does, but the step at an anchor may be missing. So the steps
before an anchor and those from it on have a pivot each, the one that is nearest to the anchor, and
with a count of each the sums before it are moved to the other pivot.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.memory.allocated import make_aligned_zeros, release
from numnorm.backends.cpu.memory.borrowed import make_scratch
from numnorm.backends.cpu.moving.lanes import LANES, LaneAccess, lane_access, make_locate
from numnorm.backends.cpu.moving.missing.kept import HALF, MASK
from numnorm.backends.cpu.moving.window_kernel import (
    make_outputs,
    make_statistics,
    unpacked,
)
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.functions import reciprocal, where_at_most
from numnorm.backends.cpu.simd.vector import make_load, make_zeros, multiply_add, store


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
        moved = multiply_add(distance, count, first)
        second = multiply_add(distance, first + moved, second)
        return pivot, (sums[0] + moved, sums[1] + second, sums[2] + count)

    return merged


def _make_block(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``block(arrays, keep, starts, stride, windows, growing, options, table)``.

    It normalizes by the windows around one anchor. ``windows`` are as for `moving.window_kernel`.
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


def make_missing_windows_kernel(element_type: ElementType) -> Kernel:
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

    return make_kernel(f"moving.missing_windows.{element_type.name}", kernel)
