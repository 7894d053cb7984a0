"""The elementwise kernels between layers of recurrent cells."""

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    load_flag,
    make_load_one,
    make_store_one,
)

_THREADS = 128


def make_moved(element: ElementType) -> Kernel:
    """Return the kernel that copies adjacent columns of an array's rows.

    It takes ``source, result`` as addresses; the number of elements ``count`` and of columns
    ``width`` to copy; the source's row width and first column, and those of the result.
    """
    load, store = make_load_one(element), make_store_one(element)

    def kernel(source, result, count, width, of_width, of_start, into_width, into_start):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            row = i // width
            column = i - row * width
            value = load(source, row * of_width + of_start + column)
            store(result, row * into_width + into_start + column, value)

    return Kernel(kernel, ("address",) * 2 + ("index",) * 6, _THREADS)


def make_masked(element: ElementType) -> Kernel:
    """Return the kernel that multiplies by a factor where a mask is true, and by 0 elsewhere.

    It takes ``source, mask, result`` as addresses, with a byte for each element of the mask; the
    number of elements ``count``; and the ``factor``.
    """
    load, store, zero = make_load_one(element), make_store_one(element), constant(element, 0.0)

    def kernel(source, mask, result, count, factor):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            # Multiply even by 0: an infinite or NaN element becomes NaN, and stays visible.
            store(result, i, load(source, i) * (factor if load_flag(mask, i) else zero))

    parameters = ("address",) * 3 + ("index",) + (element.compute_name,)
    return Kernel(kernel, parameters, _THREADS)


def make_added(element: ElementType) -> Kernel:
    """Return the kernel of a sum: ``one, other, result`` as addresses, and ``count``."""
    load, store = make_load_one(element), make_store_one(element)

    def kernel(one, other, result, count):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            store(result, i, load(one, i) + load(other, i))

    return Kernel(kernel, ("address",) * 3 + ("index",), _THREADS)
