"""The norms of rows."""

from __future__ import annotations

from typing import Any, Unpack

from numnorm.arguments import Axis, check_choice, check_flag
from numnorm.array_types import Detach, EpsIn, Filling, Integer, Number
from numnorm.autograd import norms
from numnorm.norms.layer import DETACHABLE


def layer_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    axis: Axis = -1,
    eps: Number = 1e-5,
    detach: Detach | None = None,
    **others: Unpack[Filling],
) -> Any:
    """Return `numnorm.layer_norm`, with gradients with respect to x, gamma and beta.

    Parameters
    ----------
    x, gamma, beta, axis, eps
        As for `numnorm.layer_norm`.
    detach : {None, "mean", "scale", "both"}
        The statistics that are constants for the gradient (DetachNorm).
    where, weights, nan_policy, fill
        As for `numnorm.layer_norm`; constants for the gradient.

    Returns
    -------
    array
        Of the shape and dtype of x.

    Examples
    --------
    >>> import autograd
    >>> import numpy as np
    >>> import numnorm.autograd
    >>> x = np.array([[1.0, 2.0, 4.0]])
    >>> def first(x):
    ...     return numnorm.autograd.layer_norm(x)[0, 0]
    >>> autograd.grad(first)(x).round(4)
    array([[ 0.2291, -0.3436,  0.1145]])
    """
    if detach is not None:
        check_choice("detach", detach, DETACHABLE)
    return norms.LAYER(x, gamma, beta, axis=axis, eps=eps, detach=detach, **others)


def rms_norm(
    x: Any,
    gamma: Any = None,
    *,
    axis: Axis = -1,
    eps: Number = 1e-5,
    **others: Unpack[Filling],
) -> Any:
    """Return `numnorm.rms_norm`, with gradients with respect to x and gamma.

    Parameters
    ----------
    x, gamma, axis, eps
        As for `numnorm.rms_norm`.
    where, weights, nan_policy, fill
        As for `numnorm.rms_norm`; constants for the gradient.

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
    ...     return numnorm.autograd.rms_norm(x, eps=0)[0, 0]
    >>> autograd.grad(first)(np.array([[3.0, 4.0]])).round(4)
    array([[ 0.181 , -0.1358]])
    """
    return norms.RMS(x, gamma, axis=axis, eps=eps, **others)


def ada_norm(
    x: Any,
    *,
    axis: Axis = -1,
    scale: float = 1.0,
    k: Number = 0.1,
    eps: Number = 1e-5,
    eps_in: EpsIn = "variance",
    ddof: Integer = 0,
    detach_factor: bool = True,
    **others: Unpack[Filling],
) -> Any:
    """Return `numnorm.ada_norm`, with the gradient with respect to x.

    Parameters
    ----------
    x, axis, scale, k, eps, eps_in, ddof
        As for `numnorm.ada_norm`.
    detach_factor : bool, default True
        Whether the factor is a constant for the gradient, as its authors define it. With False,
        the gradient is the derivative of the function.
    where, weights, nan_policy, fill
        As for `numnorm.ada_norm`; constants for the gradient.

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
    ...     return numnorm.autograd.ada_norm(x)[0, 0]
    >>> autograd.grad(first)(np.array([[1.0, 2.0, 4.0]])).round(4)
    array([[ 0.2536, -0.3804,  0.1268]])
    """
    check_flag("detach_factor", detach_factor)
    return norms.ADA(
        x,
        axis=axis,
        scale=scale,
        k=k,
        eps=eps,
        eps_in=eps_in,
        ddof=ddof,
        detach_factor=detach_factor,
        **others,
    )


def standard_normal_variate(
    x: Any,
    *,
    axis: Axis = -1,
    ddof: Integer = 0,
    **others: Unpack[Filling],
) -> Any:
    """Return `numnorm.standard_normal_variate`, with the gradient with respect to x.

    Parameters
    ----------
    x, axis, ddof
        As for `numnorm.standard_normal_variate`.
    where, weights, nan_policy, fill
        As for `numnorm.standard_normal_variate`; constants for the gradient.

    Returns
    -------
    array
        Of the shape and dtype of x.

    Notes
    -----
    At a constant row there is no derivative, and the gradient is 0.

    Examples
    --------
    >>> import autograd
    >>> import numpy as np
    >>> import numnorm.autograd
    >>> def first(x):
    ...     return numnorm.autograd.standard_normal_variate(x, ddof=1)[0, 0]
    >>> autograd.grad(first)(np.array([[1.0, 2.0, 3.0]])).round(4)
    array([[ 0.1667, -0.3333,  0.1667]])
    """
    # AdaNorm without its factor: it has a ddof, and a backward pass.
    return ada_norm(x, axis=axis, ddof=ddof, k=0.0, eps=0.0, **others)


def weight_norm(
    v: Any,
    g: Any = None,
    *,
    axis: Axis = -1,
    **others: Unpack[Filling],
) -> Any:
    """Return `numnorm.weight_norm`, with gradients with respect to v and g.

    Parameters
    ----------
    v, g, axis
        As for `numnorm.weight_norm`.
    where, weights, nan_policy, fill
        As for `numnorm.weight_norm`; constants for the gradient.

    Returns
    -------
    array
        Of the shape and dtype of v.

    Examples
    --------
    >>> import autograd
    >>> import numpy as np
    >>> import numnorm.autograd
    >>> def first(v):
    ...     return numnorm.autograd.weight_norm(v)[0, 0]
    >>> autograd.grad(first)(np.array([[3.0, 4.0]]))
    array([[ 0.128, -0.096]])
    """
    return norms.WEIGHT(v, g, axis=axis, **others)
