"""Peeling of loops to cache-line alignment, and aligned copies.

A vector that crosses a cache line is slower to load and store. A loop first takes the few elements
before the first cache line (the peel) and then works with aligned vectors. This aligns one array,
and all others with the same offset into a line.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import inlined, overloaded
from numnorm.backends.cpu.memory.kernel_arrays import make_aligned_zeros
from numnorm.backends.cpu.memory.placement import LINE, address_of
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.processor import has_avx, has_avx512
from numnorm.backends.cpu.simd.vector import compiled_as


def peels_to_alignment(element_type: ElementType) -> bool:
    """Return whether loops over elements of this type are peeled to cache lines.

    Elements of two bytes gain nothing, because their conversion hides slow loads and their peel is
    slower. Without masks a peel would round differently from full vectors (see `masked`), and
    results would depend on the address.
    """
    return element_type.storage_dtype.itemsize > 2 and has_avx()


@compiled_as(address_of)
def address(typing_context, array):
    """Return the address of an array's first element."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, context.get_value_type(types.intp))

    return types.intp(array), generate


def each_peels_to_alignment(element_type: ElementType) -> bool:
    """Return whether a loop is peeled even if it aligns only one of its arrays.

    That pays with AVX-512, where every vector of an unaligned array crosses a cache line. With AVX2
    only every other vector does.
    """
    return peels_to_alignment(element_type) and has_avx512()


@functools.cache
def make_peel(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``peel(array, width)``: the number of elements before the first cache line.

    It is 0 if loops over `width` elements are not peeled.
    """
    peels = each_peels_to_alignment(element_type)

    @inlined
    def peel(array, width):
        begin, itemsize = address(array), array.itemsize
        if not peels or width * itemsize < tuning.PEEL_LEAST_ROW_BYTES or begin % itemsize != 0:
            return 0
        return -begin % LINE // itemsize

    return peel


@inlined
def common_peel(x, segment):
    """Return the common peel of all segments of x, each of `segment` elements; 0 if they differ."""
    begin, itemsize = address(x), x.itemsize
    is_common = segment * itemsize % LINE == 0 and begin % itemsize == 0
    return -begin % LINE // itemsize if is_common else 0


def aligned_copy(values, peel):
    """Return a 2-D array, or a copy, with a cache line that begins after `peel` elements.

    Anything else is returned as it is. `release` frees the copy.
    """
    return values


@overloaded(aligned_copy)
def _aligned_copy(values, peel):
    if not (isinstance(values, types.Array) and values.ndim == 2):
        return lambda values, peel: values
    kind, itemsize = (np.float32, 4) if values.dtype == types.float32 else (np.float64, 8)
    zeros = make_aligned_zeros(kind, 2)

    def implementation(values, peel):
        if (address(values) + peel * itemsize) % LINE == 0:
            return values
        copy = zeros(values.shape, peel)
        # Not `copy[:] = values`: Numba would compile its shape check and error message, slowly.
        for c in range(values.shape[0]):
            for j in range(values.shape[1]):
                copy[c, j] = values[c, j]
        return copy

    return implementation
