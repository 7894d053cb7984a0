"""Layer norm and RMS norm of the sum of an array and a residual, which is returned, too."""

from __future__ import annotations

import dataclasses
from sys import modules
from typing import Any, Generic, NamedTuple, Never

from numnorm.arguments import Axis
from numnorm.array_likes import any_lazy, lazily, traced_by
from numnorm.array_types import Array, ArrayLike, Detach, Input, Number
from numnorm.backends.contract.norms import Detached, Names, Norm
from numnorm.keywords import unexpected
from numnorm.norms.axes import resolve_axis
from numnorm.norms.layer import LAYER, detached_by
from numnorm.norms.results import Gradients, RMSGradients
from numnorm.norms.rms import RMS

_OF_TOTAL = Names(x="total")
_LAYER_OF_TOTAL = dataclasses.replace(LAYER, names=_OF_TOTAL)
_RMS_OF_TOTAL = dataclasses.replace(RMS, names=_OF_TOTAL)


class Added(NamedTuple, Generic[Array]):
    """The norm of a sum, and the sum.

    Attributes
    ----------
    y : array
        The normalized sum.
    total : array
        ``x + residual``, of the same shape, in the dtype in which they are added.

    Examples
    --------
    >>> import numnorm
    >>> y, total = numnorm.add_layer_norm([[1.0, 2.0]], [[0.0, 1.0]], eps=0)
    >>> y, total
    (array([[-1.,  1.]]), array([[1., 3.]]))
    """

    y: Array
    total: Array


class AddedNormalized(NamedTuple, Generic[Array]):
    """The layer norm of a sum, the sum, and the statistics that the backward pass needs.

    Attributes
    ----------
    y, total : array
        As in `Added`.
    mean, rstd : array
        The statistics of the sum, as in `Normalized`.

    Examples
    --------
    >>> import numnorm
    >>> forward = numnorm.add_layer_norm_forward([[1.0, 2.0]], [[0.0, 1.0]], eps=0)
    >>> forward.mean, forward.rstd
    (array([2.]), array([1.]))
    """

    y: Array
    total: Array
    mean: Any
    rstd: Any


class AddedRMSNormalized(NamedTuple, Generic[Array]):
    """The RMS norm of a sum, the sum, and the statistic that the backward pass needs.

    Attributes
    ----------
    y, total : array
        As in `Added`.
    rstd : array
        The statistic of the sum, as in `RMSNormalized`.

    Examples
    --------
    >>> import numnorm
    >>> forward = numnorm.add_rms_norm_forward([[1.0, 2.0]], [[1.0, -4.0]], eps=0)
    >>> forward.total, forward.rstd
    (array([[ 2., -2.]]), array([0.5]))
    """

    y: Array
    total: Array
    rstd: Any


def add_layer_norm(
    x: Input[Array],
    residual: ArrayLike,
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    eps: Number = 1e-5,
    out: Any = None,
    total_out: Any = None,
    **others: Never,
) -> Added[Array]:
    r"""Return the layer norm of the sum of two arrays, and the sum.

    .. math:: s = x + r, \quad y = \gamma \, \frac{s - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta

    with the mean :math:`\mu` and the biased variance :math:`\sigma^2` of s over `axis`. A block
    of a transformer computes both: y goes into its next part, and s is the next residual [1]_.

    Parameters
    ----------
    x : array_like
        As for `layer_norm`.
    residual : array_like
        Of the shape of x. On the host, integers and bool become float64, and arrays of two float
        dtypes are added in the wider one, float16 and bfloat16 in float32; on a device both have
        one float dtype. Labels, as of pandas, are not looked at.
    gamma, beta, axis, eps
        As for `layer_norm`.
    out : array, optional
        Where to write y, an array of its shape and dtype. It may be `x` or `residual` itself.
    total_out : array, optional
        Where to write the sum, likewise. It shares no memory with `out`. What it held is kept
        if the call raises an error.

    Returns
    -------
    Added
        ``(y, total)``.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.

    See Also
    --------
    layer_norm : For masks and weights, as in ``layer_norm(x + residual, where=mask)``.

    Notes
    -----
    The sum is rounded to its dtype before it is normalized, so that y is what
    ``layer_norm(x + residual)`` returns, to the last bit except the sign of NaN, for arrays of
    floats; integers and bool become float64 before they are added. The sum of large arrays goes
    to memory once and is not read from there: the two calls move five arrays, this one moves four.

    References
    ----------
    .. [1] A. Vaswani et al., "Attention Is All You Need", NeurIPS 2017.

    Examples
    --------
    >>> import numpy as np
    >>> import numnorm
    >>> x, residual = np.array([[1.0, 2.0, 3.0]]), np.array([[0.0, 0.0, 3.0]])
    >>> y, residual = numnorm.add_layer_norm(x, residual, eps=0)
    >>> y.round(4), residual
    (array([[-0.9258, -0.4629,  1.3887]]), array([[1., 2., 6.]]))
    """
    if others:
        raise unexpected(add_layer_norm, others)
    if "dask" in modules and any_lazy(x, residual, gamma, beta):
        return lazily(add_layer_norm, locals())
    given = x, residual, gamma, beta, axis, eps, out, total_out
    y, total, _, _ = _forward("layer_norm", LAYER, *given, False)
    return Added(y, total)


def add_layer_norm_forward(
    x: Input[Array],
    residual: ArrayLike,
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    eps: Number = 1e-5,
    out: Any = None,
    total_out: Any = None,
    **others: Never,
) -> AddedNormalized[Array]:
    """Return `add_layer_norm` together with the statistics that its backward pass needs.

    Parameters
    ----------
    x, residual, gamma, beta, axis, eps, out, total_out
        As for `add_layer_norm`.

    Returns
    -------
    AddedNormalized
        ``(y, total, mean, rstd)``.

    Examples
    --------
    >>> import numnorm
    >>> y, total, mean, rstd = numnorm.add_layer_norm_forward([[1.0, 2.0]], [[0.0, 1.0]], eps=0)
    >>> y, total, mean, rstd
    (array([[-1.,  1.]]), array([[1., 3.]]), array([2.]), array([1.]))
    """
    if others:
        raise unexpected(add_layer_norm_forward, others)
    if "dask" in modules and any_lazy(x, residual, gamma, beta):
        return lazily(add_layer_norm_forward, locals())
    given = x, residual, gamma, beta, axis, eps, out, total_out
    return AddedNormalized(*_forward("layer_norm", LAYER, *given, True))


def add_layer_norm_backward(
    dy: ArrayLike,
    total: Input[Array],
    mean: ArrayLike,
    rstd: ArrayLike,
    gamma: ArrayLike | None = None,
    *,
    dtotal: ArrayLike | None = None,
    axis: Axis = -1,
    detach: Detach | None = None,
    out: Any = None,
    **others: Never,
) -> Gradients[Array]:
    r"""Return the gradients of `add_layer_norm`.

    dx is the gradient with respect to x and to the residual alike: that of `layer_norm` at the
    sum, and `dtotal`, which comes from what else the sum goes into.

    Parameters
    ----------
    dy : array_like
        The gradient of the loss with respect to y, of the shape of the sum and any float dtype.
    total, mean, rstd : array_like
        As `add_layer_norm_forward` returned them.
    gamma : array_like, optional
        As in the forward pass.
    dtotal : array_like, optional
        The gradient with respect to the sum, of its shape and any float dtype. Default: 0.
    axis : int or tuple of int, default -1
        As in the forward pass.
    detach : {None, "mean", "scale", "both"}
        As for `layer_norm_backward`.
    out : array, optional
        Where to write dx; it may be `dy`, `total` or `dtotal`.

    Returns
    -------
    Gradients
        ``(dx, dgamma, dbeta)``: dx has the dtype of the sum, the others that of gamma if given, or
        of the sum.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm_backward` does.

    Notes
    -----
    On the host dx is rounded to its dtype before `dtotal`, rounded to it, too, is added. On a
    device the sum may be rounded once.

    Examples
    --------
    >>> import numnorm
    >>> y, total, mean, rstd = numnorm.add_layer_norm_forward([[1.0, 2.0, 3.0]], [[0.0, 0.0, 1.0]])
    >>> dx, dgamma, dbeta = numnorm.add_layer_norm_backward(
    ...     [[1.0, 0.0, 0.0]], total, mean, rstd, dtotal=[[1.0, 1.0, 1.0]]
    ... )
    >>> dx.round(4)
    array([[1.2291, 0.6564, 1.1145]])
    """
    if others:
        raise unexpected(add_layer_norm_backward, others)
    if "dask" in modules and any_lazy(dy, total, mean, rstd, gamma, dtotal):
        return lazily(add_layer_norm_backward, locals())
    given = dy, dtotal, total, mean, rstd, gamma, axis, detached_by(detach), out
    return Gradients(*_backward("layer_norm", _LAYER_OF_TOTAL, *given))


def add_rms_norm(
    x: Input[Array],
    residual: ArrayLike,
    gamma: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    eps: Number = 1e-5,
    out: Any = None,
    total_out: Any = None,
    **others: Never,
) -> Added[Array]:
    r"""Return the RMS norm of the sum of two arrays, and the sum.

    .. math:: s = x + r, \quad y = \gamma \, \frac{s}{\sqrt{\overline{s^2} + \epsilon}}

    Parameters
    ----------
    x, residual
        As for `add_layer_norm`.
    gamma, axis, eps
        As for `rms_norm`.
    out, total_out
        As for `add_layer_norm`.

    Returns
    -------
    Added
        ``(y, total)``.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.

    See Also
    --------
    add_layer_norm : What the function is for, and how it rounds.

    Examples
    --------
    >>> import numnorm
    >>> y, residual = numnorm.add_rms_norm([[1.0, 2.0]], [[2.0, 2.0]], eps=0)
    >>> y.round(4), residual
    (array([[0.8485, 1.1314]]), array([[3., 4.]]))
    """
    if others:
        raise unexpected(add_rms_norm, others)
    if "dask" in modules and any_lazy(x, residual, gamma):
        return lazily(add_rms_norm, locals())
    given = x, residual, gamma, None, axis, eps, out, total_out
    y, total, _, _ = _forward("rms_norm", RMS, *given, False)
    return Added(y, total)


def add_rms_norm_forward(
    x: Input[Array],
    residual: ArrayLike,
    gamma: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    eps: Number = 1e-5,
    out: Any = None,
    total_out: Any = None,
    **others: Never,
) -> AddedRMSNormalized[Array]:
    """Return `add_rms_norm` together with the statistic that its backward pass needs.

    Parameters
    ----------
    x, residual, gamma, axis, eps, out, total_out
        As for `add_rms_norm`.

    Returns
    -------
    AddedRMSNormalized
        ``(y, total, rstd)``.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.add_rms_norm_forward([[1.0, -1.0]], [[1.0, -1.0]], eps=0).rstd
    array([0.5])
    """
    if others:
        raise unexpected(add_rms_norm_forward, others)
    if "dask" in modules and any_lazy(x, residual, gamma):
        return lazily(add_rms_norm_forward, locals())
    given = x, residual, gamma, None, axis, eps, out, total_out
    y, total, _, rstd = _forward("rms_norm", RMS, *given, True)
    return AddedRMSNormalized(y, total, rstd)


def add_rms_norm_backward(
    dy: ArrayLike,
    total: Input[Array],
    rstd: ArrayLike,
    gamma: ArrayLike | None = None,
    *,
    dtotal: ArrayLike | None = None,
    axis: Axis = -1,
    out: Any = None,
    **others: Never,
) -> RMSGradients[Array]:
    """Return the gradients of `add_rms_norm`; see `add_layer_norm_backward`.

    Parameters
    ----------
    dy : array_like
        As for `add_layer_norm_backward`.
    total, rstd : array_like
        As `add_rms_norm_forward` returned them.
    gamma, dtotal, axis, out
        As for `add_layer_norm_backward`.

    Returns
    -------
    RMSGradients
        ``(dx, dgamma)``: dx has the dtype of the sum, dgamma that of gamma if given, or of the
        sum.

    Raises
    ------
    TypeError, ValueError
        As `rms_norm_backward` does.

    Examples
    --------
    >>> import numnorm
    >>> y, total, rstd = numnorm.add_rms_norm_forward([[1.0, 2.0]], [[2.0, 2.0]], eps=0)
    >>> dx, dgamma = numnorm.add_rms_norm_backward([[1.0, 0.0]], total, rstd, dtotal=[[0.0, 1.0]])
    >>> dx.round(4)
    array([[0.181 , 0.8642]])
    """
    if others:
        raise unexpected(add_rms_norm_backward, others)
    if "dask" in modules and any_lazy(dy, total, rstd, gamma, dtotal):
        return lazily(add_rms_norm_backward, locals())
    given = dy, dtotal, total, None, rstd, gamma, axis, Detached(), out
    dx, dgamma, _ = _backward("rms_norm", _RMS_OF_TOTAL, *given)
    return RMSGradients(dx, dgamma)


def _forward(
    name: str,
    norm: Norm,
    x: Any,
    residual: Any,
    gamma: Any,
    beta: Any,
    axis: Any,
    eps: Any,
    out: Any,
    total_out: Any,
    save: bool,
) -> tuple[Any, Any, Any, Any]:
    """Return y, the sum and, if `save` is true, the statistics; `name` is that of the norm."""
    try:
        backend, source, layout, scaling = resolve_axis(x, axis, eps)
        given = source, residual, gamma, beta, layout, scaling, out, total_out, save
        return backend.added_forward(norm, *given)
    except TypeError:
        _check_not_traced(name, x=x, residual=residual, gamma=gamma, beta=beta)
        raise


def _backward(
    name: str,
    norm: Norm,
    dy: Any,
    dtotal: Any,
    total: Any,
    mean: Any,
    rstd: Any,
    gamma: Any,
    axis: Any,
    detached: Detached,
    out: Any,
) -> tuple[Any, Any, Any]:
    """Return dx and the gradients of the parameters; `name` is that of the norm."""
    try:
        backend, source, layout, scaling = resolve_axis(total, axis, 0.0, "total")
        given = source, mean, rstd, gamma, layout, scaling, detached, out
        return backend.added_backward(norm, dy, dtotal, *given)
    except TypeError:
        arrays = {"dy": dy, "dtotal": dtotal, "total": total, "gamma": gamma}
        _check_not_traced(name, **arrays, mean=mean, rstd=rstd)
        raise


def _check_not_traced(norm: str, **arrays: Any) -> None:
    """Raise, with advice for sums, if JAX or autograd traces an array."""
    for name, array in arrays.items():
        place = traced_by(type(array))
        if place is not None:
            raise TypeError(
                f"{name} must have values, got one that is traced: write the sum, "
                f"{place}.{norm}(x + residual)"
            ) from None
