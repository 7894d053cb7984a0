"""Kernels for the gradients of channel norms: first the sums of each channel, then dx.

With frozen statistics dx does not depend on the sums, and one kernel computes both.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.columns.loops import (
    make_frozen_statistics_gradient,
    make_gradient_group,
    make_gradient_row,
    make_gradient_sums,
    make_is_wide,
)
from numnorm.backends.cpu.columns.tile_sums import (
    make_fill,
    make_gradient_rows,
    make_tiles,
    tile_of_gradients,
)
from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.memory.alignment import make_peel
from numnorm.backends.cpu.memory.borrowed import borrowed, make_scratch
from numnorm.backends.cpu.memory.nontemporal import fence_after_stores, use_nontemporal_gradient
from numnorm.backends.cpu.memory.shifted_rows import shifted_rows
from numnorm.backends.cpu.simd.element_type import ElementType, element_type_of
from numnorm.backends.cpu.simd.optional import part, present
from numnorm.backends.cpu.simd.optional_vector import make_load_or_scalar
from numnorm.backends.cpu.simd.vector import make_load, multiply_add
from numnorm.backends.cpu.statistics.accumulators import flush


@inlined
def _put_nothing(
    arrays: Any, i: int, j: int, tail: int, grad: Any, coefficients: Any, t: int
) -> None:
    pass


def _make_block_sums(
    element_type: ElementType,
    rows: tuple[int, ...],
    make_put: Callable[..., Any] = lambda access: _put_nothing,
    *,
    nontemporal: bool = False,
) -> Callable[..., Any]:
    """Return a compiled loop over the tiles of a block of rows of ``x (outer, channels)``.

    ``block_sums(arrays, start, stop, scaled, coefficients, products, sums_dy)`` stores the sums of
    ``dy * (x * scale - mean_hi) * rstd`` and of dy. ``make_put(access)`` returns a compiled
    ``put(arrays, i, j, tail, grad, (loaded, scaled), t)``, which may store a result of a vector of
    dy. ``loaded`` holds a tile of each of the `rows` of the coefficients, one after the other, and
    ``scaled`` is the same array, or None if nothing is scaled.
    """
    real, to_compute = element_type.compute_type, element_type.to_compute
    load, tile = make_load(element_type.lanes), tile_of_gradients(element_type)
    fill = make_fill(element_type_of(element_type.compute_dtype))

    def make_add(access):
        read, put = access.read, make_put(access)

        @inlined
        def add(arrays, i, j, tail, coefficients, t, sums):
            loaded, _ = coefficients
            grad = to_compute(read(arrays[0][i], j, tail))
            x = to_compute(read(arrays[1][i], j, tail))
            deviation = x * load(loaded, t) - load(loaded, tile + t)
            xhat = deviation * load(loaded, 2 * tile + t)
            added = multiply_add(grad, xhat, sums[0]), sums[1] + grad
            put(arrays, i, j, tail, grad, coefficients, t)
            return added

        return add

    tiling_of, tile_of = make_tiles(element_type, tile)
    some_rows = make_gradient_rows(element_type, make_add, nontemporal=nontemporal)
    scratch, scratch_of_sums = make_scratch(real, len(rows) * tile), make_scratch(real, 2 * tile)

    @inlined
    def block_sums(arrays, start, stop, scaled, coefficients, products, sums_dy):
        loaded, of_tile = scratch(), scratch_of_sums()
        sums = of_tile[:tile], of_tile[tile:]
        of_tile[:] = 0
        products[:] = 0
        sums_dy[:] = 0
        # Aligned to dx if it is an output: an unaligned store costs more than an unaligned load.
        peel, tiles = tiling_of(arrays[-1])
        # All channels of a few rows, not a few channels of all rows, so that pages are read whole.
        for begin in range(start, stop, tuning.ROWS_BETWEEN_FLUSHES):
            end = min(begin + tuning.ROWS_BETWEEN_FLUSHES, stop)
            for number in range(tiles):
                channel, width = tile_of(number, products.size, peel)
                for k in range(len(rows)):
                    fill(loaded[k * tile :], coefficients[rows[k]], channel, width)
                given = loaded, present(scaled, loaded)
                some_rows(arrays, begin, end, channel, width, given, sums)
                flush(sums[0][:width], products[channel : channel + width])
                flush(sums[1][:width], sums_dy[channel : channel + width])

    return block_sums


def make_sums_across(element_type: ElementType) -> Kernel:
    """Return a kernel that sums dy * xhat and dy over each block of ``x (outer, channels)``.

    Its arguments are ``dy, x``, the ``coefficients`` of `make_centre_coefficients`, the ``block``
    size in rows, and ``sums (2, blocks, channels)``, which become the sums of
    ``dy * (x * scale - mean_hi) * rstd`` and of dy.
    """
    block_sums = _make_block_sums(element_type, (0, 1, 2))

    def kernel(dy, x, coefficients, block, sums, first, last):
        arrays, coefficients = (borrowed(dy), borrowed(x)), borrowed(coefficients)
        products, sums_dy = borrowed(sums)[0], borrowed(sums)[1]
        for p in range(first, last):
            start, stop = p * block, min((p + 1) * block, x.shape[0])
            block_sums(arrays, start, stop, None, coefficients, products[p], sums_dy[p])

    return make_kernel(f"column_sums.across.{element_type.name}", kernel)


def _make_put_frozen_statistics(element_type: ElementType) -> Callable[..., Any]:
    """Return the `make_put` of `_make_block_sums` that stores dx."""
    to_storage, one = element_type.to_storage, element_type.compute_type(1)
    load_or_scalar, tile = make_load_or_scalar(element_type.lanes), tile_of_gradients(element_type)

    def make_put(access):
        write = access.write

        @inlined
        def put(arrays, i, j, tail, grad, coefficients, t):
            loaded, scaled = coefficients
            grad = grad * load_or_scalar(scaled, 4 * tile + t, one)
            dx = grad * load_or_scalar(loaded, 3 * tile + t, one)
            write(arrays[2][i], j, to_storage(dx), tail)

        return put

    return make_put


def make_frozen_statistics_across(element_type: ElementType) -> Kernel:
    """Return a kernel for the same sums and dx, with frozen statistics.

    Its arguments are ``dy, x``, the ``coefficients`` of `make_frozen_coefficients`, ``scaled``,
    which is None if every scale and back is 1, ``block, sums`` and ``dx``.
    """
    rows, make_put = (0, 1, 2, 4, 5), _make_put_frozen_statistics(element_type)
    store_block = _make_block_sums(element_type, rows, make_put)
    store_block_nontemporal = _make_block_sums(element_type, rows, make_put, nontemporal=True)
    tiling_of, _ = make_tiles(element_type, tile_of_gradients(element_type))

    def kernel(dy, x, coefficients, scaled, block, sums, dx, first, last):
        arrays, table = (borrowed(dy), borrowed(x), borrowed(dx)), borrowed(coefficients)
        products, sums_dy = borrowed(sums)[0], borrowed(sums)[1]
        peel, _ = tiling_of(arrays[2])
        nontemporal = use_nontemporal_gradient(arrays[2], dx.shape[1], peel)
        for p in range(first, last):
            start, stop = p * block, min((p + 1) * block, x.shape[0])
            if nontemporal:
                store_block_nontemporal(arrays, start, stop, scaled, table, products[p], sums_dy[p])
            else:
                store_block(arrays, start, stop, scaled, table, products[p], sums_dy[p])
        fence_after_stores(nontemporal)

    return make_kernel(f"column_frozen_statistics.across.{element_type.name}", kernel)


def make_sums_along(element_type: ElementType) -> Kernel:
    """Return the kernel of `make_sums_across` for ``x (outer, channels, inner)``."""
    gradient_sums = make_gradient_sums(element_type)

    @inlined
    def block_sums(dy, x, start, stop, c, stats):
        product, sum_dy = np.float64(0), np.float64(0)
        for i in range(start, stop):
            one, two = gradient_sums(dy[i, c], x[i, c], stats)
            product += one
            sum_dy += two
        return product, sum_dy

    def kernel(dy, x, coefficients, block, sums, first, last):
        dy, x = borrowed(dy), borrowed(x)
        coefficients, sums = borrowed(coefficients), borrowed(sums)
        scale, mean_hi, rstd = coefficients[0], coefficients[1], coefficients[2]
        channels = x.shape[1]
        for t in range(first, last):
            p, c = t // channels, t % channels
            start, stop = p * block, min((p + 1) * block, x.shape[0])
            stats = scale[c], mean_hi[c], rstd[c]
            sums[0, p, c], sums[1, p, c] = block_sums(dy, x, start, stop, c, stats)

    return make_kernel(f"column_sums.along.{element_type.name}", kernel)


def make_frozen_statistics_along(element_type: ElementType) -> Kernel:
    """Return the kernel of `make_frozen_statistics_across` for ``x (outer, channels, inner)``."""
    store_segment = make_frozen_statistics_gradient(element_type, nontemporal=False)
    store_segment_nontemporal = make_frozen_statistics_gradient(element_type, nontemporal=True)
    peel_of = make_peel(element_type)

    @inlined
    def block_gradient(dy, x, start, stop, c, coefficients, dx, nontemporal):
        stats, factors = coefficients
        product, sum_dy = np.float64(0), np.float64(0)
        for i in range(start, stop):
            if nontemporal:
                one, two = store_segment_nontemporal(dy[i, c], x[i, c], stats, factors, dx[i, c])
            else:
                one, two = store_segment(dy[i, c], x[i, c], stats, factors, dx[i, c])
            product += one
            sum_dy += two
        return product, sum_dy

    def kernel(dy, x, coefficients, scaled, block, sums, dx, first, last):
        dy, x, dx = borrowed(dy), borrowed(x), borrowed(dx)
        coefficients, sums = borrowed(coefficients), borrowed(sums)
        scale, mean_hi, rstd = coefficients[0], coefficients[1], coefficients[2]
        factor, back = coefficients[4], present(scaled, coefficients[5])
        channels, segment = x.shape[1], x.shape[2]
        nontemporal = use_nontemporal_gradient(dx, segment, peel_of(dx, segment))
        for t in range(first, last):
            p, c = t // channels, t % channels
            start, stop = p * block, min((p + 1) * block, x.shape[0])
            of_channel = (scale[c], mean_hi[c], rstd[c]), (factor[c], part(back, c))
            one, two = block_gradient(dy, x, start, stop, c, of_channel, dx, nontemporal)
            sums[0, p, c], sums[1, p, c] = one, two
        fence_after_stores(nontemporal)

    return make_kernel(f"column_frozen_statistics.along.{element_type.name}", kernel)


@inlined
def _unpacked(coefficients: Any, scaled: Any, start: int) -> Any:
    """Return the coefficients of `channel_gradient` of the channels from `start` on."""
    scale, back = present(scaled, coefficients[0][start:]), present(scaled, coefficients[7][start:])
    stats = scale, coefficients[1][start:], coefficients[2][start:]
    return (*stats, coefficients[4][start:], coefficients[5][start:], coefficients[6][start:], back)


def make_dx_across(element_type: ElementType) -> Kernel:
    """Return a kernel that stores dx for ``x (outer, channels)``.

    Its arguments are ``dy, x``, the ``coefficients`` of `make_gradient_coefficients`, ``scaled``,
    which is None if every scale and back is 1, ``dx``, ``shift`` and ``parts``. If ``shift`` is not
    0, it works on the `shifted_rows`, and the first ``shift`` columns of ``coefficients`` follow
    the last ones.
    """
    gradient_row = make_gradient_row(element_type)
    gradient_group = make_gradient_group(element_type)
    is_wide, tile = make_is_wide(element_type), tile_of_gradients(element_type)

    def kernel(dy, x, coefficients, scaled, dx, shift, parts, first, last):
        dy, x, dx, coefficients = borrowed(dy), borrowed(x), borrowed(dx), borrowed(coefficients)
        start, stop = first * x.shape[0] // parts, last * x.shape[0] // parts
        # The coefficients of a row of one tile stay in the first-level cache from row to row.
        unpacked, in_groups = _unpacked(coefficients, scaled, 0), is_wide(x) and x.shape[1] > tile
        nontemporal = use_nontemporal_gradient(dx, dx.shape[1], shift)
        if shift > 0 and start < stop:
            stop -= 1
            begin = dy[start][:shift], x[start][:shift]
            gradient_row(begin, unpacked, dx[start][:shift], False)
            unpacked = _unpacked(coefficients, scaled, shift)
            end = dy[stop][shift:], x[stop][shift:]
            gradient_row(end, unpacked, dx[stop][shift:], False)
            dy, x, dx = shifted_rows(dy, shift), shifted_rows(x, shift), shifted_rows(dx, shift)
        grouped = stop - (stop - start) % tuning.GROUP_ROWS if in_groups else start
        for i in range(start, grouped, tuning.GROUP_ROWS):
            gradient_group((dy, x), i, unpacked, dx, nontemporal)
        for i in range(grouped, stop):
            gradient_row((dy[i], x[i]), unpacked, dx[i], nontemporal)
        fence_after_stores(nontemporal)

    return make_kernel(f"column_dx.across.{element_type.name}", kernel)


def make_dx_along(element_type: ElementType) -> Kernel:
    """Return a kernel that stores dx for ``x (outer, channels, inner)``.

    It has the arguments of the kernel of `make_dx_across`, and ignores ``shift``.
    """
    gradient_row, peel_of = make_gradient_row(element_type), make_peel(element_type)

    def kernel(dy, x, coefficients, scaled, dx, shift, parts, first, last):
        dy, x, dx, coefficients = borrowed(dy), borrowed(x), borrowed(dx), borrowed(coefficients)
        unpacked = _unpacked(coefficients, scaled, 0)
        scale, mean_hi, rstd, factor, xhat_factor, offset, back = unpacked
        segments = x.shape[0] * x.shape[1]
        nontemporal = use_nontemporal_gradient(dx, dx.shape[2], peel_of(dx, dx.shape[2]))
        for t in range(first * segments // parts, last * segments // parts):
            i, c = t // x.shape[1], t % x.shape[1]
            stats = part(scale, c), mean_hi[c], rstd[c]
            of_channel = (*stats, factor[c], xhat_factor[c], offset[c], part(back, c))
            gradient_row((dy[i, c], x[i, c]), of_channel, dx[i, c], nontemporal)
        fence_after_stores(nontemporal)

    return make_kernel(f"column_dx.along.{element_type.name}", kernel)
