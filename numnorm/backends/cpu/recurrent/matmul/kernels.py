"""Kernels that pack a matrix, and that multiply by a packed matrix."""

import math

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel, inlined, make_kernel
from numnorm.backends.cpu.memory.borrowed import as_flat, make_scratch
from numnorm.backends.cpu.recurrent.matmul.micro_kernel import make_matmul, tiling
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.masked import make_masked_load
from numnorm.backends.cpu.simd.transpose import make_transpose
from numnorm.backends.cpu.simd.vector import make_load, prefetch, store


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
