"""The gradients of norms whose statistics belong to a channel: first sums, then dx.

Where the statistics are constants, dx needs no sums, and both are taken in one pass.
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
from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel, mark_noinline
from numnorm.backends.cpu.memory.alignment import make_peel
from numnorm.backends.cpu.memory.borrowed import borrowed, make_scratch
from numnorm.backends.cpu.memory.nontemporal import fence_after_stores, use_nontemporal_gradient
from numnorm.backends.cpu.memory.shifted_rows import shifted_rows
from numnorm.backends.cpu.simd.element_type import ElementType, element_type_of
from numnorm.backends.cpu.simd.optional import part, present
from numnorm.backends.cpu.simd.optional_vector import make_load_or_scalar
from numnorm.backends.cpu.simd.vector import make_load, multiply_add
from numnorm.backends.cpu.statistics.accumulators import ROWS_BETWEEN_FLUSHES, flush


@inlined
def _put_nothing(
    arrays: Any, i: int, j: int, tail: int, grad: Any, coefficients: Any, t: int
) -> None:
    pass


def _make_block_sums(
    element_type: ElementType,
    copied: tuple[int, ...],
    make_put: Callable[..., Any] = lambda access: _put_nothing,
    *,
    nontemporal: bool = False,
) -> Callable[..., Any]:
    """Return a compiled loop over the tiles of a block of ``x (outer, channels)``.

    ``block_sums(arrays, start, stop, scaled, coefficients, sums, sums_dy)`` stores the sums of
    ``dy * (x * scale - mean_hi) * rstd`` and of dy over those rows. What ``make_put(access)``
    returns, ``put(arrays, i, j, tail, grad, coefficients, t)``, may store something of lanes of dy on
    the way. It gets the `copied` rows of the terms, a tile of each after the other, and once
    more what is None if nothing is scaled.
    """
    real, to_compute, tile = (
        element_type.compute_type,
        element_type.to_compute,
        tile_of_gradients(element_type),
    )
    fill, load = (
        make_fill(element_type_of(element_type.compute_dtype)),
        make_load(element_type.lanes),
    )

    def make_add(access):
        read, put = access.read, make_put(access)

        @inlined
        def add(arrays, i, j, tail, coefficients, t, sums):
            here, _ = coefficients
            grad = to_compute(read(arrays[0][i], j, tail))
            x = to_compute(read(arrays[1][i], j, tail))
            deviation = x * load(here, t) - load(here, tile + t)
            xhat = deviation * load(here, 2 * tile + t)
            added = multiply_add(grad, xhat, sums[0]), sums[1] + grad
            put(arrays, i, j, tail, grad, coefficients, t)
            return added

        return add

    cut, tile_of = make_tiles(element_type, tile)
    some_rows = make_gradient_rows(element_type, make_add, nontemporal=nontemporal)
    scratch, scratch_of_sums = make_scratch(real, len(copied) * tile), make_scratch(real, 2 * tile)

    @inlined
    def block_sums(arrays, start, stop, scaled, coefficients, sums, sums_dy):
        here, of_tile = scratch(), scratch_of_sums()
        compute_type = of_tile[:tile], of_tile[tile:]
        of_tile[:] = 0
        sums[:] = 0
        sums_dy[:] = 0
        # Of dx, if it is stored here: a store in two lines costs more than a load from two.
        peel, tiles = cut(arrays[-1])
        # All of a few rows, not a few channels of all: their pages are then read from end to end.
        for begin in range(start, stop, ROWS_BETWEEN_FLUSHES):
            end = min(begin + ROWS_BETWEEN_FLUSHES, stop)
            for number in range(tiles):
                channel, width = tile_of(number, sums.size, peel)
                for k in range(len(copied)):
                    fill(here[k * tile :], coefficients[copied[k]], channel, width)
                given = here, present(scaled, here)
                some_rows(arrays, begin, end, channel, width, given, compute_type)
                flush(compute_type[0][:width], sums[channel : channel + width])
                flush(compute_type[1][:width], sums_dy[channel : channel + width])

    return block_sums


def make_sums_across(element_type: ElementType) -> Kernel:
    """Return a kernel that sums dy * xhat and dy over each block of ``x (outer, channels)``.

    It takes ``dy, x``, the ``coefficients`` of `make_centre_coefficients`, ``block`` and ``sums``, of shape
    ``(2, blocks, channels)``. The first sum is of ``dy * (x * scale - mean_hi) * rstd``.
    """
    block_sums = _make_block_sums(element_type, (0, 1, 2))

    def kernel(dy, x, coefficients, block, sums, first, last):
        mark_noinline()
        arrays, coefficients = (borrowed(dy), borrowed(x)), borrowed(coefficients)
        of_products, of_dy = borrowed(sums)[0], borrowed(sums)[1]
        for p in range(first, last):
            start, stop = p * block, min((p + 1) * block, x.shape[0])
            block_sums(arrays, start, stop, None, coefficients, of_products[p], of_dy[p])

    return make_kernel(f"column_sums.across.{element_type.name}", kernel)


def _make_put_frozen_statistics(element_type: ElementType) -> Callable[..., Any]:
    """Return the `make_put` of `_make_block_sums` that stores dx."""
    to_storage, one = element_type.to_storage, element_type.compute_type(1)
    load_or_scalar, tile = make_load_or_scalar(element_type.lanes), tile_of_gradients(element_type)

    def make_put(access):
        write = access.write

        @inlined
        def put(arrays, i, j, tail, grad, coefficients, t):
            here, scaled = coefficients
            grad = grad * load_or_scalar(scaled, 4 * tile + t, one)
            write(arrays[2][i], j, to_storage(grad * load_or_scalar(here, 3 * tile + t, one)), tail)

        return put

    return make_put


def make_frozen_statistics_across(element_type: ElementType) -> Kernel:
    """Return a kernel for dx, where the statistics are constants, and those sums as well.

    It takes ``dy, x``, the ``coefficients`` of `make_frozen_coefficients`, ``scaled``, which is None if dx is
    to be multiplied by 1, ``block, sums`` and ``dx``.
    """
    copied = 0, 1, 2, 4, 5
    store_block, stream_block = (
        _make_block_sums(
            element_type, copied, _make_put_frozen_statistics(element_type), nontemporal=nontemporal
        )
        for nontemporal in (False, True)
    )
    cut, _ = make_tiles(element_type, tile_of_gradients(element_type))

    def kernel(dy, x, coefficients, scaled, block, sums, dx, first, last):
        mark_noinline()
        arrays, coefficients = (borrowed(dy), borrowed(x), borrowed(dx)), borrowed(coefficients)
        of_products, of_dy = borrowed(sums)[0], borrowed(sums)[1]
        peel, _ = cut(arrays[2])
        nontemporal = use_nontemporal_gradient(arrays[2], dx.shape[1], peel)
        for p in range(first, last):
            start, stop = p * block, min((p + 1) * block, x.shape[0])
            if nontemporal:
                stream_block(arrays, start, stop, scaled, coefficients, of_products[p], of_dy[p])
            else:
                store_block(arrays, start, stop, scaled, coefficients, of_products[p], of_dy[p])
        fence_after_stores(nontemporal)

    return make_kernel(f"column_constant.across.{element_type.name}", kernel)


def make_sums_along(element_type: ElementType) -> Kernel:
    """Return the same kernel as `make_sums_across` for ``x (outer, channels, inner)``."""
    gradient_sums = make_gradient_sums(element_type)

    @inlined
    def block_sums(dy, x, start, stop, c, of_x):
        sum_of_products, sum_dy = np.float64(0), np.float64(0)
        for i in range(start, stop):
            one, two = gradient_sums(dy[i, c], x[i, c], of_x)
            sum_of_products += one
            sum_dy += two
        return sum_of_products, sum_dy

    def kernel(dy, x, coefficients, block, sums, first, last):
        mark_noinline()
        dy, x, coefficients, sums = (
            borrowed(dy),
            borrowed(x),
            borrowed(coefficients),
            borrowed(sums),
        )
        scale, mean_hi, rstd = coefficients[0], coefficients[1], coefficients[2]
        channels = x.shape[1]
        for t in range(first, last):
            p, c = t // channels, t % channels
            start, stop = p * block, min((p + 1) * block, x.shape[0])
            one, two = block_sums(dy, x, start, stop, c, (scale[c], mean_hi[c], rstd[c]))
            sums[0, p, c] = one
            sums[1, p, c] = two

    return make_kernel(f"column_sums.along.{element_type.name}", kernel)


def make_frozen_statistics_along(element_type: ElementType) -> Kernel:
    """Return the same kernel as `make_frozen_statistics_across` for ``x (outer, channels, inner)``."""
    store_run = make_frozen_statistics_gradient(element_type, nontemporal=False)
    stream_run = make_frozen_statistics_gradient(element_type, nontemporal=True)
    peel_of = make_peel(element_type)

    @inlined
    def block_gradient(dy, x, start, stop, c, coefficients, dx, nontemporal):
        of_x, of_dy = coefficients
        sum_of_products, sum_dy = np.float64(0), np.float64(0)
        for i in range(start, stop):
            if nontemporal:
                one, two = stream_run(dy[i, c], x[i, c], of_x, of_dy, dx[i, c])
            else:
                one, two = store_run(dy[i, c], x[i, c], of_x, of_dy, dx[i, c])
            sum_of_products += one
            sum_dy += two
        return sum_of_products, sum_dy

    def kernel(dy, x, coefficients, scaled, block, sums, dx, first, last):
        mark_noinline()
        dy, x, dx = borrowed(dy), borrowed(x), borrowed(dx)
        coefficients, sums = borrowed(coefficients), borrowed(sums)
        scale, mean_hi, rstd = coefficients[0], coefficients[1], coefficients[2]
        factor, back = coefficients[4], present(scaled, coefficients[5])
        channels, run = x.shape[1], x.shape[2]
        nontemporal = use_nontemporal_gradient(dx, run, peel_of(dx, run))
        for t in range(first, last):
            p, c = t // channels, t % channels
            start, stop = p * block, min((p + 1) * block, x.shape[0])
            here = (scale[c], mean_hi[c], rstd[c]), (factor[c], part(back, c))
            one, two = block_gradient(dy, x, start, stop, c, here, dx, nontemporal)
            sums[0, p, c] = one
            sums[1, p, c] = two
        fence_after_stores(nontemporal)

    return make_kernel(f"column_constant.along.{element_type.name}", kernel)


@inlined
def _unpacked(coefficients: Any, scaled: Any, start: int) -> Any:
    scale, back = present(scaled, coefficients[0][start:]), present(scaled, coefficients[7][start:])
    of_x = scale, coefficients[1][start:], coefficients[2][start:]
    return (*of_x, coefficients[4][start:], coefficients[5][start:], coefficients[6][start:], back)


def make_dx_across(element_type: ElementType) -> Kernel:
    """Return a kernel that stores dx for ``x (outer, channels)``.

    It takes ``dy, x``, the ``coefficients`` of `make_gradient_coefficients`, ``scaled``, which is None if every
    power of two there is 1, ``dx``, ``shift`` and ``parts``. Rows are taken from their turn-th
    element on, by which the terms have so many more columns, like the first ones.
    """
    gradient_row, gradient_group = (
        make_gradient_row(element_type),
        make_gradient_group(element_type),
    )
    is_wide, tile = make_is_wide(element_type), tile_of_gradients(element_type)

    def kernel(dy, x, coefficients, scaled, dx, shift, parts, first, last):
        mark_noinline()
        dy, x, dx, coefficients = borrowed(dy), borrowed(x), borrowed(dx), borrowed(coefficients)
        start, stop = first * x.shape[0] // parts, last * x.shape[0] // parts
        # The terms of a row that is a tile stay in the first-level cache from row to row.
        of_rows, in_groups = _unpacked(coefficients, scaled, 0), is_wide(x) and x.shape[1] > tile
        nontemporal = use_nontemporal_gradient(dx, dx.shape[1], shift)
        if shift > 0 and start < stop:
            stop -= 1
            of_head, peel = (dy[start][:shift], x[start][:shift]), dx[start][:shift]
            gradient_row(of_head, of_rows, peel, False)
            of_rows = _unpacked(coefficients, scaled, shift)
            of_tail, tail = (dy[stop][shift:], x[stop][shift:]), dx[stop][shift:]
            gradient_row(of_tail, of_rows, tail, False)
            dy, x, dx = shifted_rows(dy, shift), shifted_rows(x, shift), shifted_rows(dx, shift)
        grouped = stop - (stop - start) % tuning.GROUP_ROWS if in_groups else start
        for i in range(start, grouped, tuning.GROUP_ROWS):
            gradient_group((dy, x), i, of_rows, dx, nontemporal)
        for i in range(grouped, stop):
            gradient_row((dy[i], x[i]), of_rows, dx[i], nontemporal)
        fence_after_stores(nontemporal)

    return make_kernel(f"column_dx.across.{element_type.name}", kernel)


def make_dx_along(element_type: ElementType) -> Kernel:
    """Return the same kernel for ``x (outer, channels, inner)``."""
    gradient_row, peel_of = make_gradient_row(element_type), make_peel(element_type)

    def kernel(dy, x, coefficients, scaled, dx, shift, parts, first, last):
        mark_noinline()
        dy, x, dx = borrowed(dy), borrowed(x), borrowed(dx)
        scale, mean_hi, rstd, factor, grad, offset, back = _unpacked(
            borrowed(coefficients), scaled, 0
        )
        runs = x.shape[0] * x.shape[1]
        nontemporal = use_nontemporal_gradient(dx, dx.shape[2], peel_of(dx, dx.shape[2]))
        for t in range(first * runs // parts, last * runs // parts):
            i, c = t // x.shape[1], t % x.shape[1]
            of_x = part(scale, c), mean_hi[c], rstd[c]
            here = (*of_x, factor[c], grad[c], offset[c], part(back, c))
            gradient_row((dy[i, c], x[i, c]), here, dx[i, c], nontemporal)
        fence_after_stores(nontemporal)

    return make_kernel(f"column_dx.along.{element_type.name}", kernel)
