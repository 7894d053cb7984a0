"""Arrays that kernels make: borrowed ones, scratch on the stack, and ones that they allocate.

Kernels count no references. The caller of a kernel keeps its arrays alive, and parts and other
shapes of them only borrow their memory.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.runtime.context import NRTContext

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.placement import LINE
from numnorm.backends.cpu.simd.vector import compiled_as


def contiguous(
    context: Any, builder: Any, kind: Any, data: Any, sizes: Any, memory: Any = None
) -> Any:
    """Return an array of type `kind` at the address `data`, with LLVM integers `sizes` as shape.

    `memory` is Numba's meminfo that counts its references, None for a borrowed array.
    """
    from numba.np.arrayobj import populate_array

    array = context.make_array(kind)(context, builder)
    strides = [context.get_constant(types.intp, kind.dtype.bitwidth // 8)]
    for size in reversed(sizes[1:]):
        strides.insert(0, builder.mul(strides[0], size))
    populate_array(
        array,
        data=builder.bitcast(data, array.data.type),
        shape=sizes,
        strides=strides,
        itemsize=strides[-1],
        meminfo=memory,
    )
    return array._getvalue()


# Borrowed arrays, and scratch


_REALS, _WHOLES = (types.float32, types.float64), (types.uint8, types.uint16, types.int64)
_TYPES = {np.dtype(kind.name): kind for kind in (*_REALS, *_WHOLES)}


def type_of(kind: Any) -> Any:
    """Return the Numba type of a NumPy dtype."""
    return _TYPES[np.dtype(kind)]


def _plain_shaped(array: Any, shape: Any) -> Any:
    return np.reshape(array, shape)


@compiled_as(_plain_shaped)
def shaped(typing_context, array, shape):
    """Return a contiguous array, borrowed, in another shape, which is not checked."""
    result = types.Array(array.dtype, len(shape), "C")

    def generate(context, builder, signature, arguments):
        data = context.make_array(array)(context, builder, arguments[0]).data
        sizes = cgutils.unpack_tuple(builder, arguments[1])
        return contiguous(context, builder, result, data, sizes)

    return result(array, shape), generate


def _plain_as_flat(array: Any) -> Any:
    return np.reshape(array, -1)


@compiled_as(_plain_as_flat)
def as_flat(typing_context, array):
    """Return a contiguous array, borrowed, as one axis."""
    result = types.Array(array.dtype, 1, "C")

    def generate(context, builder, signature, arguments):
        given = context.make_array(array)(context, builder, arguments[0])
        return contiguous(context, builder, result, given.data, [given.nitems])

    return result(array), generate


def _plain_window(array: Any, start: int, size: int) -> Any:
    flat = np.reshape(array, -1) if isinstance(array, np.ndarray) else None
    return array if flat is None else flat[start : start + size]


@compiled_as(_plain_window)
def window(typing_context, array, start, size):
    """Return `size` elements of a contiguous array from the flat index `start` on, borrowed.

    Nothing is checked. A number or None is returned as it is.
    """
    if not isinstance(array, types.Array):
        return array(array, types.intp, types.intp), lambda c, b, signature, arguments: arguments[0]
    result = types.Array(array.dtype, 1, "C")

    def generate(context, builder, signature, arguments):
        data = context.make_array(array)(context, builder, arguments[0]).data
        first = builder.gep(data, arguments[1:2])
        return contiguous(context, builder, result, first, arguments[2:])

    return result(array, types.intp, types.intp), generate


@inlined
def halves(array):
    """Return the two halves of a flat array, borrowed."""
    size = array.size // 2
    return window(array, 0, size), window(array, size, size)


def _plain_row(matrix: Any, i: int) -> Any:
    return None if matrix is None else matrix[i]


@compiled_as(_plain_row)
def row(typing_context, matrix, i):
    """Return row i of a contiguous matrix, borrowed, without any check; None of None."""
    if not isinstance(matrix, types.Array):
        return matrix(matrix, types.intp), lambda c, b, signature, arguments: arguments[0]
    result = types.Array(matrix.dtype, 1, "C")

    def generate(context, builder, signature, arguments):
        given = context.make_array(matrix)(context, builder, arguments[0])
        width = cgutils.unpack_tuple(builder, given.shape)[1]
        start = builder.gep(given.data, [builder.mul(arguments[1], width)])
        return contiguous(context, builder, result, start, [width])

    return result(matrix, types.intp), generate


# Scratch of kernels that are not compiled. Tests put NaN in place of the zeros.
plain_scratch: Callable[..., Any] = np.zeros


def make_scratch(kind: Any, size: int) -> Callable[[], Any]:
    """Return a compiled ``scratch()``: an uninitialized array on the stack of a kernel.

    Allocation from the heap would slow down small kernels, and loading a kernel that allocates
    would import much of Numba.
    """
    element = type_of(kind)

    def plain():
        return plain_scratch(size, kind)

    @compiled_as(plain)
    def scratch(typing_context):
        result = types.Array(element, 1, "C")

        def generate(context, builder, signature, arguments):
            # Not `cgutils.alloca_once`: it fills the array with zeros in every call, and LLVM takes
            # long to compile that.
            with builder.goto_entry_block():
                space = builder.alloca(ir.ArrayType(context.get_value_type(element), size))
            space.align = 64
            sizes = [context.get_constant(types.intp, size)]
            return contiguous(context, builder, result, space, sizes)

        return result(), generate

    return scratch


# Allocated arrays: `np.zeros` brings error handling that is slow to compile


def _nrt(context: Any) -> Any:
    """Return Numba's runtime, which the contexts of kernels do without."""
    return NRTContext(context, True)


@functools.cache
def make_aligned_zeros(kind: Any, ndim: int, empty: bool = False) -> Callable[..., Any]:
    """Return a compiled ``zeros(shape, peel)``: a new array of zeros with `ndim` axes.

    A cache line begins after the first `peel` elements. `release` frees the array. An `empty`
    array has any elements.
    """
    element = type_of(kind)
    result = types.Array(element, ndim, "C")

    def plain(shape, peel):
        return np.zeros(shape, kind)

    @compiled_as(plain)
    def zeros(typing_context, shape, peel):
        def generate(context, builder, signature, arguments):
            shape, peel = arguments
            itemsize = context.get_constant(types.intp, element.bitwidth // 8)
            sizes, nbytes = cgutils.unpack_tuple(builder, shape), itemsize
            for size in sizes:
                nbytes = builder.mul(nbytes, size)
            allocated = builder.add(nbytes, nbytes.type(LINE))
            memory = _nrt(context).meminfo_alloc_aligned(builder, allocated, LINE)
            before = builder.neg(builder.mul(peel, itemsize))
            offset = builder.and_(before, nbytes.type(LINE - 1))
            start = builder.gep(_nrt(context).meminfo_data(builder, memory), [offset])
            if not empty:
                cgutils.memset(builder, start, nbytes, 0)
            return contiguous(context, builder, result, start, sizes, memory)

        return result(shape, types.intp), generate

    return zeros


def _plain_release(arrays: Any) -> None:
    """Free the arrays of a tuple that a kernel has allocated, and leave the others alone."""


@compiled_as(_plain_release)
def release(typing_context, arrays):
    """Free the arrays of a tuple that a kernel has allocated, and leave the others alone."""

    def generate(context, builder, signature, arguments):
        _nrt(context).decref(builder, signature.args[0], arguments[0])
        return context.get_dummy_value()

    return types.void(arrays), generate
