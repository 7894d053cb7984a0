"""The first step of layer and RMS norm: choose the backend, the rows and the scaling of x."""

import functools
from typing import Any

import numpy as np

from numnorm.arguments import check_eps, result_dtype
from numnorm.backends import backend_for, backend_of
from numnorm.backends.contract.backend import RowBackend
from numnorm.backends.contract.norms import Scaling, scaling_by
from numnorm.layouts import RowLayout, row_layout

_NDARRAY = np.ndarray  # looked up at every call


def resolve_axis(x: Any, axis: Any, eps: Any) -> tuple[RowBackend, Any, RowLayout, Scaling]:
    """Return the backend of x, x in a float dtype, its rows over `axis`, and their scaling."""
    # One cached lookup: a small call would spend much of its time on the separate checks.
    if type(x) is _NDARRAY and type(axis) is int and type(eps) is float:
        try:
            backend, layout, scaling = _known(x.shape, x.dtype, axis, eps)
            return backend, x, layout, scaling
        except (TypeError, ValueError):
            pass  # the code below converts x or raises the right error
    backend, x = backend_for(x, "x")
    return backend, x, row_layout(x.shape, axis), scaling_by(check_eps(eps))


@functools.lru_cache(maxsize=1024)
def _known(
    shape: Any, dtype: np.dtype[Any], axis: int, eps: float
) -> tuple[Any, RowLayout, Scaling]:
    """Return backend, rows and scaling for a NumPy array that needs no conversion."""
    if result_dtype("x", dtype) != dtype:
        raise TypeError("converted")
    return backend_of(np.ndarray), row_layout(shape, axis), scaling_by(check_eps(eps))
