"""Arrays that a kernel allocates for itself.

Most of what `np.zeros` brings into a kernel serves messages of errors that are not possible there,
and takes longer to compile than the loops over the array.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import cgutils, types

from numnorm.backends.cpu.memory.array_struct import contiguous
from numnorm.backends.cpu.memory.borrowed import type_of
from numnorm.backends.cpu.memory.placement import LINE
from numnorm.backends.cpu.simd.vector import compiled_as


@functools.cache
def make_aligned_zeros(kind: Any, ndim: int) -> Callable[..., Any]:
    """Return a compiled ``zeros(shape, peel)`` of so many axes.

    The first `peel` elements lie before a cache line. What is borrowed of it must not `keep_alive` it.
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
            room = builder.add(nbytes, nbytes.type(LINE))
            memory = context.nrt.meminfo_alloc_aligned(builder, room, LINE)
            before = builder.neg(builder.mul(peel, itemsize))
            offset = builder.and_(before, nbytes.type(LINE - 1))
            start = builder.gep(context.nrt.meminfo_data(builder, memory), [offset])
            cgutils.memset(builder, start, nbytes, 0)
            return contiguous(context, builder, result, start, sizes, memory)

        return result(shape, types.intp), generate

    return zeros
