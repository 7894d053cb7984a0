"""The kernel that gathers rows of an array."""

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    load_index,
    make_load_one,
    make_store_one,
)

_THREADS = 128


def make_gather_rows(of: ElementType, into: ElementType) -> Kernel:
    """Return the kernel that gathers rows of an array.

    ``kernel(source, indices, others, result, count, width)`` takes four addresses and the numbers
    of elements of the result and of a row. Row i of the result is row ``indices[i]`` of the
    source; the indices are int32. For a negative index it is row i of the others, or zeros without
    others. Without indices the rows keep their order.
    """
    load, store = make_load_one(of), make_store_one(into)
    kind, zero = into.compute_type, constant(into, 0.0)

    def kernel(source, indices, others, result, count, width):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            at = i
            if indices != 0:
                row = i // width
                index = load_index(indices, row)
                at = index * width + (i - row * width) if index >= 0 else -1
            if at >= 0:
                store(result, i, kind(load(source, at)))
            elif others != 0:
                store(result, i, kind(load(others, i)))
            else:
                store(result, i, zero)

    return Kernel(kernel, ("address",) * 4 + ("index",) * 2, _THREADS)
