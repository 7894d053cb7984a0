"""A copy of the input: the least memory traffic of a norm."""

from __future__ import annotations

from functools import partial

import numpy as np

from ..arrays import Arrays
from ..cases import Case
from . import Call

PACKAGES = ("numpy",)


def start(threads: int) -> None:
    """Do nothing: a copy has one thread."""


def call_of(case: Case, arrays: Arrays) -> Call | None:
    """Return a copy into an existing array, or into a new one."""
    if case.family == "cells":
        return None
    if case.out:
        return Call(partial(np.copyto, np.empty_like(arrays.x), arrays.x), None)
    return Call(arrays.x.copy, None)
