"""A software write-combining buffer for non-temporal stores of rows at any alignment.

Non-temporal stores should write whole cache lines, because memory takes each part of a line
separately. Rows that end inside a line are appended to a small buffer in the L1 cache. Its complete
lines go to memory with non-temporal stores, and the incomplete line waits for the next rows.

The state of a buffer is ``(skipped, filled, base)``: element i of the buffer belongs to element
``base + i`` of the result, which begins a line for i = 0. The buffer has `filled` elements. The
first `skipped` of them lie before the first appended row and are not stored.
"""

from collections.abc import Callable
from typing import Any

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.alignment import address
from numnorm.backends.cpu.memory.borrowed import make_scratch
from numnorm.backends.cpu.memory.nontemporal import is_large
from numnorm.backends.cpu.memory.placement import LINE
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.masked import masked_store
from numnorm.backends.cpu.simd.vector import make_load, store, store_nontemporal


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
