"""How much of a row lies before its first cache line.

Vectors that lie in two lines each take twice as long to load, and much longer where they are not
in cache; NumPy's large arrays all begin 16 bytes into a line. A loop that begins with the few
elements before the first line reads or writes whole lines from there on: of the array that the
head is of, and of all others that lie like it.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types
from numba.extending import overload

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.allocated import make_aligned_zeros
from numnorm.backends.cpu.memory.placement import LINE, address_of
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.processor import has_avx, has_avx512
from numnorm.backends.cpu.simd.vector import compiled_as


def peels_to_alignment(element_type: ElementType) -> bool:
    """Return whether loops over such elements begin at lines.

    Halves gain nothing: with what widens them a loop waits for loads less, and their few
    elements beside whole lines take longer.
    Where there are no masks, the few elements would be rounded in another way than in whole
    lanes (see `masked`), and bytes would depend on the address.
    """
    return element_type.storage_dtype.itemsize > 2 and has_avx()


@compiled_as(address_of)
def address(typing_context, array):
    """Return where an array's first element lies."""

    def generate(context, builder, signature, arguments):
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        return builder.ptrtoint(data, context.get_value_type(types.intp))

    return types.intp(array), generate


@inlined
def _peel_bytes(array):
    """Return how many elements lie before the first line; 0 if no element begins at one."""
    begin, itemsize = address(array), array.itemsize
    return -begin % LINE // itemsize if begin % itemsize == 0 else 0


def each_peels_to_alignment(element_type: ElementType) -> bool:
    """Return whether loops that read or write one array begin at its lines, whatever others do.

    Those of AVX-512 do, whose every vector lies in two lines if one does. AVX2, where every other
    vector lies in two lines, gains nothing.
    """
    return peels_to_alignment(element_type) and has_avx512()


@functools.cache
def make_peel(element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``peel(array, width)``: how many elements lie before the first line.

    It is 0 where loops over so many elements do not begin at lines.
    """
    at_lines = each_peels_to_alignment(element_type)

    @inlined
    def peel(array, width):
        if not at_lines or width * array.itemsize < tuning.PEEL_LEAST_ROW_BYTES:
            return 0
        return _peel_bytes(array)

    return peel


@inlined
def common_peel(x, segment):
    """Return how many elements of every run lie before its first line, 0 if they differ."""
    return _peel_bytes(x) if segment * x.itemsize % LINE == 0 else 0


def aligned_copy(values, peel):
    """Return a 2-D array, or a copy, whose first `peel` elements lie before a line.

    Anything else stays as it is.
    """
    return values


@overload(aligned_copy)
def _aligned_copy(values, peel):
    if not (isinstance(values, types.Array) and values.ndim == 2):
        return lambda values, peel: values
    kind, itemsize = (np.float32, 4) if values.dtype == types.float32 else (np.float64, 8)
    zeros = make_aligned_zeros(kind, 2)

    def implementation(values, peel):
        if (address(values) + peel * itemsize) % LINE == 0:
            return values
        copy = zeros(values.shape, peel)
        # Not `copy[:] = values`, whose error message Numba would take two seconds to compile.
        for c in range(values.shape[0]):
            for j in range(values.shape[1]):
                copy[c, j] = values[c, j]
        return copy

    return implementation


def _plain_keep_alive(value: Any) -> None:
    """Keep what owns memory until here: loops work with what is borrowed of it."""


@compiled_as(_plain_keep_alive)
def keep_alive(typing_context, value):
    """Keep what owns memory until here: loops work with what is borrowed of it."""

    def generate(context, builder, signature, arguments):
        return context.get_dummy_value()

    return types.void(value), generate
