"""Results that kernels write block by block: in place, or with non-temporal stores."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.alignment import address
from numnorm.backends.cpu.memory.borrowed import window
from numnorm.backends.cpu.memory.nontemporal import fence_after_stores, is_large_gradient
from numnorm.backends.cpu.memory.write_combining import begin, make_buffer, make_write_combiner
from numnorm.backends.cpu.simd.element_type import ElementType


class Writer(NamedTuple):
    """Compiled functions for a result whose blocks follow each other.

    Attributes
    ----------
    buffer : callable
        ``buffer()``: scratch for write combining.
    begin : callable
        ``begin(y, at)``: the state of an empty buffer whose first block begins at y[at].
    target : callable
        ``target(y, at, n, buffer, state, combines)``: where to write the block at y[at].
    written : callable
        ``written(y, n, buffer, state, combines)``: the state after the block was written.
    finish : callable
        ``finish(y, buffer, state, combines)``: stores what is left in the buffer.
    """

    buffer: Callable[..., Any]
    begin: Callable[..., Any]
    target: Callable[..., Any]
    written: Callable[..., Any]
    finish: Callable[..., Any]


@functools.cache
def make_writer(element_type: ElementType, most: int) -> Writer:
    """Return the writer of results in blocks of at most `most` elements."""
    append, finish_line = make_write_combiner(element_type)

    @inlined
    def target(y, at, n, buffer, state, combines):
        return window(buffer, state[1], n) if combines else window(y, at, n)

    @inlined
    def written(y, n, buffer, state, combines):
        return append(buffer, state, n, y) if combines else state

    @inlined
    def finish(y, buffer, state, combines):
        if combines:
            finish_line(buffer, state, y)
        fence_after_stores(combines)

    return Writer(make_buffer(element_type, most), begin, target, written, finish)


@inlined
def gradient_uses_write_combining(dx: Any) -> bool:
    """Return whether a gradient uses write combining: see `uses_write_combining`."""
    return is_large_gradient(dx) and address(dx) % dx.itemsize == 0
