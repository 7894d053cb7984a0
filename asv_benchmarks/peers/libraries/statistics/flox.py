"""flox: `groupby_reduce` of arrays of NumPy by its own engine."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from flox import groupby_reduce

from ...arrays import Array, Labelled
from ...cases import Case
from .. import Call

PACKAGES = ("flox", "numpy_groupies", "numpy")


def start(threads: int) -> None:
    """Do nothing: its engine has one thread."""


def call_of(case: Case, arrays: Any) -> Call | None:
    """Return the statistics, or one line of arithmetic with them."""
    if case.family != "labels":
        return None
    function = _statistics if case.norm == "labels_statistics" else _normalized
    return Call(partial(function, arrays), lambda y: [y])


def _statistics(arrays: Labelled) -> Array:
    by_feature: Any = arrays.x.T
    mean, _ = groupby_reduce(by_feature, arrays.labels, func="mean", engine="flox")
    deviation, _ = groupby_reduce(by_feature, arrays.labels, func="std", engine="flox")
    return np.stack([mean.T, deviation.T])


def _normalized(arrays: Labelled) -> Array:
    mean, deviation = _statistics(arrays)
    return (arrays.x - mean[arrays.labels]) / deviation[arrays.labels]
