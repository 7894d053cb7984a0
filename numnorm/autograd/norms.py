"""The table of norms: each one's forward and backward function as a differentiable function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import numnorm
from numnorm.autograd.primitives import Differentiable
from numnorm.layouts import normalized_axes


def _norm(
    forward: Callable[..., Any],
    backward: Callable[..., Any],
    *,
    affine: str | None = None,
    only_forward: tuple[str, ...] = ("eps",),
    only_backward: tuple[str, ...] = (),
) -> Differentiable:
    """Return a norm from the functions of numnorm.

    `affine` is the option with the axes of a gamma and a beta. `only_forward` and `only_backward`
    are the options that only one of both functions takes. The backward function takes a gamma if
    there are two arrays or more.
    """
    not_backward = {*only_forward, "fill"}

    def result(x: Any, *parameters: Any, **options: Any) -> tuple[Any, tuple[Any, ...]]:
        taken = {name: value for name, value in options.items() if name not in only_backward}
        y, *statistics = forward(x, *parameters, **taken)
        return y, tuple(statistics)

    def gradients(dy: Any, saved: Any, x: Any, *parameters: Any, **options: Any) -> tuple[Any, ...]:
        taken = {name: value for name, value in options.items() if name not in not_backward}
        found = backward(dy, x, *saved, *parameters[:1], **taken)
        if not parameters:
            return (found,)
        if affine is None or parameters[1] is None:
            return tuple(found)
        dx, dgamma, dbeta = found
        if np.shape(dbeta) != np.shape(parameters[1]):  # it has the shape of gamma
            counting = options.get("where"), options.get("nan_policy")
            dbeta = _sum_to(np.shape(parameters[1]), _counted(dy, x, *counting), options[affine])
        return dx, dgamma, dbeta

    result.__name__ = forward.__name__.removesuffix("_forward")
    return Differentiable(result, gradients)


def _counted(dy: Any, x: Any, where: Any, nan_policy: str | None) -> Any:
    """Return dy with 0 for what does not count."""
    dy = dy if where is None else np.where(where, dy, 0.0)
    return np.where(np.isnan(x), 0.0, dy) if nan_policy == "omit" else dy


def _sum_to(shape: tuple[int, ...], dy: Any, axes: Any) -> Any:
    """Return the sums of dy over the axes in which a bias of a shape broadcasts."""
    full = shape
    if len(shape) != dy.ndim:
        own = normalized_axes(axes, dy.ndim)
        full = tuple(size if axis in own else 1 for axis, size in enumerate(dy.shape))
    summed = tuple(axis for axis, size in enumerate(full) if size == 1)
    return dy.sum(axis=summed, dtype=np.float64).reshape(shape)


_RUNNING = (
    *("running_mean", "running_var", "momentum", "batches", "convention", "unbiased"),
    "eps",
)

LAYER = _norm(
    numnorm.layer_norm_forward,
    numnorm.layer_norm_backward,
    affine="axis",
    only_backward=("detach",),
)
RMS = _norm(numnorm.rms_norm_forward, numnorm.rms_norm_backward)
ADA = _norm(
    numnorm.ada_norm_forward,
    numnorm.ada_norm_backward,
    only_forward=(),
    only_backward=("detach_factor",),
)
WEIGHT = _norm(numnorm.weight_norm_forward, numnorm.weight_norm_backward)
GROUP = _norm(numnorm.group_norm_forward, numnorm.group_norm_backward, affine="channel_axis")
INSTANCE = _norm(
    numnorm.instance_norm_forward,
    numnorm.instance_norm_backward,
    affine="channel_axis",
    only_forward=_RUNNING,
)
MOVING = _norm(numnorm.moving_norm_forward, numnorm.moving_norm_backward)
EXPONENTIAL = _norm(
    numnorm.exponential_norm_forward, numnorm.exponential_norm_backward, only_forward=()
)
BATCH = _norm(
    numnorm.batch_norm_forward,
    numnorm.batch_norm_backward,
    affine="channel_axis",
    only_forward=_RUNNING,
)
