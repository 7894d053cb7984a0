"""Every norm as a forward and a backward call for the benchmarks.

A new norm needs a function here and an entry in `OF_MATRICES` or `OF_IMAGES`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import numnorm

from .arrays import Array


class Calls(NamedTuple):
    """The calls of one norm on one array; their only argument is `out`."""

    forward: Callable[..., Any]
    backward: Callable[..., Any]


def layer_norm(x: Array, dy: Array) -> Calls:
    """Rows, with gain and bias."""
    gamma, beta = _parameters(x.shape[1], x.dtype)
    saved = numnorm.layer_norm_forward(x, gamma, beta)
    return Calls(
        partial(numnorm.layer_norm, x, gamma, beta),
        partial(numnorm.layer_norm_backward, dy, x, saved.mean, saved.rstd, gamma),
    )


def rms_norm(x: Array, dy: Array) -> Calls:
    """Rows, with gain."""
    gamma, _ = _parameters(x.shape[1], x.dtype)
    saved = numnorm.rms_norm_forward(x, gamma)
    return Calls(
        partial(numnorm.rms_norm, x, gamma),
        partial(numnorm.rms_norm_backward, dy, x, saved.rstd, gamma),
    )


def ada_norm(x: Array, dy: Array) -> Calls:
    """Rows, without parameters."""
    saved = numnorm.ada_norm_forward(x)
    return Calls(
        partial(numnorm.ada_norm, x),
        partial(numnorm.ada_norm_backward, dy, x, saved.mean, saved.rstd),
    )


def weight_norm(x: Array, dy: Array) -> Calls:
    """Rows, with a length for each."""
    g, _ = _parameters(x.shape[0], x.dtype)
    saved = numnorm.weight_norm_forward(x, g)
    return Calls(
        partial(numnorm.weight_norm, x, g),
        partial(numnorm.weight_norm_backward, dy, x, saved.norm, g),
    )


def batch_norm(x: Array, dy: Array) -> Calls:
    """Channels, with gain and bias, and statistics of the batch."""
    gamma, beta = _parameters(x.shape[1], x.dtype)
    saved = numnorm.batch_norm_forward(x, gamma, beta)
    return Calls(
        partial(numnorm.batch_norm, x, gamma, beta),
        partial(numnorm.batch_norm_backward, dy, x, saved.mean, saved.rstd, gamma),
    )


def batch_norm_inference(x: Array, dy: Array) -> Calls:
    """Channels, with gain and bias, and stored statistics."""
    gamma, beta = _parameters(x.shape[1], x.dtype)
    stored = {"running_mean": np.zeros(x.shape[1]), "running_var": np.ones(x.shape[1])}
    options = {"training": False}
    saved = numnorm.batch_norm_forward(x, gamma, beta, **stored, **options)
    return Calls(
        partial(numnorm.batch_norm, x, gamma, beta, **stored, **options),
        partial(numnorm.batch_norm_backward, dy, x, saved.mean, saved.rstd, gamma, **options),
    )


def group_norm(x: Array, dy: Array) -> Calls:
    """Groups of two channels."""
    gamma, beta = _parameters(x.shape[1], x.dtype)
    groups = x.shape[1] // 2
    saved = numnorm.group_norm_forward(x, gamma, beta, groups=groups)
    return Calls(
        partial(numnorm.group_norm, x, gamma, beta, groups=groups),
        partial(numnorm.group_norm_backward, dy, x, saved.mean, saved.rstd, gamma, groups=groups),
    )


def instance_norm(x: Array, dy: Array) -> Calls:
    """Each channel by itself."""
    gamma, beta = _parameters(x.shape[1], x.dtype)
    saved = numnorm.instance_norm_forward(x, gamma, beta)
    return Calls(
        partial(numnorm.instance_norm, x, gamma, beta),
        partial(numnorm.instance_norm_backward, dy, x, saved.mean, saved.rstd, gamma),
    )


def _parameters(width: int, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    return np.linspace(0.5, 1.5, width).astype(dtype), np.linspace(-1, 1, width).astype(dtype)


def _by_name(*functions: Callable[[Array, Array], Calls]) -> dict[str, Any]:
    return {function.__name__: function for function in functions}


OF_MATRICES = _by_name(
    layer_norm, rms_norm, ada_norm, weight_norm, batch_norm, batch_norm_inference
)
OF_IMAGES = _by_name(group_norm, instance_norm, batch_norm, batch_norm_inference)
CALLS = OF_MATRICES | OF_IMAGES
