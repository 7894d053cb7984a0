"""Loops over the units of a row: whole vectors, and a tail."""

from collections.abc import Callable
from typing import Any

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.simd.access import VectorAccess, full_access, tail_access
from numnorm.backends.cpu.simd.element_type import ElementType


def make_unit_loop(
    make: Callable[[VectorAccess], Any], element_type: ElementType
) -> Callable[..., None]:
    """Return a compiled ``loop(width, arguments)`` of all units of a row.

    It calls ``function(*arguments, j, tail)`` for a vector of units from the j-th on, whole or
    with a tail; `make` returns that function for either access.
    """
    count = element_type.lanes
    full, last = make(full_access(count)), make(tail_access(count))

    @inlined
    def loop(width, arguments):
        whole = width - width % count
        for j in range(0, whole, count):
            full(*arguments, j, count)
        if whole < width:
            last(*arguments, whole, width - whole)

    return loop


def make_write_summed(access: VectorAccess) -> Callable[..., None]:
    """Return a compiled ``write(array, sums, j, value, tail)``, which also adds to the sums."""
    read, _, write = access

    @inlined
    def write_summed(array, sums, j, value, tail):
        write(array, j, value, tail)
        write(sums, j, read(sums, j, tail) + value, tail)

    return write_summed


@inlined
def no_second_half(z, xp, saved, parameters, scalings, masks, scratch, place):
    """Do nothing: all was done in the first half."""
