"""Vectorized loops over the units of a row."""

from collections.abc import Callable
from typing import Any

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.simd.access import VectorAccess, full_access, tail_access
from numnorm.backends.cpu.simd.element_type import ElementType


def make_unit_loop(
    make: Callable[[Any, ElementType, VectorAccess], Any], spec: Any, element_type: ElementType
) -> Callable[..., None]:
    """Return a compiled ``loop(width, arguments)`` over all units of a row.

    For each vector of units from the j-th on, it calls ``function(*arguments, j, tail)`` with the
    number of its units. ``make(spec, element_type, access)`` returns that function.
    """
    count = element_type.lanes
    full = make(spec, element_type, full_access(count))
    last = make(spec, element_type, tail_access(count))

    @inlined
    def loop(width, arguments):
        whole = width - width % count
        for j in range(0, whole, count):
            full(*arguments, j, count)
        if whole < width:
            last(*arguments, whole, width - whole)

    return loop


def make_write_summed(access: VectorAccess) -> Callable[..., None]:
    """Return a compiled ``write(array, sums, j, value, tail)`` that also adds to the sums."""
    read, _, write = access

    @inlined
    def write_summed(array, sums, j, value, tail):
        write(array, j, value, tail)
        write(sums, j, read(sums, j, tail) + value, tail)

    return write_summed


@inlined
def no_second_half(z, xp, saved, parameters, scalings, masks, scratch, index):
    """Do nothing: the first half did all."""
