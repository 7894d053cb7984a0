"""How the loops across channels read: in lanes or the first few of them, and several rows at once.

The rows that come next are asked for, because the processor sees no pattern in a few streams that
lie close together: the sums of 8192 rows of 256 channels took twice as long.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.simd.masked import make_masked_load, masked_store
from numnorm.backends.cpu.simd.optional_vector import make_load_or_scalar, make_masked_elements
from numnorm.backends.cpu.simd.vector import (
    make_load,
    prefetch,
    prefetch_l1,
    store,
    store_nontemporal,
)


class VectorAccess(NamedTuple):
    """Compiled functions of an array, an index, and how many elements there are from there on.

    Attributes
    ----------
    read : callable
        ``read(array, j, tail)``: the elements.
    term : callable
        ``coefficient(values, j, tail, default)``: those of an array, a number for all of them, or the
        default for None.
    write : callable
        ``write(array, j, lanes, tail)``.
    """

    read: Callable[..., Any]
    coefficient: Callable[..., Any]
    write: Callable[..., Any]


@functools.cache
def full_access(
    count: int, ahead: int = 0, *, near: bool = False, nontemporal: bool = False
) -> VectorAccess:
    """Return the access to `count` lanes of which all are there.

    Reading a row asks for what lies `ahead` rows further, in the first-level cache if it is to
    be `near`. What is written may be `nontemporal`.
    """
    load, load_or_scalar = make_load(count), make_load_or_scalar(count)
    prefetch_ahead = prefetch_l1 if near else prefetch
    put = store_nontemporal if nontemporal else store

    @inlined
    def read(array, j, tail):
        if ahead > 0:
            prefetch_ahead(array, j + ahead * array.size)
        return load(array, j)

    return VectorAccess(
        read,
        inlined(lambda values, j, tail, default: load_or_scalar(values, j, default)),
        inlined(lambda array, j, lanes, tail: put(array, j, lanes)),
    )


@functools.cache
def tail_access(count: int) -> VectorAccess:
    """Return the access to the first of `count` lanes; the others are read as 0."""
    masked_load, load_or_scalar = make_masked_load(count), make_masked_elements(count)
    return VectorAccess(
        inlined(lambda array, j, tail: masked_load(array, j, 0, tail)),
        inlined(lambda values, j, tail, default: load_or_scalar(values, j, 0, tail, default)),
        inlined(lambda array, j, lanes, tail: masked_store(array, j, lanes, 0, tail)),
    )


@functools.cache
def peel_access(count: int) -> VectorAccess:
    """Return the access to the last of `count` lanes, before a line; the others are read as 0."""
    masked_load, load_or_scalar = make_masked_load(count), make_masked_elements(count)
    return VectorAccess(
        inlined(lambda array, j, tail: masked_load(array, j, count - tail, count)),
        inlined(
            lambda values, j, tail, default: load_or_scalar(values, j, count - tail, count, default)
        ),
        inlined(lambda array, j, lanes, tail: masked_store(array, j, lanes, count - tail, count)),
    )
