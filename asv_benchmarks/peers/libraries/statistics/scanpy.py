"""scanpy's `scale` of sparse matrices with ``zero_center=False``, by its formula in SciPy."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ...arrays import Array
from ...cases import MOST, Case
from .. import Call

PACKAGES = ("scipy", "numpy")


def start(threads: int) -> None:
    """Do nothing: SciPy has one thread."""


def call_of(case: Case, arrays: Any) -> Call | None:
    """Return the formula."""
    if case.family != "sparse":
        return None
    if case.norm.startswith("moments"):
        return Call(partial(_moments, arrays.x), lambda found: [found])
    return Call(partial(arrays.each, _scaled), lambda y: [y])


def _moments(x: Any) -> Array:
    mean = np.asarray(x.mean(axis=0, dtype=np.float64)).ravel()
    squares = np.asarray(x.multiply(x).mean(axis=0, dtype=np.float64)).ravel()
    return np.stack([mean, squares - mean**2])


def _scaled(x: Any) -> Any:
    y = x.copy()
    std = np.sqrt(_moments(y)[1]).astype(y.dtype)
    std[std == 0] = 1
    if y.format == "csr":
        y.data /= std.take(y.indices, mode="clip")
    else:
        y.data /= std.repeat(np.diff(y.indptr))
    y.data[y.data > MOST] = MOST
    return y
