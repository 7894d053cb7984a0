"""Which results are stored past the caches.

A store reads the line that it goes to into the cache, and drives another out: of a large result,
which is gone from the caches before anyone reads it, the former is wasted, and the latter is often
a part of the input that is still to be read. Stores that stream do neither. Beside a gradient two
inputs are to be kept, not one, so that smaller ones gain.
"""

from typing import Any

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.alignment import address
from numnorm.backends.cpu.memory.placement import LINE
from numnorm.backends.cpu.simd.vector import store_fence


@inlined
def is_large(y: Any) -> bool:
    """Return whether a result is large enough to be streamed."""
    return y.size * y.itemsize >= tuning.NONTEMPORAL_LEAST_BYTES


@inlined
def use_nontemporal(y: Any, segment: int, peel: int = 0) -> bool:
    """Return whether a result, in runs of so many elements, is streamed.

    Each must be lines, the first of which begins after the `peel` elements that are stored apart.
    """
    return is_large(y) and _is_in_lines(y, segment, peel)


@inlined
def use_nontemporal_gradient(dx: Any, segment: int, peel: int = 0) -> bool:
    """Return the same of a gradient."""
    large = dx.size * dx.itemsize >= tuning.NONTEMPORAL_GRADIENT_LEAST_BYTES
    return large and _is_in_lines(dx, segment, peel)


@inlined
def _is_in_lines(y: Any, segment: int, peel: int) -> bool:
    first = address(y) + peel * y.itemsize
    return segment * y.itemsize % LINE == 0 and first % LINE == 0


@inlined
def fence_after_stores(nontemporal: bool) -> None:
    """Make what has been streamed visible to other threads, which nothing else does."""
    if nontemporal:
        store_fence()
