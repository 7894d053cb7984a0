"""The kernels of moving windows, and of their gradients.

Time is cut at anchors, one window apart. Each full window holds exactly one anchor, or begins with
the sequence: it is a suffix of what lies before the anchor, and a prefix of what begins there. So
its sums are one sum of each kind, taken around the value at the anchor, which the window holds. No
value is ever subtracted from a sum: nothing drifts, and what left the window leaves no trace.

For the gradients, the windows that hold a step lie one behind the other, as many as a window has
steps: sums over them are taken as those over the steps of a window are. All windows that end before
an anchor and hold a step of its block hold the first step of the block, and those that end later
hold the anchor. The values there are the pivots of the two sums: none is many deviations of a
window from its mean.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.memory.kernel_arrays import make_aligned_zeros, make_scratch, release
from numnorm.backends.cpu.moving.lanes import LANES, LaneAccess, lane_access, make_locate
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.functions import inverse_root, make_at_least
from numnorm.backends.cpu.simd.vector import make_load, make_zeros, multiply_add, store

# Forward


def _make_suffix_sums(access: LaneAccess) -> Callable[..., Any]:
    """Return a compiled ``suffix_sums(x, starts, stride, count, pivot, table)``.

    The table gets, for each j up to `count`, the sums of the deviations of the last j steps before
    the anchor from the pivot, and of their squares.
    """
    read, zeros = access.read, make_zeros(np.float64, LANES)

    @inlined
    def suffix_sums(x, starts, stride, count, pivot, table):
        first, second = zeros(), zeros()
        for j in range(count + 1):
            if j > 0:
                deviation = read(x, starts, -j * stride) - pivot
                first = first + deviation
                second = multiply_add(deviation, deviation, second)
            store(table, 2 * LANES * j, first)
            store(table, 2 * LANES * j + LANES, second)

    return suffix_sums


def make_statistics() -> Callable[..., Any]:
    """Return a compiled ``statistics(first, second, inverse, options)``.

    It returns the distance of the mean from the pivot, and rstd, of windows with these sums.
    """
    at_least_zero = make_at_least(0.0)

    @inlined
    def statistics(first, second, inverse, options):
        centred, scaled, eps = options
        mean = first * (inverse * centred)
        variance = at_least_zero((second - first * mean) * inverse) + eps
        return mean, inverse_root(variance) * scaled + (1.0 - scaled)

    return statistics


def make_outputs(access: LaneAccess) -> Callable[..., Any]:
    """Return a compiled ``outputs(arrays, starts, stride, steps, known, pivot, mean, rstd)``.

    It normalizes the steps of a range, relative to the anchor, by the statistics of one window.
    ``known`` are a step whose deviation from the pivot need not be read again, and that deviation.
    """
    read, write, write_statistic = access.read, access.write, access.write_statistic

    @inlined
    def outputs(arrays, starts, stride, steps, known, pivot, mean, rstd):
        x, y, means, rstds = arrays
        for step in range(steps[0], steps[1]):
            offset = step * stride
            deviation = known[1] if step == known[0] else read(x, starts, offset) - pivot
            write(y, starts, offset, (deviation - mean) * rstd)
            if means.size > 0:
                write_statistic(means, starts, offset, pivot + mean)
                write_statistic(rstds, starts, offset, rstd)

    return outputs


def _make_block(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``block(arrays, starts, stride, windows, growing, options, table)``.

    It normalizes by the windows around one anchor. ``windows`` are the window, the first
    step, from the anchor on, at which a window ends and the one after the last, the distance from
    the end of a window to its output, and how many more steps have the first and the last window.
    """
    access = lane_access(element_type, True)
    suffix_sums, statistics = _make_suffix_sums(access), make_statistics()
    outputs, read = make_outputs(access), access.read
    load, zeros = make_load(LANES), make_zeros(np.float64, LANES)

    @inlined
    def block(arrays, starts, stride, windows, growing, options, table):
        window, begin, end, shift, before, after = windows
        x = arrays[0]
        pivot = read(x, starts, 0) * options[0]
        suffix_sums(x, starts, stride, 0 if growing else window - 1 - begin, pivot, table)
        first, second = zeros(), zeros()
        for i in range(end):
            deviation = read(x, starts, i * stride) - pivot
            first = first + deviation
            second = multiply_add(deviation, deviation, second)
            if i >= begin:
                suffix = 0 if growing else 2 * LANES * (window - 1 - i)
                inverse = 1.0 / (i + 1 if growing else window)
                mean, rstd = statistics(
                    first + load(table, suffix),
                    second + load(table, suffix + LANES),
                    inverse,
                    options,
                )
                low = i + shift - (before if i == begin else 0)
                high = i + shift + 1 + (after if i == end - 1 else 0)
                known = i, deviation
                outputs(arrays, starts, stride, (low, high), known, pivot, mean, rstd)

    return block


@inlined
def unpacked(numbers, options):
    """Return the tuples shape, blocks, windows and options of arrays that hold them one by one."""
    shape = numbers[0], numbers[1], numbers[2]
    blocks = numbers[3], numbers[4], numbers[5], numbers[6], numbers[7]
    windows = numbers[8], numbers[9], numbers[10], numbers[11]
    return shape, blocks, windows, (options[0], options[1], options[2])


def make_windows_kernel(element_type: ElementType) -> Kernel:
    """Return a kernel ``(x, y, mean, rstd, numbers, options, parts)``.

    The arrays are flat; mean and rstd have no elements if they are not to be saved. ``numbers`` are
    shape, blocks and windows one by one: arrays take less time in a call than tuples. The `shape`
    is ``(outer, steps, inner)``. ``blocks`` are the number of groups and of blocks, the step of the
    first anchor, whether the sequence begins there, and the first step from that anchor on at which
    a window ends. ``windows`` are the window, the distance from the end of a window to its output,
    and how many more steps share the first and the last window. ``options`` are 1 or 0 for whether
    the mean is subtracted, and whether to divide, and epsilon. The groups are divided into `parts`.
    """
    block = _make_block(element_type)
    locate = make_locate(True, 0, 0)
    zeros, scratch = make_aligned_zeros(np.float64, 1), make_scratch(np.int64, LANES)

    def kernel(x, y, mean, rstd, numbers, options, parts, first, last):
        shape, blocks, windows, options = unpacked(numbers, options)
        groups, count, anchor, new, begin = blocks
        window, shift, before, after = windows
        steps, stride = shape[1], shape[2]
        starts = scratch()
        table = zeros((2 * LANES * min(window, steps),), 0)
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
            block((x, y, mean, rstd), starts, stride, of_block, growing, options, table)
        release(table)

    return make_kernel(f"moving.windows.{element_type.name}", kernel)


# Gradients


# Blocks of steps whose lanes are only channels: windows are shorter, or missing, near both ends.
HEADS, TAILS = 2, 2


def _make_terms(access: LaneAccess) -> Callable[..., Any]:
    """Return a compiled ``terms(arrays, starts, stride, steps, pivot, inverse, options, sums)``.

    It adds to the sums what a window, whose outputs are the steps of a range, passes to each of its
    steps: through its mean, through its deviation, and the latter times the distance of its mean
    from the pivot.
    """
    read, read_statistic = access.read, access.read_statistic

    @inlined
    def terms(arrays, starts, stride, steps, pivot, inverse, options, sums):
        dy, x, means, rstds = arrays
        centred, scaled = options
        through_mean, through_scale, shifted = sums
        for step in range(steps[0], steps[1]):
            offset = step * stride
            mean, rstd = (
                read_statistic(means, starts, offset),
                read_statistic(rstds, starts, offset),
            )
            gradient = read(dy, starts, offset) * rstd
            deviation = read(x, starts, offset) - mean
            scale_gradient = gradient * (deviation * rstd) * rstd * (inverse * scaled)
            through_mean = through_mean + gradient * (inverse * centred)
            through_scale = through_scale + scale_gradient
            shifted = multiply_add(scale_gradient, mean - pivot, shifted)
        return through_mean, through_scale, shifted

    return terms


def _make_add_window(access: LaneAccess) -> Callable[..., Any]:
    """Return a compiled ``add(arrays, starts, stride, bounds, i, pivot, options, sums)``.

    It adds the terms of the window that ends with step i, relative to the anchor, if there is one.
    ``bounds`` are the steps from the anchor to the first and the last end of a window and to the
    beginning, the window, the distance from an end to its output, and how many more outputs the
    first and the last window have.
    """
    terms = _make_terms(access)

    @inlined
    def add(arrays, starts, stride, bounds, i, pivot, options, sums):
        begin, end, origin, window, shift, before, after = bounds
        if i < begin or i > end:
            return sums
        inverse = 1.0 / min(i - origin + 1, window)
        low = i + shift - (before if i == begin else 0)
        high = i + shift + 1 + (after if i == end else 0)
        return terms(arrays, starts, stride, (low, high), pivot, inverse, options, sums)

    return add


def _make_gradient_block(element_type: ElementType, across: bool) -> Callable[..., Any]:
    """Return a compiled ``block(arrays, dx, starts, stride, bounds, options, table)``.

    It stores dx of the steps up to one anchor, after the anchor before it.
    """
    access = lane_access(element_type, across)
    add, read, read_statistic = _make_add_window(access), access.read, access.read_statistic
    write, load, zeros = access.write, make_load(LANES), make_zeros(np.float64, LANES)

    @inlined
    def block(arrays, dx, starts, stride, bounds, options, table):
        _, end, origin, window, _, _, _ = bounds
        dy, x, _, rstds = arrays
        first, centred = max(1 - window, origin), options[0]
        earlier = read(x, starts, min(first, end) * stride) * centred
        later = read(x, starts, min(0, end) * stride) * centred
        sums = zeros(), zeros(), zeros()
        for i in range(window):
            sums = add(arrays, starts, stride, bounds, i, later, options, sums)
            store(table, 3 * LANES * i, sums[0])
            store(table, 3 * LANES * i + LANES, sums[1])
            store(table, 3 * LANES * i + 2 * LANES, sums[2])
        sums = zeros(), zeros(), zeros()
        for j in range(min(window, 1 - origin)):
            if j > 0:
                sums = add(arrays, starts, stride, bounds, -j, earlier, options, sums)
            if -j <= end:
                offset, prefix = -j * stride, 3 * LANES * (window - 1 - j)
                own = read(dy, starts, offset) * read_statistic(rstds, starts, offset)
                through_mean = sums[0] + load(table, prefix)
                value = read(x, starts, offset)
                of_earlier = multiply_add(sums[1], value - earlier, 0.0 - sums[2])
                through_scale, shifted = (
                    load(table, prefix + LANES),
                    load(table, prefix + 2 * LANES),
                )
                of_later = multiply_add(through_scale, value - later, 0.0 - shifted)
                write(dx, starts, offset, own - through_mean - (of_earlier + of_later))

    return block


def make_window_gradients_kernel(element_type: ElementType, across: bool) -> Kernel:
    """Return a kernel ``(dy, x, mean, rstd, dx, shape, blocks, windows, options, parts)``.

    The arrays are flat, and the `shape` is ``(outer, steps, inner)``. ``blocks`` are the number of
    groups and of blocks, and the first step at which a window ends. ``windows`` are as for
    `make_windows_kernel`. ``options`` are 1 or 0 for whether the mean is subtracted, and
    whether to divide. The groups are divided into `parts`.
    """
    block = _make_gradient_block(element_type, across)
    locate = make_locate(across, HEADS, TAILS)
    zeros, scratch = make_aligned_zeros(np.float64, 1), make_scratch(np.int64, LANES)

    def kernel(dy, x, mean, rstd, dx, shape, blocks, windows, options, parts, first, last):
        groups, count, begin = blocks
        window, shift, before, after = windows
        steps, stride = shape[1], shape[2]
        starts = scratch()
        table = zeros((3 * LANES * window,), 0)
        for group in range(groups * first // parts, groups * last // parts):
            origin = -window * locate(group, shape, count, 0, window, starts)
            bounds = origin + begin, origin + steps - 1, origin, window, shift, before, after
            block((dy, x, mean, rstd), dx, starts, stride, bounds, options, table)
        release(table)

    name = f"moving.window_gradients.{'across' if across else 'along'}.{element_type.name}"
    return make_kernel(name, kernel)
