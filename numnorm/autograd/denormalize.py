"""The way back from a normalized array, as a function that autograd differentiates."""

from __future__ import annotations

from typing import Any

import numnorm
from numnorm.arguments import Axis
from numnorm.autograd.primitives import Differentiable

_NAMES = "y", "mean", "rstd", "gamma", "beta"


def denormalize(
    y: Any,
    mean: Any,
    rstd: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    axis: Axis = -1,
    channel_axis: Axis | None = None,
) -> Any:
    """Return `numnorm.denormalize`, with gradients with respect to all its arrays.

    Parameters
    ----------
    y : array_like
        As for `numnorm.denormalize`.
    mean, rstd : array_like
        As for `numnorm.denormalize`. In a function of x, they may be constants: what
        `numnorm.instance_norm_forward` returned for the value of x; or functions of x.
    gamma, beta : array_like, optional
        As for `numnorm.denormalize`.
    axis, channel_axis
        As for `numnorm.denormalize`.

    Returns
    -------
    array
        Of the shape and dtype of y.

    Examples
    --------
    >>> import autograd
    >>> import numpy as np
    >>> import numnorm.autograd
    >>> def last(y):
    ...     return numnorm.autograd.denormalize(y, np.array([5.0]), np.array([0.5])).ravel()[-1]
    >>> print(autograd.grad(last)(np.array([[1.0, 2.0]])))
    [[0. 2.]]
    """
    given = dict(zip(_NAMES, (y, mean, rstd, gamma, beta), strict=True))
    present = tuple(name for name, value in given.items() if value is not None)
    arrays = (given[name] for name in present)
    return _PRIMITIVE(*arrays, names=present, axis=axis, channel_axis=channel_axis)


def _forward(*arrays: Any, names: tuple[str, ...], **options: Any) -> tuple[Any, None]:
    return numnorm.denormalize(**_named(names, arrays), **options), None


def _backward(dx: Any, saved: None, *arrays: Any, names: tuple[str, ...], **options: Any) -> Any:
    found = numnorm.denormalize_backward(dx, **_named(names, arrays), **options)
    return tuple(gradient for gradient in found if gradient is not None)


def _named(names: tuple[str, ...], arrays: tuple[Any, ...]) -> dict[str, Any]:
    return {"mean": None, "rstd": None, **dict(zip(names, arrays, strict=True))}


_forward.__name__ = "denormalize"
_PRIMITIVE = Differentiable(_forward, _backward)
