"""Kernels that normalize channels by given statistics, and kernels for their gradients.

For the gradients, the sums of each channel come first, then dx. With frozen statistics dx does not
depend on the sums, and one kernel computes both.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.columns.loops import (
    make_frozen_statistics_gradient,
    make_gradient_row,
    make_gradient_sums,
    make_output_row,
    make_store_gradient_rows,
    make_store_output_rows,
)
from numnorm.backends.cpu.columns.tile_sums import (
    make_fill,
    make_flush,
    make_gradient_rows,
    make_tiles,
    tile_of_gradients,
)
from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.memory.alignment import make_peel
from numnorm.backends.cpu.memory.kernel_arrays import as_flat, make_scratch, window
from numnorm.backends.cpu.memory.nontemporal import (
    fence_after_stores,
    is_large,
    use_nontemporal,
    use_nontemporal_gradient,
)
from numnorm.backends.cpu.simd.element_type import ElementType, element_type_of
from numnorm.backends.cpu.simd.optional import make_load_or_scalar, part, present
from numnorm.backends.cpu.simd.vector import make_load, multiply_add

# Forward


@inlined
def coefficients_of_output(coefficients: Any, scaled: Any) -> Any:
    """Return scale, mean_hi, factor and offset of all channels."""
    size = coefficients.shape[1]
    scale = present(scaled, window(coefficients, 0, size))
    mean_hi, factor = window(coefficients, size, size), window(coefficients, 2 * size, size)
    return scale, mean_hi, factor, window(coefficients, 3 * size, size)


def make_forward_across(element_type: ElementType) -> Kernel:
    """Return a kernel that normalizes ``x (outer, channels)``.

    Its arguments are ``x``, the ``coefficients`` of `make_output_coefficients`, ``scaled``, which
    is None if every scale is 1, ``y``, ``shift`` and ``parts``. If ``shift`` is not 0, it works on
    shifted rows, and the first ``shift`` columns of ``coefficients`` follow the last ones.
    """
    output_rows = make_store_output_rows(element_type)
    least_width = tuning.GROUP_LEAST_ROW_BYTES // element_type.storage_dtype.itemsize

    def kernel(x, coefficients, scaled, y, shift, parts, first, last):
        count, width = x.shape
        rows = first * count // parts, last * count // parts
        # Groups of rows gain only where x comes from memory: caches are faster row by row.
        in_groups = width >= least_width and is_large(y)
        nontemporal = use_nontemporal(y, width, shift)
        given, how = coefficients_of_output(coefficients, scaled), (in_groups, nontemporal)
        output_rows((as_flat(x),), rows, width, shift, given, as_flat(y), how)
        fence_after_stores(nontemporal)

    return make_kernel(f"column_forward.across.{element_type.name}", kernel)


def make_forward_along(element_type: ElementType) -> Kernel:
    """Return a kernel that normalizes ``x (outer, channels, inner)``.

    It has the arguments of the kernel of `make_forward_across`, and ignores ``shift``.
    """
    output_row, peel_of = make_output_row(element_type), make_peel(element_type)

    def kernel(x, coefficients, scaled, y, shift, parts, first, last):
        outer, channels, inner = x.shape
        x, y = as_flat(x), as_flat(y)
        scale, mean_hi, factor, offset = coefficients_of_output(coefficients, scaled)
        segments = outer * channels
        nontemporal = use_nontemporal(y, inner, peel_of(y, inner))
        for t in range(first * segments // parts, last * segments // parts):
            c = t % channels
            of_channel = part(scale, c), mean_hi[c], factor[c], offset[c]
            output_row((x,), t * inner, inner, of_channel, 0, y, nontemporal)
        fence_after_stores(nontemporal)

    return make_kernel(f"column_forward.along.{element_type.name}", kernel)


# Gradients


@inlined
def _put_nothing(arrays: Any, j: int, active: Any, grad: Any, coefficients: Any, t: int) -> None:
    pass


def _make_block_sums(
    element_type: ElementType,
    rows: tuple[int, ...],
    make_put: Callable[..., Any] = lambda access: _put_nothing,
    *,
    nontemporal: bool = False,
) -> Callable[..., Any]:
    """Return a compiled loop over the tiles of a block of rows of ``x (outer, channels)``.

    ``block_sums(arrays, target, start, stop, scaled, coefficients, sums, p)`` stores the sums of
    ``dy * (x * scale - mean_hi) * rstd`` and of dy in block p of `sums`. The arrays are flat, and
    `target` is the 2-D array that tiles are aligned to. ``make_put(access)`` returns a compiled
    ``put(arrays, j, active, grad, (loaded, scaled), t)``, which may store a result of a vector of
    dy. ``loaded`` holds a tile of each of the `rows` of the coefficients, one after the other, and
    ``scaled`` is the same array, or None if nothing is scaled.
    """
    real, to_compute = element_type.compute_type, element_type.to_compute
    tile = tile_of_gradients(element_type)
    load, whole_row = make_load(element_type.lanes), np.int64(tile)
    fill = make_fill(element_type_of(element_type.compute_dtype))
    flush = make_flush(tile)

    def make_add(access):
        read, put = access.read, make_put(access)

        @inlined
        def add(arrays, j, active, coefficients, t, sums):
            loaded, _ = coefficients
            grad = to_compute(read(arrays[0], j, active))
            x = to_compute(read(arrays[1], j, active))
            deviation = x * load(loaded, t) - load(loaded, tile + t)
            xhat = deviation * load(loaded, 2 * tile + t)
            added = multiply_add(grad, xhat, sums[0]), sums[1] + grad
            put(arrays, j, active, grad, coefficients, t)
            return added

        return add

    tiling_of, tile_of = make_tiles(element_type)
    some_rows = make_gradient_rows(element_type, make_add, nontemporal=nontemporal)
    scratch, scratch_of_sums = make_scratch(real, len(rows) * tile), make_scratch(real, 2 * tile)

    @inlined
    def block_sums(arrays, target, start, stop, scaled, coefficients, sums, p):
        loaded, of_tile, totals = scratch(), scratch_of_sums(), as_flat(sums)
        _, blocks, channels = sums.shape
        table, stride = as_flat(coefficients), coefficients.shape[1]
        products, sums_dy = p * channels, (blocks + p) * channels
        for t in range(2 * tile):
            of_tile[t] = 0
        one, other = window(totals, products, channels), window(totals, sums_dy, channels)
        for c in range(channels):
            one[c] = 0
            other[c] = 0
        peel, tiles = tiling_of(target, whole_row)
        # All channels of a few rows, not a few channels of all rows, so that pages are read whole.
        for begin in range(start, stop, tuning.ROWS_BETWEEN_FLUSHES):
            end = begin + tuning.ROWS_BETWEEN_FLUSHES
            end = end if end < stop else stop
            for number in range(tiles):
                c, width = tile_of(number, channels, whole_row, peel)
                for k in range(len(rows)):
                    fill(loaded, k * tile, table, rows[k] * stride + c, width)
                given = loaded, present(scaled, loaded)
                some_rows(arrays, begin, end, channels, c, width, given, of_tile)
                flush(of_tile, width, totals, products + c, sums_dy + c)

    return block_sums


def make_sums_across(element_type: ElementType) -> Kernel:
    """Return a kernel that sums dy * xhat and dy over each block of ``x (outer, channels)``.

    Its arguments are ``dy, x``, the ``coefficients`` of `make_centre_coefficients`, the ``block``
    size in rows, and ``sums (2, blocks, channels)``, which become the sums of
    ``dy * (x * scale - mean_hi) * rstd`` and of dy.
    """
    block_sums = _make_block_sums(element_type, (0, 1, 2))

    def kernel(dy, x, coefficients, block, sums, first, last):
        arrays = as_flat(dy), as_flat(x)
        for p in range(first, last):
            start, stop = p * block, min((p + 1) * block, x.shape[0])
            block_sums(arrays, x, start, stop, None, coefficients, sums, p)

    return make_kernel(f"column_sums.across.{element_type.name}", kernel)


def _make_put_frozen_statistics(element_type: ElementType) -> Callable[..., Any]:
    """Return the `make_put` of `_make_block_sums` that stores dx."""
    to_storage, one = element_type.to_storage, element_type.compute_type(1)
    load_or_scalar, tile = make_load_or_scalar(element_type.lanes), tile_of_gradients(element_type)

    def make_put(access):
        write = access.write

        @inlined
        def put(arrays, j, active, grad, coefficients, t):
            loaded, scaled = coefficients
            grad = grad * load_or_scalar(scaled, 4 * tile + t, one)
            dx = grad * load_or_scalar(loaded, 3 * tile + t, one)
            write(arrays[2], j, to_storage(dx), active)

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
    tiling_of, _ = make_tiles(element_type)
    whole_row = np.int64(tile_of_gradients(element_type))

    def kernel(dy, x, coefficients, scaled, block, sums, dx, first, last):
        arrays = as_flat(dy), as_flat(x), as_flat(dx)
        # Tiles are aligned to dx: an unaligned store costs more than an unaligned load.
        peel, _ = tiling_of(dx, whole_row)
        nontemporal = use_nontemporal_gradient(dx, dx.shape[1], peel)
        for p in range(first, last):
            start, stop = p * block, min((p + 1) * block, x.shape[0])
            if nontemporal:
                store_block_nontemporal(arrays, dx, start, stop, scaled, coefficients, sums, p)
            else:
                store_block(arrays, dx, start, stop, scaled, coefficients, sums, p)
        fence_after_stores(nontemporal)

    return make_kernel(f"column_frozen_statistics.across.{element_type.name}", kernel)


def _make_channel_sums(
    element_type: ElementType, segment_sums: Callable[..., Any], *, peels: bool
) -> Callable[..., Any]:
    """Return a compiled ``channel_sums(arrays, shape, rows, c, stats, factors)``.

    It adds up ``segment_sums`` over the segments of channel c in the rows from ``rows[0]`` to
    ``rows[1]`` - 1. The arrays are flat, with this `shape`. With `peels`, segments are peeled to
    cache lines of the last array.
    """
    peel_of = make_peel(element_type)

    @inlined
    def channel_sums(arrays, shape, rows, c, stats, factors):
        _, channels, inner = shape
        product, sum_dy = np.float64(0), np.float64(0)
        for i in range(rows[0], rows[1]):
            begin = (i * channels + c) * inner
            peel = peel_of(window(arrays[-1], begin, inner), inner) if peels else 0
            one, two = segment_sums(arrays, begin, inner, peel, stats, factors)
            product += one
            sum_dy += two
        return product, sum_dy

    return channel_sums


def make_sums_along(element_type: ElementType) -> Kernel:
    """Return the kernel of `make_sums_across` for ``x (outer, channels, inner)``."""
    gradient_sums = make_gradient_sums(element_type)
    channel_sums = _make_channel_sums(element_type, gradient_sums, peels=False)

    def kernel(dy, x, coefficients, block, sums, first, last):
        arrays = as_flat(dy), as_flat(x)
        channels = x.shape[1]
        for t in range(first, last):
            p, c = t // channels, t % channels
            rows = p * block, min((p + 1) * block, x.shape[0])
            stats = coefficients[0, c], coefficients[1, c], coefficients[2, c]
            sums[0, p, c], sums[1, p, c] = channel_sums(arrays, x.shape, rows, c, stats, None)

    return make_kernel(f"column_sums.along.{element_type.name}", kernel)


def make_frozen_statistics_along(element_type: ElementType) -> Kernel:
    """Return the kernel of `make_frozen_statistics_across` for ``x (outer, channels, inner)``."""

    def make_gradient(nontemporal):
        gradient = make_frozen_statistics_gradient(element_type, nontemporal=nontemporal)
        return _make_channel_sums(element_type, gradient, peels=True)

    store_channel, store_channel_nontemporal = make_gradient(False), make_gradient(True)
    peel_of = make_peel(element_type)

    def kernel(dy, x, coefficients, scaled, block, sums, dx, first, last):
        arrays = as_flat(dy), as_flat(x), as_flat(dx)
        channels, inner = x.shape[1], x.shape[2]
        nontemporal = use_nontemporal_gradient(dx, inner, peel_of(dx, inner))
        for t in range(first, last):
            p, c = t // channels, t % channels
            rows = p * block, min((p + 1) * block, x.shape[0])
            stats = coefficients[0, c], coefficients[1, c], coefficients[2, c]
            factors = coefficients[4, c], present(scaled, coefficients[5, c])
            if nontemporal:
                one, two = store_channel_nontemporal(arrays, x.shape, rows, c, stats, factors)
            else:
                one, two = store_channel(arrays, x.shape, rows, c, stats, factors)
            sums[0, p, c], sums[1, p, c] = one, two
        fence_after_stores(nontemporal)

    return make_kernel(f"column_frozen_statistics.along.{element_type.name}", kernel)


@inlined
def coefficients_of_gradient(coefficients: Any, scaled: Any) -> Any:
    """Return the coefficients of `channel_gradient` of all channels."""
    size = coefficients.shape[1]
    scale = present(scaled, window(coefficients, 0, size))
    mean_hi, rstd = window(coefficients, size, size), window(coefficients, 2 * size, size)
    factor, xhat_factor = (
        window(coefficients, 4 * size, size),
        window(coefficients, 5 * size, size),
    )
    offset, back = window(coefficients, 6 * size, size), window(coefficients, 7 * size, size)
    return scale, mean_hi, rstd, factor, xhat_factor, offset, present(scaled, back)


def make_dx_across(element_type: ElementType) -> Kernel:
    """Return a kernel that stores dx for ``x (outer, channels)``.

    Its arguments are ``dy, x``, the ``coefficients`` of `make_gradient_coefficients`, ``scaled``,
    which is None if every scale and back is 1, ``dx``, ``shift`` and ``parts``. If ``shift`` is not
    0, it works on shifted rows, and the first ``shift`` columns of ``coefficients`` follow the last
    ones.
    """
    gradient_rows = make_store_gradient_rows(element_type)
    tile = tile_of_gradients(element_type)
    least_width = tuning.GROUP_LEAST_ROW_BYTES // element_type.storage_dtype.itemsize

    def kernel(dy, x, coefficients, scaled, dx, shift, parts, first, last):
        count, width = x.shape
        rows = first * count // parts, last * count // parts
        # The coefficients of a row of one tile stay in the first-level cache from row to row.
        in_groups = width >= least_width and width > tile
        nontemporal = use_nontemporal_gradient(dx, width, shift)
        arrays, how = (as_flat(dy), as_flat(x)), (in_groups, nontemporal)
        given = coefficients_of_gradient(coefficients, scaled)
        gradient_rows(arrays, rows, width, shift, given, as_flat(dx), how)
        fence_after_stores(nontemporal)

    return make_kernel(f"column_dx.across.{element_type.name}", kernel)


def make_dx_along(element_type: ElementType) -> Kernel:
    """Return a kernel that stores dx for ``x (outer, channels, inner)``.

    It has the arguments of the kernel of `make_dx_across`, and ignores ``shift``.
    """
    gradient_row, peel_of = make_gradient_row(element_type), make_peel(element_type)

    def kernel(dy, x, coefficients, scaled, dx, shift, parts, first, last):
        outer, channels, inner = x.shape
        arrays, dx = (as_flat(dy), as_flat(x)), as_flat(dx)
        given = coefficients_of_gradient(coefficients, scaled)
        scale, mean_hi, rstd, factor, xhat_factor, offset, back = given
        segments = outer * channels
        nontemporal = use_nontemporal_gradient(dx, inner, peel_of(dx, inner))
        for t in range(first * segments // parts, last * segments // parts):
            c = t % channels
            stats = part(scale, c), mean_hi[c], rstd[c]
            of_channel = (*stats, factor[c], xhat_factor[c], offset[c], part(back, c))
            gradient_row(arrays, t * inner, inner, of_channel, 0, dx, nontemporal)
        fence_after_stores(nontemporal)

    return make_kernel(f"column_dx.along.{element_type.name}", kernel)
