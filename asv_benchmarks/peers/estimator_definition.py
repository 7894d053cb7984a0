"""The estimators by their definitions, in the dtype of the spectra."""

from __future__ import annotations

import numpy as np

from .arrays import Array
from .cases import Case

PERCENTILE = 25


def result(case: Case, x: Array) -> Array:
    """Return what a fit and a transform of the same spectra give."""
    if case.norm == "BatchNormalizer":
        return (x - x.mean(axis=0)) / x.std(axis=0)
    mean = x.mean(axis=1, keepdims=True)
    if case.norm == "StandardNormalVariate":
        return (x - mean) / x.std(axis=1, keepdims=True)
    if case.norm == "RobustNormalVariate":
        low = np.percentile(x, PERCENTILE, axis=1, keepdims=True)
        return (x - low) / np.std(x, axis=1, keepdims=True, where=x <= low)
    reference = x.mean(axis=0)
    deviations = reference - reference.mean()
    slope = (x @ deviations)[:, np.newaxis] / (deviations @ deviations)
    return (x - mean) / slope + reference.mean()
