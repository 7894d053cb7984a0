"""Results that kernels write with non-temporal stores, and a buffer for those at any alignment.

A normal store reads its cache line first and evicts another line, which may be input that is read
later. Both are a waste for a large result, which leaves the caches before its reader comes.
Non-temporal stores avoid both. A backward pass reads two inputs, not one, so they pay for smaller
gradients too.

Non-temporal stores should write whole cache lines, because memory takes each part of a line
separately. Rows that end inside a line are appended to a small buffer in the L1 cache: this is
write combining. Its complete lines go to memory with non-temporal stores, and the incomplete line
waits for the next rows.

The state of a buffer is ``(skipped, filled, base)``: element i of the buffer belongs to element
``base + i`` of the result, which begins a line for i = 0. The buffer has `filled` elements. The
first `skipped` of them lie before the first appended row and are not stored.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.alignment import address
from numnorm.backends.cpu.memory.kernel_arrays import make_scratch, window
from numnorm.backends.cpu.memory.placement import LINE
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.masked import masked_store
from numnorm.backends.cpu.simd.vector import make_load, store, store_fence, store_nontemporal


@inlined
def is_large(y: Any) -> bool:
    """Return whether a result is large enough for non-temporal stores."""
    return y.size * y.itemsize >= tuning.NONTEMPORAL_LEAST_BYTES


@inlined
def use_nontemporal(y: Any, segment: int, peel: int = 0) -> bool:
    """Return whether to use non-temporal stores for a result with segments of this length.

    A segment must be a whole number of cache lines, and a line must begin after `peel` elements.
    """
    return is_large(y) and _is_aligned(y, segment, peel)


@inlined
def is_large_gradient(dx: Any) -> bool:
    """Return whether a gradient is large enough for non-temporal stores."""
    return dx.size * dx.itemsize >= tuning.NONTEMPORAL_GRADIENT_LEAST_BYTES


@inlined
def use_nontemporal_gradient(dx: Any, segment: int, peel: int = 0) -> bool:
    """Return whether to use non-temporal stores for a gradient with segments of this length."""
    return is_large_gradient(dx) and _is_aligned(dx, segment, peel)


@inlined
def _is_aligned(y: Any, segment: int, peel: int) -> bool:
    first = address(y) + peel * y.itemsize
    return segment * y.itemsize % LINE == 0 and first % LINE == 0


@inlined
def fence_after_stores(nontemporal: bool) -> None:
    """Make non-temporal stores visible to other threads; no other synchronization does."""
    if nontemporal:
        store_fence()


# Write combining


def make_buffer(element_type: ElementType, most: int) -> Callable[[], Any]:
    """Return a compiled ``buffer()`` for an incomplete line, `most` new elements and a vector."""
    return make_scratch(
        element_type.storage_dtype, most + 2 * (LINE // element_type.storage_dtype.itemsize)
    )


@inlined
def uses_write_combining(y: Any) -> bool:
    """Return whether a result uses write combining: it is large and its elements are aligned."""
    return is_large(y) and address(y) % y.itemsize == 0


@inlined
def begin(y: Any, at: int) -> tuple[int, int, int]:
    """Return the state of an empty buffer whose first row begins at element `at` of flat y."""
    before = (address(y) + at * y.itemsize) % LINE // y.itemsize
    return before, before, at - before


def make_write_combiner(element_type: ElementType) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return compiled ``append(buffer, state, count, y)`` and ``finish(buffer, state, y)``.

    The caller writes `count` elements into the buffer after the `filled` ones. `append` then stores
    the complete lines to the flat array y, moves the others to the front of the buffer, and returns
    the new state. `finish` stores the last, incomplete line.
    """
    of_line = LINE // element_type.storage_dtype.itemsize
    load = make_load(of_line)

    @inlined
    def append(buffer, state, count, y):
        skipped, filled, base = state
        stop = filled + count
        first, full = 0, stop - stop % of_line
        if skipped > 0 and full > 0:
            masked_store(y, base, load(buffer, 0), skipped, of_line)
            first, skipped = of_line, 0
        for k in range(first, full, of_line):
            store_nontemporal(y, base + k, load(buffer, k))
        store(buffer, 0, load(buffer, full))
        return skipped, stop - full, base + full

    @inlined
    def finish(buffer, state, y):
        skipped, filled, base = state
        for k in range(skipped, filled):
            y[base + k] = buffer[k]

    return append, finish


# Results in blocks, written in place or with write combining


class Writer(NamedTuple):
    """Compiled functions for a result whose blocks follow each other.

    Attributes
    ----------
    buffer : callable
        ``buffer()``: scratch for write combining.
    begin : callable
        ``begin(y, at)``: the state of an empty buffer whose first block begins at y[at].
    target : callable
        ``target(y, at, n, buffer, state, combines)``: where to write the block at y[at].
    written : callable
        ``written(y, n, buffer, state, combines)``: the state after the block was written.
    finish : callable
        ``finish(y, buffer, state, combines)``: stores what is left in the buffer.
    """

    buffer: Callable[..., Any]
    begin: Callable[..., Any]
    target: Callable[..., Any]
    written: Callable[..., Any]
    finish: Callable[..., Any]


@functools.cache
def make_writer(element_type: ElementType, most: int) -> Writer:
    """Return the writer of results in blocks of at most `most` elements."""
    append, finish_line = make_write_combiner(element_type)

    @inlined
    def target(y, at, n, buffer, state, combines):
        return window(buffer, state[1], n) if combines else window(y, at, n)

    @inlined
    def written(y, n, buffer, state, combines):
        return append(buffer, state, n, y) if combines else state

    @inlined
    def finish(y, buffer, state, combines):
        if combines:
            finish_line(buffer, state, y)
        fence_after_stores(combines)

    return Writer(make_buffer(element_type, most), begin, target, written, finish)


@inlined
def gradient_uses_write_combining(dx: Any) -> bool:
    """Return whether a gradient uses write combining: see `uses_write_combining`."""
    return is_large_gradient(dx) and address(dx) % dx.itemsize == 0
