"""New arrays in nopython code, large ones on huge pages as NumPy's are."""

from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.np import arrayobj

from numnorm.operating_system import LINUX

# NumPy's own threshold.
_HUGE_LEAST_BYTES = 1 << 22
_PAGE = 4096
_MADV_HUGEPAGE = 14


def new_array(context: Any, builder: Any, kind: Any, shape: list[Any]) -> Any:
    """Return the struct of an uninitialized C-contiguous array."""
    array = arrayobj._empty_nd_impl(context, builder, kind, shape)
    if LINUX:
        _advise_huge_pages(builder, array)
    return array


def _advise_huge_pages(builder: Any, array: Any) -> None:
    """Ask the kernel for huge pages: the first store to each small page costs a page fault."""
    size = array.nitems.type
    nbytes = builder.mul(array.nitems, array.itemsize)
    large = builder.icmp_signed(">=", nbytes, size(_HUGE_LEAST_BYTES))
    with builder.if_then(large, likely=False):
        start = builder.ptrtoint(array.data, size)
        first = builder.and_(builder.add(start, size(_PAGE - 1)), size(-_PAGE))
        length = builder.sub(builder.add(start, nbytes), first)
        number = ir.IntType(32)
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(number, [pointer, size, number])
        advise = cgutils.get_or_insert_function(builder.module, kind, "madvise")
        # A refusal changes nothing but the speed.
        builder.call(advise, [builder.inttoptr(first, pointer), length, number(_MADV_HUGEPAGE)])
