"""The choice of results for non-temporal stores.

A normal store reads its cache line first and evicts another line, which may be input that is read
later. Both are a waste for a large result, which leaves the caches before its reader comes.
Non-temporal stores avoid both. A backward pass reads two inputs, not one, so they pay for smaller
gradients too.
"""

from typing import Any

from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.alignment import address
from numnorm.backends.cpu.memory.placement import LINE
from numnorm.backends.cpu.simd.vector import store_fence


@inlined
def is_large(y: Any) -> bool:
    """Return whether a result is large enough for non-temporal stores."""
    return y.size * y.itemsize >= tuning.NONTEMPORAL_LEAST_BYTES


@inlined
def use_nontemporal(y: Any, segment: int, peel: int = 0) -> bool:
    """Return whether to use non-temporal stores for a result with segments of this length.

    A segment must be a whole number of cache lines, and a line must begin after `peel` elements.
    """
    return is_large(y) and _is_aligned(y, segment, peel)


@inlined
def is_large_gradient(dx: Any) -> bool:
    """Return whether a gradient is large enough for non-temporal stores."""
    return dx.size * dx.itemsize >= tuning.NONTEMPORAL_GRADIENT_LEAST_BYTES


@inlined
def use_nontemporal_gradient(dx: Any, segment: int, peel: int = 0) -> bool:
    """Return whether to use non-temporal stores for a gradient with segments of this length."""
    return is_large_gradient(dx) and _is_aligned(dx, segment, peel)


@inlined
def _is_aligned(y: Any, segment: int, peel: int) -> bool:
    first = address(y) + peel * y.itemsize
    return segment * y.itemsize % LINE == 0 and first % LINE == 0


@inlined
def fence_after_stores(nontemporal: bool) -> None:
    """Make non-temporal stores visible to other threads; no other synchronization does."""
    if nontemporal:
        store_fence()
