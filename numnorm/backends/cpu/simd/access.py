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


class Access(NamedTuple):
    """Compiled functions of an array, an index, and how many elements there are from there on.

    Attributes
    ----------
    read : callable
        ``read(array, j, rest)``: the elements.
    term : callable
        ``term(values, j, rest, default)``: those of an array, a number for all of them, or the
        default for None.
    write : callable
        ``write(array, j, lanes, rest)``.
    """

    read: Callable[..., Any]
    term: Callable[..., Any]
    write: Callable[..., Any]


@functools.cache
def whole_lanes(
    count: int, ahead: int = 0, *, near: bool = False, streamed: bool = False
) -> Access:
    """Return the access to `count` lanes of which all are there.

    Reading a row asks for what lies `ahead` rows further, in the first-level cache if it is to
    be `near`. What is written may be `streamed`.
    """
    load, load_or_scalar = make_load(count), make_load_or_scalar(count)
    ask = prefetch_l1 if near else prefetch
    put = store_nontemporal if streamed else store

    @inlined
    def read(array, j, rest):
        if ahead > 0:
            ask(array, j + ahead * array.size)
        return load(array, j)

    return Access(
        read,
        inlined(lambda values, j, rest, default: load_or_scalar(values, j, default)),
        inlined(lambda array, j, lanes, rest: put(array, j, lanes)),
    )


@functools.cache
def first_lanes(count: int) -> Access:
    """Return the access to the first of `count` lanes; the others are read as 0."""
    masked_load, load_or_scalar = make_masked_load(count), make_masked_elements(count)
    return Access(
        inlined(lambda array, j, rest: masked_load(array, j, 0, rest)),
        inlined(lambda values, j, rest, default: load_or_scalar(values, j, 0, rest, default)),
        inlined(lambda array, j, lanes, rest: masked_store(array, j, lanes, 0, rest)),
    )


@functools.cache
def last_lanes(count: int) -> Access:
    """Return the access to the last of `count` lanes, before a line; the others are read as 0."""
    masked_load, load_or_scalar = make_masked_load(count), make_masked_elements(count)
    return Access(
        inlined(lambda array, j, rest: masked_load(array, j, count - rest, count)),
        inlined(
            lambda values, j, rest, default: load_or_scalar(values, j, count - rest, count, default)
        ),
        inlined(lambda array, j, lanes, rest: masked_store(array, j, lanes, count - rest, count)),
    )
