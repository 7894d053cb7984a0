"""Vectors of 16 bytes, which a thread loads or stores in one instruction."""

import functools
from typing import Any

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import device


@functools.cache
def make_as_tuple(element: ElementType) -> Any:
    """Return a device function ``as_tuple(values, slot)`` of the elements of one vector."""
    if element.vector == 2:
        return device(lambda v, k: (v[k], v[k + 1]))
    if element.vector == 4:
        return device(lambda v, k: (v[k], v[k + 1], v[k + 2], v[k + 3]))
    return device(
        lambda v, k: (v[k], v[k + 1], v[k + 2], v[k + 3], v[k + 4], v[k + 5], v[k + 6], v[k + 7])
    )
