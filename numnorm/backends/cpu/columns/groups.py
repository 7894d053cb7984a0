"""How many rows the loops across channels take at once."""

import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.simd.element_type import Storage

# How many rows are taken at once. Rows of a power of two bytes share a few sets of the first-level
# cache, which holds eight lines of each or twelve: eight rows of two arrays drove each other out
# (sums of 4096 x 1024 on a Zen 4: 1600 us, 1400 with four rows; results 1300, and 900).
GROUP = 4


# The narrowest wide row, in bytes. Of narrower ones several lie in a page, and the processor
# follows one stream in a page better than several.
_WIDE = 1 << 12


@functools.cache
def make_is_wide(storage: Storage) -> Callable[..., Any]:
    """Return a compiled ``is_wide(x)``: whether its rows are worth taking in groups."""
    itemsize = storage.container.itemsize

    @inlined
    def is_wide(x):
        return x.shape[1] * itemsize >= _WIDE

    return is_wide
