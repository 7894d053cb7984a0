"""The norms of channels."""

from __future__ import annotations

from typing import Any, Literal, Unpack

from numnorm.arguments import Axis
from numnorm.array_types import Convention, Filling, Integer, Number
from numnorm.autograd import norms


def group_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    groups: Integer,
    channel_axis: Integer = 1,
    eps: Number = 1e-5,
    **others: Unpack[Filling],
) -> Any:
    """Return `numnorm.group_norm`, with gradients with respect to x, gamma and beta.

    Parameters
    ----------
    x, gamma, beta, groups, channel_axis, eps
        As for `numnorm.group_norm`.
    where, weights, nan_policy, fill
        As for `numnorm.group_norm`; constants for the gradient.

    Returns
    -------
    array
        Of the shape and dtype of x.

    Examples
    --------
    >>> import autograd
    >>> import numpy as np
    >>> import numnorm.autograd
    >>> def weighted(beta):
    ...     y = numnorm.autograd.group_norm(np.array([[1.0, 2.0, 4.0, 8.0]]), None, beta, groups=2)
    ...     return (y * np.array([1.0, 0.0, 0.0, 2.0])).sum()
    >>> autograd.grad(weighted)(np.zeros(4))
    array([1., 0., 0., 2.])
    """
    return norms.GROUP(x, gamma, beta, groups=groups, channel_axis=channel_axis, eps=eps, **others)


def instance_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    channel_axis: Integer = 1,
    running_mean: Any = None,
    running_var: Any = None,
    training: bool = True,
    momentum: Number | Literal["cumulative"] | None = None,
    batches: int | None = None,
    convention: Convention = "torch",
    unbiased: bool | None = None,
    eps: Number = 1e-5,
    **others: Unpack[Filling],
) -> Any:
    """Return `numnorm.instance_norm`, with gradients with respect to x, gamma and beta.

    Parameters
    ----------
    x, gamma, beta, channel_axis, running_mean, running_var, training, momentum, batches, \
convention, unbiased, eps
        As for `numnorm.instance_norm`. The running statistics are constants for the gradient; in
        training each forward pass updates them.
    where, weights, nan_policy, fill
        As for `numnorm.instance_norm`; constants for the gradient.

    Returns
    -------
    array
        Of the shape and dtype of x.

    Examples
    --------
    >>> import autograd
    >>> import numpy as np
    >>> import numnorm.autograd
    >>> def first(x):
    ...     return numnorm.autograd.instance_norm(x)[0, 0, 0]
    >>> autograd.grad(first)(np.array([[[1.0, 2.0, 4.0]]])).round(4)
    array([[[ 0.2291, -0.3436,  0.1145]]])
    """
    return norms.INSTANCE(
        x,
        gamma,
        beta,
        channel_axis=channel_axis,
        running_mean=running_mean,
        running_var=running_var,
        training=training,
        momentum=momentum,
        batches=batches,
        convention=convention,
        unbiased=unbiased,
        eps=eps,
        **others,
    )


def batch_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    channel_axis: Axis = 1,
    running_mean: Any = None,
    running_var: Any = None,
    training: bool = True,
    momentum: Number | Literal["cumulative"] | None = None,
    batches: int | None = None,
    convention: Convention = "torch",
    unbiased: bool | None = None,
    eps: Number = 1e-5,
    **others: Unpack[Filling],
) -> Any:
    """Return `numnorm.batch_norm`, with gradients with respect to x, gamma and beta.

    Parameters
    ----------
    x, gamma, beta, channel_axis, running_mean, running_var, training, momentum, batches, \
convention, unbiased, eps
        As for `numnorm.batch_norm`. The running statistics are constants for the gradient; in
        training each forward pass updates them.
    where, weights, nan_policy, fill
        As for `numnorm.batch_norm`; constants for the gradient.

    Returns
    -------
    array
        Of the shape and dtype of x.

    Examples
    --------
    >>> import autograd
    >>> import numpy as np
    >>> import numnorm.autograd
    >>> def first(x):
    ...     return numnorm.autograd.batch_norm(x)[0, 0]
    >>> autograd.grad(first)(np.array([[1.0], [2.0], [4.0]])).ravel().round(4)
    array([ 0.2291, -0.3436,  0.1145])
    """
    return norms.BATCH(
        x,
        gamma,
        beta,
        channel_axis=channel_axis,
        running_mean=running_mean,
        running_var=running_var,
        training=training,
        momentum=momentum,
        batches=batches,
        convention=convention,
        unbiased=unbiased,
        eps=eps,
        **others,
    )
