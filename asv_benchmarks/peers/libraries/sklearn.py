"""scikit-learn's `scale`."""

from __future__ import annotations

from functools import partial

from sklearn.preprocessing import scale

from ..arrays import Arrays
from ..cases import Case
from . import Call

PACKAGES = ("scikit-learn", "numpy")


def start(threads: int) -> None:
    """Do nothing: `scale` has one thread."""


def call_of(case: Case, arrays: Arrays) -> Call | None:
    """Return `scale` of the rows."""
    if case.norm != "standardize":
        return None
    return Call(partial(scale, arrays.x, axis=1), lambda y: [y])
