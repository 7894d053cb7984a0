"""The first step of norms along an axis: choose the backend, the layout and the options of x."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.arguments import check_eps, result_dtype
from numnorm.backends import backend_for, backend_of
from numnorm.backends.contract.backend import RowBackend
from numnorm.backends.contract.moving import MovingBackend
from numnorm.backends.contract.norms import Scaling, scaling_by
from numnorm.layouts import MovingLayout, RowLayout, moving_layout, row_layout

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


def resolve_moving(
    x: Any, axis: Any, checked: Callable[..., Any], options: tuple[Any, ...]
) -> tuple[MovingBackend, Any, MovingLayout, Any]:
    """Return the backend of x, x in a float dtype, its sequences, and ``checked(*options)``."""
    if type(x) is _NDARRAY:
        try:
            backend, layout, result = _known_moving(x.shape, x.dtype, axis, checked, *options)
            return backend, x, layout, result
        except (TypeError, ValueError):
            pass  # the code below converts x or raises the right error
    backend, x = backend_for(x, "x")
    return backend, x, moving_layout(x.shape, axis), checked(*options)


@functools.lru_cache(maxsize=1024, typed=True)
def _known_moving(
    shape: Any, dtype: np.dtype[Any], axis: Any, checked: Callable[..., Any], *options: Any
) -> tuple[Any, MovingLayout, Any]:
    """Return backend, sequences and options for a NumPy array that needs no conversion."""
    if result_dtype("x", dtype) != dtype:
        raise TypeError("converted")
    return backend_of(np.ndarray), moving_layout(shape, axis), checked(*options)
