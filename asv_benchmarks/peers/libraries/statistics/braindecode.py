"""braindecode's `exponential_moving_standardize` by its definition: a ratio of two linear filters.

The filters are SciPy's `lfilter`, as in braindecode 1.8.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from scipy.signal import lfilter

from ...arrays import Array
from ...cases import ALPHA, LEAST, Case
from .. import Call

PACKAGES = ("scipy", "numpy")


def start(threads: int) -> None:
    """Do nothing: `lfilter` has one thread."""


def call_of(case: Case, arrays: Any) -> Call | None:
    """Return the formula."""
    if case.family != "moving" or case.window:
        return None
    return Call(partial(exponential_moving_standardize, arrays.x, case.axis), lambda y: [y])


def exponential_moving_standardize(x: Array, axis: int) -> Array:
    """Return the result, of which each mean is a fading sum over the sum of its weights."""
    fading = partial(lfilter, [1.0], [1.0, ALPHA - 1.0])
    weight = fading(np.ones(x.shape[axis]))
    if axis == 0:
        weight = weight[:, np.newaxis]
    deviations = x - fading(x, axis=axis) / weight
    squares = fading(deviations * deviations, axis=axis) / weight
    return deviations / np.maximum(LEAST, np.sqrt(squares))
