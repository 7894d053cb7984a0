"""Results that are streamed in whole lines, wherever they and their rows begin.

What is streamed should be whole lines: the memory takes each part of another by itself. Rows that
end inside a line, as all do of an array that begins inside one, are put together in the first-level
cache. Lines are streamed from there, and what is there of a line that is only begun is carried to
the rows that complete it.
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


def make_room(element_type: ElementType, most: int) -> Callable[[], Any]:
    """Return a compiled ``room()`` for a line that is begun, so many elements, and a vector."""
    return make_scratch(
        element_type.storage_dtype, most + 2 * (LINE // element_type.storage_dtype.itemsize)
    )


@inlined
def is_carried(y: Any) -> bool:
    """Return whether a result is large enough to be streamed, and its lines begin at elements."""
    return is_large(y) and address(y) % y.itemsize == 0


@inlined
def begin(y: Any, at: int) -> tuple[int, int, int]:
    """Return what a room holds before the at-th element of a flat array is put there.

    ``(foreign, begun, base)``: element i of the room goes to element ``base + i`` of y, which
    begins a line for i = 0; the first `begun` are there already, of which `foreign` are not to be
    stored.
    """
    before = (address(y) + at * y.itemsize) % LINE // y.itemsize
    return before, before, at - before


def make_carry(element_type: ElementType) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return compiled ``carry(room, held, added, y)`` and ``finish(room, held, y)``.

    carry streams the whole lines of what is held and of so many elements `added` after it, moves
    the rest to the front of the room and returns what is held then. finish stores what is left.
    """
    of_line = LINE // element_type.storage_dtype.itemsize
    load = make_load(of_line)

    @inlined
    def carry(room, held, added, y):
        foreign, begun, base = held
        stop = begun + added
        first, whole = 0, stop - stop % of_line
        if foreign > 0 and whole > 0:
            masked_store(y, base, load(room, 0), foreign, of_line)
            first, foreign = of_line, 0
        for k in range(first, whole, of_line):
            store_nontemporal(y, base + k, load(room, k))
        store(room, 0, load(room, whole))
        return foreign, stop - whole, base + whole

    @inlined
    def finish(room, held, y):
        foreign, begun, base = held
        for k in range(foreign, begun):
            y[base + k] = room[k]

    return carry, finish
