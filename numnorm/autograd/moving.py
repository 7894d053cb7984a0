"""The norms by statistics that move along an axis."""

from __future__ import annotations

from typing import Any, Unpack

from numnorm.array_types import Integer, Number, OmittingFilling
from numnorm.autograd import norms


def moving_norm(
    x: Any,
    window: Integer,
    *,
    axis: Integer = -1,
    center: bool = False,
    min_window: Integer = 1,
    subtract_mean: bool = True,
    scale: bool = True,
    eps: Number = 0.0,
    **others: Unpack[OmittingFilling],
) -> Any:
    """Return `numnorm.moving_norm`, with the gradient with respect to x.

    Parameters
    ----------
    x, window, axis, center, min_window, subtract_mean, scale, eps
        As for `numnorm.moving_norm`.
    where, nan_policy, fill
        As for `numnorm.moving_norm`; constants for the gradient.

    Returns
    -------
    array
        Of the shape and dtype of x.

    Examples
    --------
    >>> import autograd
    >>> import numpy as np
    >>> import numnorm.autograd
    >>> def last(x):
    ...     return numnorm.autograd.moving_norm(x, 2, scale=False)[-1]
    >>> autograd.grad(last)(np.array([1.0, 3.0, 5.0, 9.0]))
    array([ 0. ,  0. , -0.5,  0.5])
    """
    return norms.MOVING(
        x,
        window=window,
        axis=axis,
        center=center,
        min_window=min_window,
        subtract_mean=subtract_mean,
        scale=scale,
        eps=eps,
        **others,
    )


def exponential_norm(
    x: Any,
    alpha: Number,
    *,
    axis: Integer = -1,
    adjust: bool = True,
    initial: Integer = 0,
    eps: Number = 1e-4,
    **others: Unpack[OmittingFilling],
) -> Any:
    """Return `numnorm.exponential_norm`, with the gradient with respect to x.

    Parameters
    ----------
    x, alpha, axis, adjust, initial, eps
        As for `numnorm.exponential_norm`.
    where, nan_policy, fill
        As for `numnorm.exponential_norm`; constants for the gradient.

    Returns
    -------
    array
        Of the shape and dtype of x.

    Examples
    --------
    >>> import autograd
    >>> import numpy as np
    >>> import numnorm.autograd
    >>> def last(x):
    ...     return numnorm.autograd.exponential_norm(x, 0.5)[-1]
    >>> autograd.grad(last)(np.array([1.0, 4.0, 4.0])).round(4)
    array([ 0.    , -0.5015,  0.5015])
    """
    return norms.EXPONENTIAL(
        x, alpha=alpha, axis=axis, adjust=adjust, initial=initial, eps=eps, **others
    )
