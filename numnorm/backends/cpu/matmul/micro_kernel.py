"""Micro-kernels of matrix products, which keep the sums of a tile of the result in registers.

The right-hand matrix b is packed into panels: blocks of columns, one vector wide, each with its
rows one after the other. The last panel is padded with zeros. Every element of the result is one
sum over the depth, in order, so that its bytes do not depend on the other rows and columns, which
no BLAS promises.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.simd.masked import masked_load_at, masked_store_at
from numnorm.backends.cpu.simd.processor import has_avx512
from numnorm.backends.cpu.simd.vector import (
    FLAGS,
    compiled_as,
    constant,
    load_from,
    prefetch_at,
    splat,
    store_at,
)


class Tiling(NamedTuple):
    """The sizes of the tiles: the sums of the largest tile must fit the registers.

    Attributes
    ----------
    rows : tuple of int
        The rows of the tiles that are several panels wide, largest first.
    panels : int
        The panels of these tiles.
    few_rows : tuple of tuple of int
        Pairs (rows, panels), fewest rows first: the tiles of a matrix with at most `rows` rows are
        `panels` wide instead. Narrower tiles would have too few independent sums.
    single_panel_rows : tuple of int
        The rows of the tiles that are one panel wide, for the remaining columns.
    shared_rows : int
        Up to this many remaining rows share two smaller tiles with the rows of the last largest
        tile. Alone they would have too few independent sums.
    depth : int
        How much of a deep product with few columns is summed before it is stored. With AVX-512
        storing is the slower part; with AVX2 more of a panel would leave the first-level cache.
    """

    rows: tuple[int, ...]
    panels: int
    few_rows: tuple[tuple[int, int], ...]
    single_panel_rows: tuple[int, ...]
    shared_rows: int
    depth: int


@functools.cache
def tiling() -> Tiling:
    """Return the tiles for this processor."""
    if has_avx512():
        return Tiling(tuple(range(12, 0, -1)), 2, ((2, 8), (4, 4)), (12, 4, 1), 0, 512)
    return Tiling((6, 4, 3, 2, 1), 1, ((1, 4), (2, 2)), (6, 4, 2, 1), 2, 256)


@functools.cache
def make_matmul(lanes: int, *, accumulate: bool) -> Callable[..., Any]:
    """Return a compiled product of some rows of a matrix with a packed matrix.

    ``matmul(a, at, row, step, rows, b, b_at, panel, depth, c, c_at, c_row, width)`` stores
    ``sum(a[at + r * row + k * step] * b[k, n])`` over k < depth at ``c[c_at + r * c_row + n]``,
    for r < rows and n < width. With `accumulate` it adds to c instead. The arrays are flat. The
    first panel of b begins at `b_at`, and panels begin `panel` elements apart.
    """
    sizes = tiling()
    (fewest, fewest_panels), (few, few_panels) = sizes.few_rows
    groups = _make_groups(sizes.rows, sizes.panels, lanes, accumulate=accumulate)
    fewest_groups = _make_groups(range(fewest, 0, -1), fewest_panels, lanes, accumulate=accumulate)
    few_groups = _make_groups(range(few, fewest, -1), few_panels, lanes, accumulate=accumulate)
    single = _make_rows(sizes.single_panel_rows, 1, lanes, accumulate=accumulate, partial=True)

    @inlined
    def matmul(a, at, row, step, rows, b, b_at, panel, depth, c, c_at, c_row, width):
        full, p = width // lanes, 0
        left, right, target = (a, at, row, step, rows), (b, b_at, panel, depth), (c, c_at, c_row)
        if rows <= fewest:
            p = fewest_groups(left, right, target, p, full)
        elif rows <= few:
            p = few_groups(left, right, target, p, full)
        grouped = groups(left, right, target, p, full)
        for p in range(grouped, -(-width // lanes)):
            b_p, c_p, tail = b_at + p * panel, c_at + p * lanes, min(lanes, width - p * lanes)
            single(a, at, row, step, rows, b, b_p, b_p, panel, depth, c, c_p, c_row, tail)

    return matmul


def _make_groups(sizes: Sequence[int], panels: int, lanes: int, *, accumulate: bool) -> Any:
    """Return a compiled product of all rows with groups of `panels` full panels.

    ``groups(left, right, target, first, full)`` starts at panel `first`, takes the arguments of
    `make_matmul`'s function as tuples, and returns the first panel that is left of `full` panels.
    """
    all_rows = _make_rows(sizes, panels, lanes, accumulate=accumulate, partial=False)

    @inlined
    def groups(left, right, target, first, full):
        (a, at, row, step, rows), (b, b_at, panel, depth) = left, right
        c, c_at, c_row = target
        stop = full - (full - first) % panels
        for p in range(first, stop, panels):
            following = p + panels if p + panels < stop else first
            b_p, next_p, c_p = b_at + p * panel, b_at + following * panel, c_at + p * lanes
            all_rows(a, at, row, step, rows, b, b_p, next_p, panel, depth, c, c_p, c_row, 0)
        return stop

    return groups


def _make_rows(
    sizes: Sequence[int], panels: int, lanes: int, *, accumulate: bool, partial: bool
) -> Callable[..., Any]:
    """Return a compiled product of all rows with some panels, in tiles of these `sizes`.

    It has the signature of `_make_tiles`.
    """
    tiles: Any = None
    for rows in reversed(sizes):
        tiles = _make_tiles(rows, panels, lanes, tiles, accumulate=accumulate, partial=partial)
    return tiles


@inlined
def _tiled_rows(rows: int, count: int, shared: int) -> int:
    """Return how many of the rows to process in tiles of `count` rows."""
    left = rows % count
    tiled = rows - left
    return tiled - count if 0 < left <= shared and tiled > 0 else tiled


def _make_tiles(
    count: int, panels: int, lanes: int, smaller: Any, *, accumulate: bool, partial: bool
) -> Callable[..., Any]:
    """Return a compiled product in tiles of `count` rows, with `smaller` tiles for the others.

    ``tiles(a, at, row, step, rows, b, b_at, b_next, panel, depth, c, c_at, c_row, tail)`` has
    the arguments of `make_matmul`'s function, except for `b_next` and `tail`: see `_make_tile`.
    """
    tile = _make_tile(count, panels, lanes, accumulate=accumulate, partial=partial)
    shared = tiling().shared_rows if count == tiling().rows[0] else 0

    @inlined
    def tiles(a, at, row, step, rows, b, b_at, b_next, panel, depth, c, c_at, c_row, tail):
        prefetched = 0
        for r in range(0, _tiled_rows(rows, count, shared), count):
            a_r, c_r, next_p = at + r * row, c_at + r * c_row, b_next + prefetched * panel
            tile(a, a_r, row, step, b, b_at, next_p, panel, depth, c, c_r, c_row, tail)
            prefetched = prefetched + 1 if prefetched + 1 < panels else 0

    if smaller is None:
        return tiles

    @inlined
    def all_tiles(a, at, row, step, rows, b, b_at, b_next, panel, depth, c, c_at, c_row, tail):
        tiles(a, at, row, step, rows, b, b_at, b_next, panel, depth, c, c_at, c_row, tail)
        done = _tiled_rows(rows, count, shared)
        left = rows - done
        if left > 0:
            a_r, c_r = at + done * row, c_at + done * c_row
            smaller(a, a_r, row, step, left, b, b_at, b_next, panel, depth, c, c_r, c_row, tail)

    return all_tiles


def _make_tile(
    rows: int, panels: int, lanes: int, *, accumulate: bool, partial: bool
) -> Callable[..., Any]:
    """Return a compiled product of one tile.

    ``tile(a, at, row, step, b, b_at, b_next, panel, depth, c, c_at, c_row, tail)`` also
    prefetches the panel of b that begins at `b_next` into the second-level cache: the first
    tiles of the next panels would wait for it. If it is `partial`, c has only the first `tail`
    columns of the panel.
    """

    def plain(a, at, row, step, b, b_at, b_next, panel, depth, c, c_at, c_row, tail):
        width = tail if partial else lanes
        for r in range(rows):
            for p in range(panels):
                start = c_at + r * c_row + p * lanes
                span = slice(start, start + width)
                total = np.zeros(width, c.dtype)
                for k in range(depth):
                    left = b_at + p * panel + k * lanes
                    total += a[at + r * row + k * step] * b[left : left + width]
                c[span] = c[span] + total if accumulate else total

    @compiled_as(plain)
    def tile(typing_context, a, at, row, step, b, b_at, b_next, panel, depth, c, c_at, c_row, tail):
        numbers = [types.intp] * 3
        kinds = (a, *numbers, b, *numbers, types.intp, c, *numbers)

        def generate(context, builder, signature, arguments):
            left, right, target = (
                _element(context, builder, signature.args[i], arguments[i], arguments[i + 1])
                for i in (0, 4, 9)
            )
            _, _, row, step, _, _, _, panel, depth, _, _, c_row, tail = arguments
            following = _element(context, builder, signature.args[4], arguments[4], arguments[6])
            block = _Block(builder, rows, panels, ir.VectorType(left.type.pointee, lanes))
            block.begin(target, c_row, accumulate=accumulate)
            with cgutils.for_range(builder, depth) as loop:
                block.prefetch(following, loop.index)
                block.add(left, loop.index, row, step, right, panel)
            block.end(tail if partial else None, accumulate=accumulate)
            return context.get_dummy_value()

        return types.void(*kinds), generate

    return tile


class _Block:
    """The instructions of a tile; LLVM keeps the sums in registers."""

    def __init__(self, builder: Any, rows: int, panels: int, kind: Any) -> None:
        self.builder, self.rows, self.panels, self.kind = builder, rows, panels, kind
        self.keys = [(r, p) for r in range(rows) for p in range(panels)]
        self.sums = {key: cgutils.alloca_once(builder, kind) for key in self.keys}
        self.spans: dict[tuple[int, int], Any] = {}

    def begin(self, target: Any, row: Any, *, accumulate: bool) -> None:
        """Start the sums at 0 and prefetch the elements of c."""
        for r, p in self.keys:
            c_row = self.builder.gep(target, [self.builder.mul(row, _size(r))])
            span = self._vector_at(c_row, _size(p * self.kind.count))
            prefetch_at(self.builder, span)
            self.builder.store(constant(self.kind, 0.0), self.sums[r, p])
            self.spans[r, p] = span

    def prefetch(self, following: Any, k: Any) -> None:
        """Prefetch row k of the next panel into the second-level cache."""
        panel_row = self.builder.gep(following, [self.builder.mul(k, _size(self.kind.count))])
        prefetch_at(self.builder, panel_row, 2)

    def add(self, left: Any, k: Any, row: Any, step: Any, right: Any, panel: Any) -> None:
        """Add the products of column k of a and row k of b."""
        builder = self.builder
        panel_row = builder.gep(right, [builder.mul(k, _size(self.kind.count))])
        columns = [
            load_from(builder, self._vector_at(panel_row, builder.mul(panel, _size(p))))
            for p in range(self.panels)
        ]
        element = builder.gep(left, [builder.mul(k, step)])
        for r in range(self.rows):
            value = splat(builder, builder.load(element), self.kind.count)
            for p in range(self.panels):
                product = builder.fmul(value, columns[p], flags=FLAGS)
                total = builder.fadd(builder.load(self.sums[r, p]), product, flags=FLAGS)
                builder.store(total, self.sums[r, p])
            element = builder.gep(element, [row])

    def end(self, tail: Any, *, accumulate: bool) -> None:
        """Store the sums in c, or add them to it."""
        builder = self.builder
        for key, span in self.spans.items():
            total = builder.load(self.sums[key])
            if accumulate and tail is not None:
                before = masked_load_at(builder, span, (_size(0), tail))
                total = builder.fadd(before, total, flags=FLAGS)
            elif accumulate:
                total = builder.fadd(load_from(builder, span), total, flags=FLAGS)
            if tail is None:
                store_at(builder, span, total)
            else:
                masked_store_at(builder, span, total, (_size(0), tail))

    def _vector_at(self, start: Any, offset: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(start, [offset]), self.kind.as_pointer())


def _size(number: int) -> Any:
    return ir.Constant(ir.IntType(64), number)


def _element(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])
