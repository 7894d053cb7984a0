"""SciPy's `zscore`."""

from __future__ import annotations

from functools import partial

from scipy.stats import zscore

from ..arrays import Arrays
from ..cases import Case
from . import Call

PACKAGES = ("scipy", "numpy")


def start(threads: int) -> None:
    """Do nothing: `zscore` has one thread."""


def call_of(case: Case, arrays: Arrays) -> Call | None:
    """Return `zscore` of the rows."""
    if case.norm != "standardize":
        return None
    return Call(partial(zscore, arrays.x, axis=1), lambda y: [y])
