"""Robust norms by their definitions, in the dtype of the array."""

from __future__ import annotations

import numpy as np

from .arrays import Array
from .cases import Case

# The standard deviation of normally distributed data by their median absolute deviation.
NORMAL = 1.482602218505602


def result(case: Case, x: Array) -> Array:
    """Return x less its medians, by the scale that the case names."""
    options = {"axis": case.axis, "keepdims": True}
    deviations = x - np.nanmedian(x, **options)
    if case.norm.startswith("mad"):
        scale = np.nanmedian(abs(deviations), **options)
        return deviations / (x.dtype.type(NORMAL) * scale)
    if case.norm.startswith("iqr"):
        low, high = np.nanpercentile(x, (25, 75), **options)
        return deviations / (high - low)
    return deviations
