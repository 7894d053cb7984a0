"""Root mean square layer normalization (Zhang and Sennrich 2019)."""

from __future__ import annotations

from sys import modules
from typing import Any, Never

from numnorm.arguments import Axis, Shape, check_eps
from numnorm.array_likes import any_lazy, lazily
from numnorm.array_types import Array, ArrayLike, Input, NanPolicy, Number
from numnorm.backends.contract.norms import Detached, Norm, scaling_by
from numnorm.keywords import unexpected
from numnorm.layouts import row_layout
from numnorm.norms.affine import GAIN
from numnorm.norms.axes import resolve_axis
from numnorm.norms.results import RMSGradients, RMSNormalized
from numnorm.norms.spec import Example, NormSpec, RowCall
from numnorm.norms.weighted import of_rows, weighted_input

RMS = Norm(GAIN, parameters=1)


def rms_norm(
    x: Input[Array],
    gamma: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    eps: Number = 1e-5,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> Array:
    r"""Divide by the root mean square over the given axes, then scale.

    .. math:: y = \gamma \, \frac{x}{\sqrt{\overline{x^2} + \epsilon}}

    Parameters
    ----------
    x : array_like
        Any shape; float16, bfloat16, float32 or float64. Integers and bool become float64.
        An array that is not C-contiguous with the normalized axes last is copied once.
        An array of Dask, in any chunks, gives a lazy result.
    gamma : array_like, optional
        Gain, of the shape of the normalized axes of x; or with as many axes as x, to broadcast
        against it: ``(N, 1)`` is a gain for each sample. Default: 1.
    axis : int or tuple of int, default -1
        The axes that share their root mean square.
    eps : float, default 1e-5
        Added to the mean square. With 0, a row of zeros stays 0.
    out : array, optional
        Where to write the result, an array of its shape and dtype. It may be `x` itself.
    where : array_like of bool, or of 0 and 1, optional
        Which elements count; it broadcasts against x. The others get `fill`, whatever they are.
    weights : array_like, optional
        How often each element counts: `numpy.cov`'s `fweights`, but any numbers from 0 on, of the
        shape of the normalized axes, or broadcasting against x.
    nan_policy : {"propagate", "omit", "raise"}
        What to do with NaN: make its row NaN, leave it out as `where` does, or raise an error.
    fill : float, optional
        The result of what is left out. Default: 0 where `where` is false, and NaN for NaN.

    Returns
    -------
    array
        Of the shape and dtype of x.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.

    References
    ----------
    B. Zhang, R. Sennrich, "Root Mean Square Layer Normalization", NeurIPS 2019.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.rms_norm([[3.0, 4.0]], eps=0).round(4)
    array([[0.8485, 1.1314]])
    """
    if others:
        raise unexpected(rms_norm, others)
    if "dask" in modules and any_lazy(x, gamma, where, weights):
        return lazily(rms_norm, locals())
    if where is not None or weights is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_rows, x, axis, where, weights, nan_policy, fill)
    backend, x, layout, scaling = resolve_axis(x, axis, eps)
    return backend.row_forward(RMS, x, gamma, None, layout, scaling, out, False)[0]


def rms_norm_forward(
    x: Input[Array],
    gamma: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    eps: Number = 1e-5,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> RMSNormalized[Array]:
    """Return `rms_norm` together with the statistic that its backward pass needs.

    Parameters
    ----------
    x, gamma, axis, eps, out, where, weights, nan_policy, fill
        As for `rms_norm`.

    Returns
    -------
    RMSNormalized
        ``(y, rstd)``.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.rms_norm_forward([[2.0, 2.0]], eps=0)
    RMSNormalized(y=array([[1., 1.]]), rstd=array([0.5]))
    """
    if others:
        raise unexpected(rms_norm_forward, others)
    if "dask" in modules and any_lazy(x, gamma, where, weights):
        return lazily(rms_norm_forward, locals())
    if where is not None or weights is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_rows, x, axis, where, weights, nan_policy, fill)
    backend, x, layout, scaling = resolve_axis(x, axis, eps)
    y, _, rstd = backend.row_forward(RMS, x, gamma, None, layout, scaling, out, True)
    return RMSNormalized(y, rstd)


def rms_norm_backward(
    dy: ArrayLike,
    x: Input[Array],
    rstd: ArrayLike,
    gamma: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    **others: Never,
) -> RMSGradients[Array]:
    r"""Return the gradients of `rms_norm`.

    With :math:`g = \gamma \, dy`, :math:`\hat x = x r` and r the saved `rstd`,

    .. math:: dx = r \left( g - \hat x \, \overline{g \hat x} \right), \quad
              d\gamma = \sum dy \, \hat x

    Parameters
    ----------
    dy : array_like
        The gradient of the loss with respect to y, of the shape of x and any float dtype.
    x : array_like
        The input of the forward pass, with the values that it had then.
    rstd : array_like
        As `rms_norm_forward` returned it.
    gamma : array_like, optional
        As in the forward pass.
    axis : int or tuple of int, default -1
        As in the forward pass.
    out : array, optional
        Where to write dx; it may be `dy` or `x`.
    where, weights, nan_policy
        As in the forward pass.

    Returns
    -------
    RMSGradients
        ``(dx, dgamma)``: dx has the dtype of x, dgamma that of gamma if given, or x.

    Raises
    ------
    TypeError, ValueError
        As `rms_norm` does.

    Examples
    --------
    >>> import numnorm
    >>> y, rstd = numnorm.rms_norm_forward([[3.0, 4.0]], eps=0)
    >>> dx, dgamma = numnorm.rms_norm_backward([[1.0, 0.0]], [[3.0, 4.0]], rstd)
    >>> dx.round(4), dgamma.round(4)
    (array([[ 0.181 , -0.1358]]), array([0.8485, 0.    ]))
    """
    if others:
        raise unexpected(rms_norm_backward, others)
    if "dask" in modules and any_lazy(dy, x, rstd, gamma, where, weights):
        return lazily(rms_norm_backward, locals())
    if where is not None or weights is not None or nan_policy != "propagate":
        x = weighted_input(of_rows, x, axis, where, weights, nan_policy, None)
    backend, x, layout, scaling = resolve_axis(x, axis, 0.0)
    dx, dgamma, _ = backend.row_backward(
        RMS, dy, x, None, rstd, gamma, None, layout, scaling, Detached(), out
    )
    return RMSGradients(dx, dgamma)


def _row_call(shape: Shape, axis: Any, eps: Any = 0.0) -> RowCall:
    """Return what the backend is handed."""
    return RowCall(row_layout(shape, axis), scaling_by(check_eps(eps)))


SPEC = NormSpec(
    rms_norm,
    rms_norm_forward,
    rms_norm_backward,
    family="rows",
    counts=of_rows,
    parameters={"gamma": "normalized"},
    norm=RMS,
    row_call=_row_call,
    example=Example(
        "[[2.0, -2.0]]",
        "eps=0",
        "[[ 1. -1.]]",
        "[[0.25 0.25]]",
    ),
)
