"""Matrix products whose elements do not depend on the other rows and columns, to the last bit.

The right-hand matrix b is packed into panels: blocks of columns, one vector wide, each with its
rows one after the other. The last panel is padded with zeros. Micro-kernels keep the sums of a tile
of the result in registers. Every element of the result is one sum over the depth, in order, so that
its bytes do not depend on the other rows and columns, which no BLAS promises.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.compiler.parallel import run, threads
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.memory.kernel_arrays import as_flat, make_scratch
from numnorm.backends.cpu.memory.placement import tables
from numnorm.backends.cpu.simd.element_type import ElementType, element_type_of
from numnorm.backends.cpu.simd.masked import make_masked_load, masked_load_at, masked_store_at
from numnorm.backends.cpu.simd.processor import has_avx512
from numnorm.backends.cpu.simd.squares import make_transpose
from numnorm.backends.cpu.simd.vector import (
    FLAGS,
    compiled_as,
    constant,
    load_from,
    make_load,
    prefetch,
    prefetch_at,
    splat,
    store,
    store_at,
)
from numnorm.memory_pool import POOL

# Micro-kernels


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


# Kernels that pack a matrix, and that multiply by a packed matrix


def make_pack(element_type: ElementType) -> Kernel:
    """Return a kernel ``(a (depth, width), panels (flat), parts)`` that packs a."""
    lanes = element_type.lanes
    load, masked_load = make_load(lanes), make_masked_load(lanes)

    def kernel(a, panels, parts, first, last):
        depth, width = a.shape
        start, stop = first * depth // parts, last * depth // parts
        for p in range(-(-width // lanes)):
            left = p * lanes
            count = min(lanes, width - left)
            for k in range(start, stop):
                row = load(a[k], left) if count == lanes else masked_load(a[k], left, 0, count)
                store(panels, (p * depth + k) * lanes, row)

    return make_kernel(f"matmul.pack.{element_type.name}", kernel)


def make_pack_transposed(element_type: ElementType) -> Kernel:
    """Return a kernel ``(a (width, depth), panels (flat), parts)`` that packs ``a.T``."""
    lanes, real = element_type.lanes, element_type.compute_type
    transpose = make_transpose(lanes)

    def kernel(a, panels, parts, first, last):
        width, depth = a.shape
        flat = as_flat(a)
        panel_count = -(-width // lanes)
        for p in range(first * panel_count // parts, last * panel_count // parts):
            left = p * lanes
            count = min(lanes, width - left)
            full = depth - depth % lanes if count == lanes else 0
            for k in range(0, full, lanes):
                transpose(flat, left * depth + k, depth, panels, (p * depth + k) * lanes)
            for k in range(full, depth):
                offset = (p * depth + k) * lanes
                for j in range(count):
                    panels[offset + j] = a[left + j, k]
                for j in range(count, lanes):
                    panels[offset + j] = real(0)

    return make_kernel(f"matmul.pack_transposed.{element_type.name}", kernel)


def make_rows_matmul(element_type: ElementType) -> Kernel:
    """Return a kernel ``(a (rows, depth), b, c (rows, width), parts)``: c = a b for a packed b."""
    lanes, most, block = element_type.lanes, tiling().rows[0], tuning.MATMUL_BLOCK_ROWS
    matmul = make_matmul(lanes, accumulate=False)

    def kernel(a, b, c, parts, first, last):
        depth, width, blocks = a.shape[1], c.shape[1], -(-a.shape[0] // most)
        start = first * blocks // parts * most
        stop = min(last * blocks // parts * most, a.shape[0])
        a, c = as_flat(a), as_flat(c)
        for i in range(start, stop, block):
            matmul(
                a, i * depth, depth, 1, min(block, stop - i), b, 0, depth * lanes, depth,
                c, i * width, width, width,
            )  # fmt: skip

    return make_kernel(f"matmul.rows.{element_type.name}", kernel)


def make_columns_matmul(element_type: ElementType) -> Kernel:
    """Return a kernel ``(a (depth, rows), b, c (rows, width), parts)``: c += a.T b, b packed."""
    lanes, most, deepest = element_type.lanes, tiling().rows[0], tiling().depth
    matmul = make_matmul(lanes, accumulate=True)
    load, masked_load = make_load(lanes), make_masked_load(lanes)
    step = math.lcm(most, lanes)
    scratch = make_scratch(element_type.compute_type, deepest * step)

    @inlined
    def copy(a, start, deep, left, rows, block):
        full = rows - rows % lanes
        for k in range(deep):
            row, offset = a[start + k], k * step
            for r in range(0, full, lanes):
                prefetch(row, left + r + step)
                store(block, offset + r, load(row, left + r))
            if full < rows:
                store(block, offset + full, masked_load(row, left + full, 0, rows - full))

    def kernel(a, b, c, parts, first, last):
        width = c.shape[1]
        flat, block = as_flat(c), scratch()
        depth, blocks = a.shape[0], -(-a.shape[1] // step)
        left, right = first * blocks // parts * step, last * blocks // parts * step
        right = min(right, a.shape[1])
        for start in range(0, depth, deepest):
            deep = min(deepest, depth - start)
            for m in range(left, right, step):
                rows = min(step, right - m)
                copy(a, start, deep, m, rows, block)
                matmul(
                    block, 0, 1, step, rows, b, start * lanes, depth * lanes, deep,
                    flat, m * width, width, width,
                )  # fmt: skip

    return make_kernel(f"matmul.columns.{element_type.name}", kernel)


# Products of NumPy arrays


@functools.cache
def _kernel(make: Any, element_type: ElementType) -> Kernel:
    made: Kernel = make(element_type)
    return made


def _parts(size: int, work: int) -> int:
    """Return into how many parts to divide rows or columns: a multiple of the number of threads."""
    most, count = size // tuning.MATMUL_PART_LEAST_ROWS, threads(work)
    parts = max(1, min(tuning.MATMUL_PARTS_MOST, most))
    return parts if parts < count else parts // count * count


def _work(size: int, width: int, itemsize: int) -> int:
    """Return the work of a product of `size` times `width` multiplications."""
    return size * width * itemsize // tuning.MATMUL_MULTIPLICATIONS_PER_WORD


def packed_shape(depth: int, width: int, element_type: ElementType) -> tuple[int]:
    """Return the shape of the panels of a matrix of shape (depth, width)."""
    return (-(-width // element_type.lanes) * element_type.lanes * depth,)


def packed(matrix: Array, panels: Array, element_type: ElementType) -> Array:
    """Pack a matrix, or a transposed view of one, into `panels`, and return them."""
    depth, width = matrix.shape
    if matrix.flags.c_contiguous:
        make, source = make_pack, matrix
    else:
        make, source = make_pack_transposed, matrix.T
    work = 2 * matrix.nbytes
    parts = _parts(max(depth, width), work)
    run(_kernel(make, element_type), (source, panels, parts), work, parts)
    return panels


def matmul(a: Array, b: Array, result: Array, element_type: ElementType) -> Array:
    """Store ``a @ b`` for a packed b in `result`, and return it."""
    work = _work(a.size, result.shape[1], a.itemsize)
    parts = _parts(a.shape[0], work)
    run(_kernel(make_rows_matmul, element_type), (a, b, result, parts), work, parts)
    return result


def transposed_matmul(a: Array, b: Array, width: int, element_type: ElementType) -> Array:
    """Return ``a.T @ b`` for a packed b of `width` columns."""
    result = np.zeros((a.shape[1], width), element_type.compute_dtype)
    return add_transposed_matmul(a, b, result, element_type)


def add_transposed_matmul(a: Array, b: Array, result: Array, element_type: ElementType) -> Array:
    """Add ``a.T @ b`` for a packed b to `result`, and return it."""
    work = _work(a.size, result.shape[1], a.itemsize)
    parts = _parts(a.shape[1], work)
    run(_kernel(make_columns_matmul, element_type), (a, b, result, parts), work, parts)
    return result


def matrix_panels(matrix: Array) -> Array:
    """Return the panels of a float32 or float64 matrix, for `packed_matmul`."""
    element_type = element_type_of(matrix.dtype)
    depth, width = matrix.shape
    (panels,) = tables(POOL, matrix.dtype, packed_shape(depth, width, element_type))
    return packed(matrix, panels, element_type)


def packed_matmul(a: Array, panels: Array, width: int) -> Array:
    """Return the product of a and a packed matrix of `width` columns."""
    result = np.empty((a.shape[0], width), a.dtype)
    return matmul(a, panels, result, element_type_of(a.dtype))


def packed_transposed_matmul(a: Array, b: Array) -> Array:
    """Return ``a.T @ b``."""
    return transposed_matmul(a, matrix_panels(b), b.shape[1], element_type_of(a.dtype))
