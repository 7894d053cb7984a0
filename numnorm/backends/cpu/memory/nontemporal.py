"""Which results are stored past the caches.

A store reads the line that it goes to into the cache, and drives another out: of a large result,
which is gone from the caches before anyone reads it, the former is wasted, and the latter is often
a part of the input that is still to be read. Stores that stream do neither. Where others share the
memory's bandwidth and the third-level cache, results of 12 MB and more took 0.6 to 0.9 times as
long, and together with a call that reads them next 0.85 to 0.95; where nobody does, as long.
Smaller results lost.

Beside a gradient there are two inputs to be kept, not one, so that smaller ones gain: of 6 MB in
0.6 to 0.9 times the time, the call that reads them next included (4 MB on a Zen 5; 3 MB lost).
"""

from typing import Any

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.alignment import address
from numnorm.backends.cpu.memory.placement import LINE
from numnorm.backends.cpu.simd.vector import fence

# In bytes: smaller results stay in cache for whoever reads them next, and smaller gradients.
_LARGE, _LARGE_GRADIENT = 12 << 20, 6 << 20


@inlined
def is_large(y: Any) -> bool:
    """Return whether a result is large enough to be streamed."""
    return y.size * y.itemsize >= _LARGE


@inlined
def is_streamed(y: Any, run: int, head: int = 0) -> bool:
    """Return whether a result, in runs of so many elements, is streamed.

    Each must be lines, the first of which begins after the `head` elements that are stored apart.
    """
    return is_large(y) and _is_in_lines(y, run, head)


@inlined
def is_gradient_streamed(dx: Any, run: int, head: int = 0) -> bool:
    """Return the same of a gradient."""
    return dx.size * dx.itemsize >= _LARGE_GRADIENT and _is_in_lines(dx, run, head)


@inlined
def _is_in_lines(y: Any, run: int, head: int) -> bool:
    first = address(y) + head * y.itemsize
    return run * y.itemsize % LINE == 0 and first % LINE == 0


@inlined
def after_stores(streamed: bool) -> None:
    """Make what has been streamed visible to other threads, which nothing else does."""
    if streamed:
        fence()
