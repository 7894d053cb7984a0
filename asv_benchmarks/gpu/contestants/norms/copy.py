"""A copy of x in the device's memory, which moves as many bytes as a forward pass."""

from __future__ import annotations

from ...arrays import Arrays
from ...cases import Case
from .. import Call


def call_of(case: Case, arrays: Arrays) -> Call | None:
    """Return a copy, for any case."""
    return Call(lambda: arrays.out.copy_(arrays.x))
