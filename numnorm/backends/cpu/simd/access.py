"""Full, tail and peel access to vectors of an array, for loops across channels or units.

A loop body is compiled once for each access. Full access can prefetch later rows: the hardware
prefetcher does not recognize a few streams that lie close together.
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
    """Compiled functions for the vector at index j of an array, of which `tail` lanes are active.

    Attributes
    ----------
    read : callable
        ``read(array, j, tail)``: the vector.
    coefficient : callable
        ``coefficient(values, j, tail, default)``: the vector of an array, a scalar itself, or
        `default` for None.
    write : callable
        ``write(array, j, lanes, tail)``: stores a vector.
    """

    read: Callable[..., Any]
    coefficient: Callable[..., Any]
    write: Callable[..., Any]


@functools.cache
def full_access(
    count: int, ahead: int = 0, *, l1: bool = False, nontemporal: bool = False
) -> VectorAccess:
    """Return the access to vectors with all `count` lanes active.

    If `ahead` is not 0, `read` prefetches the row that many rows further, into the L1 cache if
    `l1`, else into L2. `write` may use non-temporal stores.
    """
    load, load_or_scalar = make_load(count), make_load_or_scalar(count)
    prefetch_ahead = prefetch_l1 if l1 else prefetch
    store_vector = store_nontemporal if nontemporal else store

    @inlined
    def read(array, j, tail):
        if ahead > 0:
            prefetch_ahead(array, j + ahead * array.size)
        return load(array, j)

    return VectorAccess(
        read,
        inlined(lambda values, j, tail, default: load_or_scalar(values, j, default)),
        inlined(lambda array, j, lanes, tail: store_vector(array, j, lanes)),
    )


@functools.cache
def tail_access(count: int) -> VectorAccess:
    """Return the access to the first `tail` of `count` lanes; the others are read as 0."""
    masked_load, load_or_scalar = make_masked_load(count), make_masked_elements(count)
    return VectorAccess(
        inlined(lambda array, j, tail: masked_load(array, j, 0, tail)),
        inlined(lambda values, j, tail, default: load_or_scalar(values, j, 0, tail, default)),
        inlined(lambda array, j, lanes, tail: masked_store(array, j, lanes, 0, tail)),
    )


@functools.cache
def peel_access(count: int) -> VectorAccess:
    """Return the access to the last `tail` of `count` lanes; the others are read as 0."""
    masked_load, load_or_scalar = make_masked_load(count), make_masked_elements(count)
    return VectorAccess(
        inlined(lambda array, j, tail: masked_load(array, j, count - tail, count)),
        inlined(
            lambda values, j, tail, default: load_or_scalar(values, j, count - tail, count, default)
        ),
        inlined(lambda array, j, lanes, tail: masked_store(array, j, lanes, count - tail, count)),
    )
