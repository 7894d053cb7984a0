"""Products of matrices, a tile of the result at a time, with each sum in a register.

The right-hand matrix is packed: cut into panels as wide as there are lanes, with a panel's rows
one after the other. Every element of the result is one sum over the depth, in order: it is the
same bytes whichever rows stand beside its own, which no BLAS promises.
"""

import functools
from collections.abc import Callable
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
    """How many rows and panels a tile has: the sums of the largest must fit the registers.

    A tile of fewer rows reads the panels as often, from wherever they are.

    Attributes
    ----------
    rows : tuple of int
        Those of the tiles of several panels, the most first.
    panels : int
        How many panels these have.
    few : tuple of tuple of int
        Up to how many rows in all, fewest first, a tile has how many panels instead: there would
        be too few sums beside each other, each of which waits for its last product.
    rows_of_one : tuple of int
        The rows of tiles of one panel, for what is left of the columns.
    shared : int
        Up to so many rows that are left share two tiles with those of the last largest one: alone
        they would have too few sums for the processor to work on while it waits for each.
    depth : int
        How much of a deep product with few columns is summed before it is stored: more with
        AVX-512, where to store sums takes longer beside them; with AVX2 the panels would leave the
        first-level cache.
    """

    rows: tuple[int, ...]
    panels: int
    few: tuple[tuple[int, int], ...]
    rows_of_one: tuple[int, ...]
    shared: int
    depth: int


@functools.cache
def tiling() -> Tiling:
    """Return the tiles for this processor."""
    if has_avx512():
        return Tiling(tuple(range(12, 0, -1)), 2, ((2, 8), (4, 4)), (12, 4, 1), 0, 512)
    return Tiling((6, 4, 3, 2, 1), 1, ((1, 4), (2, 2)), (6, 4, 2, 1), 2, 256)


@functools.cache
def make_matmul(lanes: int, *, accumulate: bool) -> Callable[..., Any]:
    """Return a compiled product of some rows with a packed matrix.

    ``matmul(a, at, row, step, rows, b, b_at, panel, depth, c, c_at, c_row, width)`` stores
    ``sum(a[at + r * row + k * step] * b[k, n])`` over k < depth at ``c[c_at + r * c_row + n]``,
    or adds it there if `accumulate` is true. The arrays are flat; the panels of b lie `panel` elements
    apart, and the first begins at `b_at`.
    """
    sizes = tiling()
    (fewest, more), (few, some) = sizes.few
    along = _make_along(sizes.rows, sizes.panels, lanes, accumulate=accumulate)
    along_fewest = _make_along(tuple(range(fewest, 0, -1)), more, lanes, accumulate=accumulate)
    along_few = _make_along(tuple(range(few, fewest, -1)), some, lanes, accumulate=accumulate)
    one = _make_columns(sizes.rows_of_one, 1, lanes, accumulate=accumulate, partial=True)

    @inlined
    def matmul(a, at, row, step, rows, b, b_at, panel, depth, c, c_at, c_row, width):
        whole, p = width // lanes, 0
        left, right, target = (a, at, row, step, rows), (b, b_at, panel, depth), (c, c_at, c_row)
        if rows <= fewest:
            p = along_fewest(left, right, target, p, whole)
        elif rows <= few:
            p = along_few(left, right, target, p, whole)
        grouped = along(left, right, target, p, whole)
        for p in range(grouped, -(-width // lanes)):
            here, active, tail = b_at + p * panel, c_at + p * lanes, min(lanes, width - p * lanes)
            one(a, at, row, step, rows, b, here, here, panel, depth, c, active, c_row, tail)

    return matmul


def _make_along(sizes: tuple[int, ...], together: int, lanes: int, *, accumulate: bool) -> Any:
    """Return a compiled function for as many whole groups of panels as there are from one on.

    ``along(left, right, target, first, whole)`` takes the arguments of a product, and returns the
    first panel that is left of so many.
    """
    columns = _make_columns(sizes, together, lanes, accumulate=accumulate, partial=False)

    @inlined
    def along(left, right, target, first, whole):
        (a, at, row, step, rows), (b, b_at, panel, depth) = left, right
        c, c_at, c_row = target
        stop = whole - (whole - first) % together
        for p in range(first, stop, together):
            here, following = b_at + p * panel, p + together if p + together < stop else first
            ahead, active = b_at + following * panel, c_at + p * lanes
            columns(a, at, row, step, rows, b, here, ahead, panel, depth, c, active, c_row, 0)
        return stop

    return along


def _make_columns(
    sizes: tuple[int, ...], panels: int, lanes: int, *, accumulate: bool, partial: bool
) -> Callable[..., Any]:
    """Return a compiled function of some panels that takes all rows in tiles of these sizes."""
    columns: Any = None
    for rows in reversed(sizes):
        columns = _make_tiles(rows, panels, lanes, columns, accumulate=accumulate, partial=partial)
    return columns


@inlined
def _taken(rows: int, count: int, shared: int) -> int:
    """Return how many of some rows are taken in tiles of `count`."""
    left = rows % count
    taken = rows - left
    return taken - count if 0 < left <= shared and taken > 0 else taken


def _make_tiles(
    count: int, panels: int, lanes: int, fewer: Any, *, accumulate: bool, partial: bool
) -> Callable[..., Any]:
    """Return a compiled function that takes what rows it can with a tile, and then fewer."""
    tile = _make_tile(count, panels, lanes, accumulate=accumulate, partial=partial)
    shared = tiling().shared if count == tiling().rows[0] else 0

    @inlined
    def tiles(a, at, row, step, rows, b, b_at, ahead, panel, depth, c, c_at, c_row, tail):
        prefetched = 0
        for r in range(0, _taken(rows, count, shared), count):
            here, active, next_ = at + r * row, c_at + r * c_row, ahead + prefetched * panel
            tile(a, here, row, step, b, b_at, next_, panel, depth, c, active, c_row, tail)
            prefetched = prefetched + 1 if prefetched + 1 < panels else 0

    if fewer is None:
        return tiles

    @inlined
    def all_tiles(a, at, row, step, rows, b, b_at, ahead, panel, depth, c, c_at, c_row, tail):
        tiles(a, at, row, step, rows, b, b_at, ahead, panel, depth, c, c_at, c_row, tail)
        done = _taken(rows, count, shared)
        left = rows - done
        if left > 0:
            here, active = at + done * row, c_at + done * c_row
            fewer(a, here, row, step, left, b, b_at, ahead, panel, depth, c, active, c_row, tail)

    return all_tiles


def _make_tile(
    rows: int, panels: int, lanes: int, *, accumulate: bool, partial: bool
) -> Callable[..., Any]:
    """Return a compiled function of one tile.

    It is ``tile(a, at, row, step, b, b_at, ahead, panel, depth, c, c_at, c_row, tail)``, and asks
    for the panel of b that begins `ahead`: the first tiles of some panels, which would wait for
    the third-level cache, find theirs in the second. If it is partial, only the first `tail`
    columns of its panel are there.
    """

    def plain(a, at, row, step, b, b_at, ahead, panel, depth, c, c_at, c_row, tail):
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
    def tile(typing_context, a, at, row, step, b, b_at, ahead, panel, depth, c, c_at, c_row, tail):
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
    """The instructions of a tile, whose sums LLVM keeps in registers."""

    def __init__(self, builder: Any, rows: int, panels: int, kind: Any) -> None:
        self.builder, self.rows, self.panels, self.kind = builder, rows, panels, kind
        self.keys = [(r, p) for r in range(rows) for p in range(panels)]
        self.sums = {key: cgutils.alloca_once(builder, kind) for key in self.keys}
        self.spans: dict[tuple[int, int], Any] = {}

    def begin(self, target: Any, row: Any, *, accumulate: bool) -> None:
        """Begin with 0, and ask for what the sums will be added to."""
        for r, p in self.keys:
            line = self.builder.gep(target, [self.builder.mul(row, _size(r))])
            span = self._lanes_at(line, _size(p * self.kind.count))
            prefetch_at(self.builder, span)
            self.builder.store(constant(self.kind, 0.0), self.sums[r, p])
            self.spans[r, p] = span

    def prefetch(self, following: Any, k: Any) -> None:
        """Ask for a row of a panel that will be needed, in the second-level cache."""
        along = self.builder.gep(following, [self.builder.mul(k, _size(self.kind.count))])
        prefetch_at(self.builder, along, 2)

    def add(self, left: Any, k: Any, row: Any, step: Any, right: Any, panel: Any) -> None:
        """Add the products of one column of a and one row of b."""
        builder = self.builder
        along = builder.gep(right, [builder.mul(k, _size(self.kind.count))])
        columns = [
            load_from(builder, self._lanes_at(along, builder.mul(panel, _size(p))))
            for p in range(self.panels)
        ]
        span = builder.gep(left, [builder.mul(k, step)])
        for r in range(self.rows):
            value = splat(builder, builder.load(span), self.kind.count)
            for p in range(self.panels):
                matmul = builder.fmul(value, columns[p], flags=FLAGS)
                total = builder.fadd(builder.load(self.sums[r, p]), matmul, flags=FLAGS)
                builder.store(total, self.sums[r, p])
            span = builder.gep(span, [row])

    def end(self, tail: Any, *, accumulate: bool) -> None:
        """Store the sums, or add them to what is there."""
        builder = self.builder
        for key, span in self.spans.items():
            total = builder.load(self.sums[key])
            if accumulate and tail is not None:
                total = builder.fadd(
                    masked_load_at(builder, span, (_size(0), tail)), total, flags=FLAGS
                )
            elif accumulate:
                total = builder.fadd(load_from(builder, span), total, flags=FLAGS)
            if tail is None:
                store_at(builder, span, total)
            else:
                masked_store_at(builder, span, total, (_size(0), tail))

    def _lanes_at(self, start: Any, offset: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(start, [offset]), self.kind.as_pointer())


def _size(number: int) -> Any:
    return ir.Constant(ir.IntType(64), number)


def _element(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])
