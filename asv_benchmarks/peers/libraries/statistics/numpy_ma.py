"""numpy.ma: masked arrays."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...cases import Case
from .. import Call

PACKAGES = ("numpy",)


def start(threads: int) -> None:
    """Do nothing: arithmetic on arrays has one thread."""


def call_of(case: Case, arrays: Any) -> Call | None:
    """Return the definition on an array that is masked already."""
    if case.family != "missing":
        return None
    x = np.ma.array(arrays.x, mask=~arrays.keep)
    return Call(partial(_standardize, x, case.axis), lambda y: [y.filled(0)])


def _standardize(x: Any, axis: int) -> Any:
    return (x - x.mean(axis=axis, keepdims=True)) / x.std(axis=axis, keepdims=True)
