"""scikit-learn's `scale` and StandardScaler, `robust_scale` and RobustScaler."""

from __future__ import annotations

from functools import partial
from typing import Any

from sklearn.preprocessing import RobustScaler, StandardScaler, robust_scale, scale

from ..cases import Case
from . import Call

PACKAGES = ("scikit-learn", "numpy")


def start(threads: int) -> None:
    """Do nothing: they have one thread."""


def call_of(case: Case, arrays: Any) -> Call | None:
    """Return `scale` of the rows, or the scaler of the features, which leaves NaN out."""
    if case.norm in ("BatchNormalizer", "columns_nan"):
        return Call(partial(StandardScaler().fit_transform, arrays.x), lambda y: [y])
    if case.norm == "iqr_columns":
        return Call(partial(RobustScaler().fit_transform, arrays.x), lambda y: [y])
    if case.norm == "iqr_rows":
        return Call(partial(robust_scale, arrays.x, axis=1), lambda y: [y])
    if case.norm != "standardize":
        return None
    return Call(partial(scale, arrays.x, axis=1), lambda y: [y])
