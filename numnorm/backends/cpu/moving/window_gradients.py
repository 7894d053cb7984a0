"""The kernel of the gradients of moving windows.

The windows that hold a step lie one behind the other, as many as a window has steps: sums over them
are taken as those over the steps of a window are. All windows that end before an anchor and hold a
step of its block hold the first step of the block, and those that end later hold the anchor. The
values there are the pivots of the two sums: none is many deviations of a window from its mean.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.memory.allocated import make_aligned_zeros, release
from numnorm.backends.cpu.memory.borrowed import make_scratch
from numnorm.backends.cpu.moving.lanes import LANES, LaneAccess, lane_access, make_locate
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.vector import make_load, make_zeros, multiply_add, store

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


def _make_block(element_type: ElementType, across: bool) -> Callable[..., Any]:
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
    block = _make_block(element_type, across)
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
