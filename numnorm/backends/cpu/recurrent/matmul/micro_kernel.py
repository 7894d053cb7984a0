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

    def plain(a, at, row, step, rows, b, b_at, panel, depth, c, c_at, c_row, width):
        for r in range(rows):
            for n in range(0, width, lanes):
                columns, start = min(lanes, width - n), c_at + r * c_row + n
                total = np.zeros(columns, c.dtype)
                for k in range(depth):
                    right = b_at + n // lanes * panel + k * lanes
                    total += a[at + r * row + k * step] * b[right : right + columns]
                span = slice(start, start + columns)
                c[span] = c[span] + total if accumulate else total

    @compiled_as(plain)
    def matmul(
        typing_context, a, at, row, step, rows, b, b_at, panel, depth, c, c_at, c_row, width
    ):
        number = types.intp
        kinds = a, *[number] * 4, b, *[number] * 3, c, *[number] * 3

        def generate(context, builder, signature, arguments):
            left, right, target = (
                _element(context, builder, signature.args[i], arguments[i], arguments[i + 1])
                for i in (0, 5, 9)
            )
            _, _, row, step, rows, _, _, panel, depth, _, _, c_row, width = arguments
            values = left, row, step, rows, right, panel, depth, target, c_row, width
            builder.call(_product(builder.module, left.type, lanes, accumulate), values)
            return context.get_dummy_value()

        return types.void(*kinds), generate

    return matmul


class _Operands(NamedTuple):
    """The arguments of a product's LLVM function: `make_matmul`'s, with addresses for arrays."""

    a: Any
    row: Any
    step: Any
    rows: Any
    b: Any
    panel: Any
    depth: Any
    c: Any
    c_row: Any
    width: Any


def _product(module: Any, pointer: Any, lanes: int, accumulate: bool) -> Any:
    """Return the LLVM function of a product, which is added to the module if it lacks it."""
    name = f"numnorm_matmul_{pointer.pointee}_{lanes}_{'add' if accumulate else 'store'}"
    if name in module.globals:
        return module.globals[name]
    number = ir.IntType(64)
    kinds = [pointer, *[number] * 3, pointer, *[number] * 2, pointer, *[number] * 2]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block())
    _Product(builder, _Operands(*function.args), lanes, accumulate=accumulate).generate()
    builder.ret_void()
    return function


class _Product:
    """The instructions of a product: loops over groups of panels and over tiles of rows."""

    def __init__(self, builder: Any, operands: _Operands, lanes: int, *, accumulate: bool) -> None:
        self.builder, self.operands, self.lanes = builder, operands, lanes
        self.accumulate = accumulate
        self.panels_done = cgutils.alloca_once_value(builder, _size(0))

    def generate(self) -> None:
        """Multiply by groups of full panels, then by the remaining panels."""
        builder, operands, sizes = self.builder, self.operands, tiling()
        lanes, width = _size(self.lanes), operands.width
        full = builder.udiv(width, lanes)
        fewest = 0
        for most, panels in sizes.few_rows:
            above = builder.icmp_signed(">", operands.rows, _size(fewest))
            up_to = builder.icmp_signed("<=", operands.rows, _size(most))
            with builder.if_then(builder.and_(above, up_to)):
                self._groups(range(most, fewest, -1), panels, full)
            fewest = most
        self._groups(sizes.rows, sizes.panels, full)
        first = builder.load(self.panels_done)
        end = builder.udiv(builder.add(width, _size(self.lanes - 1)), lanes)
        with cgutils.for_range_slice(builder, first, end, _size(1)) as (p, _):
            column = builder.mul(p, lanes)
            columns = builder.sub(width, column)
            whole = builder.icmp_signed("<", lanes, columns)
            tail = builder.select(whole, lanes, columns)
            b = self._panel(p)
            c = builder.gep(operands.c, [column])
            self._rows(sizes.single_panel_rows, 1, (b, b, c), tail)

    def _panel(self, p: Any) -> Any:
        return self.builder.gep(self.operands.b, [self.builder.mul(p, self.operands.panel)])

    def _groups(self, sizes: Sequence[int], panels: int, full: Any) -> None:
        """Multiply by as many of the `full` panels as make groups of `panels` panels."""
        builder, count = self.builder, _size(panels)
        first = builder.load(self.panels_done)
        stop = builder.sub(full, builder.urem(builder.sub(full, first), count))
        with cgutils.for_range_slice(builder, first, stop, count) as (p, _):
            after = builder.add(p, count)
            following = builder.select(builder.icmp_signed("<", after, stop), after, first)
            c = builder.gep(self.operands.c, [builder.mul(p, _size(self.lanes))])
            self._rows(sizes, panels, (self._panel(p), self._panel(following), c), None)
        builder.store(stop, self.panels_done)

    def _rows(self, sizes: Sequence[int], panels: int, at: Any, tail: Any) -> None:
        """Multiply all rows by some panels, in tiles of these `sizes`."""
        builder, rows = self.builder, self.operands.rows
        done_at = cgutils.alloca_once(builder, rows.type)
        builder.store(_size(0), done_at)
        most = None
        for count in sizes:
            done = builder.load(done_at)
            left = builder.sub(rows, done)
            shared = tiling().shared_rows if count == tiling().rows[0] else 0
            if most is not None and 2 * count > most:
                with builder.if_then(builder.icmp_signed(">=", left, _size(count))):
                    self._tile(count, panels, at, done, _size(0), tail)
                    builder.store(builder.add(done, _size(count)), done_at)
            else:
                tiles = self._tile_count(left, count, shared)
                with cgutils.for_range(builder, tiles) as loop:
                    first = builder.add(done, builder.mul(loop.index, _size(count)))
                    self._tile(count, panels, at, first, loop.index, tail)
                builder.store(builder.add(done, builder.mul(tiles, _size(count))), done_at)
            most = count + shared if shared else count - 1

    def _tile_count(self, left: Any, count: int, shared: int) -> Any:
        """Return in how many tiles of `count` rows to process the rows that are left."""
        builder = self.builder
        tiles = builder.udiv(left, _size(count))
        if not shared:
            return tiles
        # The rows that share tiles with the last of these.
        over = builder.sub(builder.urem(left, _size(count)), _size(1))
        fewer = builder.icmp_unsigned("<", over, _size(shared))
        fewer = builder.and_(fewer, builder.icmp_signed(">", tiles, _size(0)))
        return builder.sub(tiles, builder.zext(fewer, tiles.type))

    def _tile(self, rows: int, panels: int, at: Any, first: Any, index: Any, tail: Any) -> None:
        """Multiply the `rows` rows from `first` on.

        The tile also prefetches a panel of the next group into the second-level cache: the first
        tiles of that group would wait for it. If `tail` is not None, c has only that many columns.
        """
        builder, operands = self.builder, self.operands
        b, following, c = at
        shift = builder.mul(builder.urem(index, _size(panels)), operands.panel)
        following = builder.gep(following, [shift])
        a = builder.gep(operands.a, [builder.mul(first, operands.row)])
        c = builder.gep(c, [builder.mul(first, operands.c_row)])
        block = _Block(builder, rows, panels, ir.VectorType(a.type.pointee, self.lanes))
        block.begin(c, operands.c_row, accumulate=self.accumulate)
        with cgutils.for_range(builder, operands.depth) as loop:
            block.prefetch(following, loop.index)
            block.add(a, loop.index, operands.row, operands.step, b, operands.panel)
        block.end(tail, accumulate=self.accumulate)


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
