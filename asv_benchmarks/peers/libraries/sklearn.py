"""scikit-learn's `scale`, `robust_scale`, and its scalers of features, dense or sparse."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from sklearn.preprocessing import (
    QuantileTransformer,
    RobustScaler,
    StandardScaler,
    robust_scale,
    scale,
)
from sklearn.utils.sparsefuncs import mean_variance_axis

from ..arrays import Array
from ..cases import MOST, Case
from . import Call

PACKAGES = ("scikit-learn", "numpy")


def start(threads: int) -> None:
    """Do nothing: they have one thread."""


def call_of(case: Case, arrays: Any) -> Call | None:
    """Return `scale` of the rows, or the scaler of the features, which leaves NaN out."""
    if case.family == "sparse":
        if case.norm.startswith("moments"):
            return Call(partial(mean_variance_axis, arrays.x, 0), lambda found: [np.stack(found)])
        return Call(partial(arrays.each, _scaled), lambda y: [y])
    if case.norm == "quantiles":
        return Call(partial(_quantiles, arrays.x), lambda q: [q])
    if case.norm == "median_iqr":
        fit = partial(RobustScaler().fit, arrays.x)
        return Call(fit, lambda fitted: [np.stack([fitted.center_, fitted.scale_])])
    if case.norm in ("BatchNormalizer", "columns_nan"):
        return Call(partial(StandardScaler().fit_transform, arrays.x), lambda y: [y])
    if case.norm == "iqr_columns":
        return Call(partial(RobustScaler().fit_transform, arrays.x), lambda y: [y])
    if case.norm == "iqr_rows":
        return Call(partial(robust_scale, arrays.x, axis=1), lambda y: [y])
    if case.norm != "standardize":
        return None
    return Call(partial(scale, arrays.x, axis=1), lambda y: [y])


def _scaled(x: Any) -> Any:
    y = StandardScaler(with_mean=False).fit_transform(x)
    np.minimum(y.data, MOST, out=y.data)
    return y


def _quantiles(x: Array) -> Array:
    found: Array = QuantileTransformer(n_quantiles=5, subsample=None).fit(x).quantiles_
    return found[1:4]
