"""Every norm as a forward and a backward call, ready to be timed.

A new norm is one function here and one entry of `CALLS`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import numnorm

Array = np.ndarray[Any, Any]


class Calls(NamedTuple):
    """The calls without arguments of one norm on one array."""

    forward: Callable[[], Any]
    backward: Callable[[], Any]


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
    """Columns, with gain and bias."""
    gamma, beta = _parameters(x.shape[1], x.dtype)
    saved = numnorm.batch_norm_forward(x, gamma, beta)
    return Calls(
        partial(numnorm.batch_norm, x, gamma, beta),
        partial(numnorm.batch_norm_backward, dy, x, saved.mean, saved.rstd, gamma),
    )


def group_norm(x: Array, dy: Array) -> Calls:
    """Four groups of sixteen channels."""
    x, dy = _with_channels(x), _with_channels(dy)
    gamma, beta = _parameters(x.shape[1], x.dtype)
    saved = numnorm.group_norm_forward(x, gamma, beta, groups=4)
    return Calls(
        partial(numnorm.group_norm, x, gamma, beta, groups=4),
        partial(numnorm.group_norm_backward, dy, x, saved.mean, saved.rstd, gamma, groups=4),
    )


def instance_norm(x: Array, dy: Array) -> Calls:
    """Each of sixteen channels by itself."""
    x, dy = _with_channels(x), _with_channels(dy)
    gamma, beta = _parameters(x.shape[1], x.dtype)
    saved = numnorm.instance_norm_forward(x, gamma, beta)
    return Calls(
        partial(numnorm.instance_norm, x, gamma, beta),
        partial(numnorm.instance_norm_backward, dy, x, saved.mean, saved.rstd, gamma),
    )


def _parameters(width: int, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    return np.linspace(0.5, 1.5, width).astype(dtype), np.linspace(-1, 1, width).astype(dtype)


def _with_channels(x: Array) -> Array:
    return x.reshape(x.shape[0], 16, -1)


CALLS: dict[str, Callable[[Array, Array], Calls]] = {
    function.__name__: function
    for function in (
        layer_norm,
        rms_norm,
        ada_norm,
        weight_norm,
        batch_norm,
        group_norm,
        instance_norm,
    )
}
