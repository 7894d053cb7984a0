"""Rows of an array in another order, of another type, or both."""

from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    load_index,
    make_load_one,
    make_store_one,
)

_THREADS = 128


def make_taken_rows(of: Element, into: Element) -> Kernel:
    """Return the kernel that takes rows of an array, each from its place.

    It takes ``source, places, others, result`` as addresses, ``count``, the elements of the result,
    and ``width``, those of a row. The places are int32; a negative one stands for the same row of
    the others. Without places all rows are taken in turn, and without others such a row is 0.
    """
    load, store = make_load_one(of), make_store_one(into)
    kind, zero = into.working, constant(into, 0.0)

    def kernel(source, places, others, result, count, width):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            at = i
            if places != 0:
                row = i // width
                place = load_index(places, row)
                at = place * width + (i - row * width) if place >= 0 else -1
            if at >= 0:
                store(result, i, kind(load(source, at)))
            elif others != 0:
                store(result, i, kind(load(others, i)))
            else:
                store(result, i, zero)

    return Kernel(kernel, ("address",) * 4 + ("index",) * 2, _THREADS)
