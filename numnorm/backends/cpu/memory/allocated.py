"""Aligned arrays that a kernel allocates for itself.

`np.zeros` in a kernel brings error handling that these arrays do not need and that is slow to
compile.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import cgutils, types
from numba.core.runtime.context import NRTContext

from numnorm.backends.cpu.memory.array_struct import contiguous
from numnorm.backends.cpu.memory.borrowed import type_of
from numnorm.backends.cpu.memory.placement import LINE
from numnorm.backends.cpu.simd.vector import compiled_as


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
