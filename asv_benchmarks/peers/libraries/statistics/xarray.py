"""xarray: `groupby` of an array in memory, without flox."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from ...cases import Case
from .. import Call

PACKAGES = ("xarray", "numpy")


def start(threads: int) -> None:
    """Do nothing: xarray has one thread."""


def call_of(case: Case, arrays: Any) -> Call | None:
    """Return a call on an array whose labels are a coordinate."""
    if case.family != "labels":
        return None
    labels = {"label": ("sample", arrays.labels)}
    groups = xr.DataArray(arrays.x, labels, ("sample", "feature")).groupby("label")
    if case.norm == "labels_statistics":
        return Call(partial(_statistics, groups), lambda y: [y])
    return Call(partial(_normalized, groups), lambda y: [y.to_numpy()])


def _statistics(groups: Any) -> Any:
    with xr.set_options(use_flox=False):
        return np.stack([groups.mean("sample"), groups.std("sample")])


def _normalized(groups: Any) -> Any:
    """Return the recipe for standardized anomalies in xarray's documentation."""
    with xr.set_options(use_flox=False):
        return (groups - groups.mean("sample")).groupby("label") / groups.std("sample")
