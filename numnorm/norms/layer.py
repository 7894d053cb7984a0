"""Layer normalization (Ba, Kiros and Hinton 2016), and DetachNorm's backward pass."""

from __future__ import annotations

from sys import modules
from typing import Any, Never

from numnorm.arguments import Axis, Shape, check_choice, check_eps
from numnorm.array_likes import any_lazy, lazily
from numnorm.array_types import Array, ArrayLike, Detach, Input, NanPolicy, Number
from numnorm.backends.contract.norms import Detached, Norm, scaling_by
from numnorm.keywords import unexpected
from numnorm.layouts import row_layout
from numnorm.norms.affine import AFFINE
from numnorm.norms.axes import resolve_axis
from numnorm.norms.results import Gradients, Normalized
from numnorm.norms.spec import Example, NormSpec, RowCall
from numnorm.norms.weighted import of_rows, weighted_input

LAYER = Norm(AFFINE, parameters=2)

DETACHED = {
    None: Detached(),
    "mean": Detached(mean=True),
    "scale": Detached(scale=True),
    "both": Detached(mean=True, scale=True),
}
DETACHABLE = tuple(DETACHED)


def detached_by(detach: Any) -> Detached:
    """Return which statistics the argument `detach` names."""
    return DETACHED[None if detach is None else check_choice("detach", detach, DETACHABLE)]


def layer_norm(
    x: Input[Array],
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
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
    r"""Normalize to mean 0 and variance 1 over the given axes, then scale and shift.

    .. math:: y = \gamma \, \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta

    with the mean :math:`\mu` and the biased variance :math:`\sigma^2` over `axis` [1]_. Without
    `gamma` and `beta` this is LayerNorm-simple.

    Parameters
    ----------
    x : array_like
        Any shape; float16, bfloat16, float32 or float64. Integers and bool become float64.
        An array that is not C-contiguous with the normalized axes last is copied once.
        An array of Dask, in any chunks, gives a lazy result.
    gamma, beta : array_like, optional
        Gain and bias, of the shape of the normalized axes of x; or with as many axes as x, to
        broadcast against it: ``(N, 1)`` is a gain for each sample. Default: 1 and 0. Where the
        gain is 1 + w, pass 1 + w: dgamma is the gradient of w, too.
    axis : int or tuple of int, default -1
        The axes that share their statistics.
    eps : float, default 1e-5
        Added to the variance, so that small signals stay small: a row with a deviation of 1e-3
        comes out with 0.3, and of 1e-4 with 0.03. With 0, every row comes out with 1, and a
        constant row is normalized to 0.
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

    See Also
    --------
    standard_normal_variate : The same without epsilon, for data of any scale.

    Notes
    -----
    Computed in the dtype of x, half precision in float32, and rounded once. The result does not
    depend on the number of threads, and is as accurate at a mean of 1e7 as at 0. A NaN or an
    infinity makes only its own row NaN.

    References
    ----------
    .. [1] J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer Normalization", 2016.

    Examples
    --------
    >>> import numpy as np
    >>> import numnorm
    >>> x = np.array([[1.0, 2.0, 3.0], [10.0, 10.0, 40.0]])
    >>> numnorm.layer_norm(x, eps=0).round(4)
    array([[-1.2247,  0.    ,  1.2247],
           [-0.7071, -0.7071,  1.4142]])
    >>> numnorm.layer_norm(x, eps=0, where=[False, True, True])
    array([[ 0., -1.,  1.],
           [ 0., -1.,  1.]])
    """
    if others:
        raise unexpected(layer_norm, others)
    if "dask" in modules and any_lazy(x, gamma, beta, where, weights):
        return lazily(layer_norm, locals())
    if where is not None or weights is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_rows, x, axis, where, weights, nan_policy, fill)
    backend, x, layout, scaling = resolve_axis(x, axis, eps)
    return backend.row_forward(LAYER, x, gamma, beta, layout, scaling, out, False)[0]


def layer_norm_forward(
    x: Input[Array],
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    eps: Number = 1e-5,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> Normalized[Array]:
    """Return `layer_norm` together with the statistics that its backward pass needs.

    Parameters
    ----------
    x, gamma, beta, axis, eps, out, where, weights, nan_policy, fill
        As for `layer_norm`.

    Returns
    -------
    Normalized
        ``(y, mean, rstd)``.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.layer_norm_forward([[1.0, 3.0]], eps=0)
    Normalized(y=array([[-1.,  1.]]), mean=array([2.]), rstd=array([1.]))
    """
    if others:
        raise unexpected(layer_norm_forward, others)
    if "dask" in modules and any_lazy(x, gamma, beta, where, weights):
        return lazily(layer_norm_forward, locals())
    if where is not None or weights is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_rows, x, axis, where, weights, nan_policy, fill)
    backend, x, layout, scaling = resolve_axis(x, axis, eps)
    return Normalized(*backend.row_forward(LAYER, x, gamma, beta, layout, scaling, out, True))


def layer_norm_backward(
    dy: ArrayLike,
    x: Input[Array],
    mean: ArrayLike,
    rstd: ArrayLike,
    gamma: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    detach: Detach | None = None,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    **others: Never,
) -> Gradients[Array]:
    r"""Return the gradients of `layer_norm`.

    With :math:`g = \gamma \, dy` and :math:`\hat x = (x - \mu) / \sigma`, over the D elements
    of a row,

    .. math:: dx = \frac1\sigma \left( g - \overline{g} - \hat x \, \overline{g \hat x} \right)

    and :math:`d\gamma = \sum dy \, \hat x`, :math:`d\beta = \sum dy` over the rows.
    `detach` treats a statistic as a constant (DetachNorm [1]_): "mean" drops the second term,
    "scale" the third.

    Parameters
    ----------
    dy : array_like
        The gradient of the loss with respect to y, of the shape of x and any float dtype.
    x : array_like
        The input of the forward pass, with the values that it had then, whatever `detach` is.
    mean, rstd : array_like
        As `layer_norm_forward` returned them.
    gamma : array_like, optional
        As in the forward pass.
    axis : int or tuple of int, default -1
        As in the forward pass.
    detach : {None, "mean", "scale", "both"}
        The statistics that are constants for the gradient.
    out : array, optional
        Where to write dx; it may be `dy` or `x`.
    where, weights, nan_policy
        As in the forward pass.

    Returns
    -------
    Gradients
        ``(dx, dgamma, dbeta)``: dx has the dtype of x, the others that of gamma if given, or x.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm` does.

    References
    ----------
    .. [1] J. Xu et al., "Understanding and Improving Layer Normalization", NeurIPS 2019.

    Examples
    --------
    >>> import numpy as np
    >>> import numnorm
    >>> x = np.array([[1.0, 2.0, 4.0]])
    >>> y, mean, rstd = numnorm.layer_norm_forward(x)
    >>> dx, dgamma, dbeta = numnorm.layer_norm_backward([[1.0, 0.0, 0.0]], x, mean, rstd)
    >>> dx.round(4), dbeta
    (array([[ 0.2291, -0.3436,  0.1145]]), array([1., 0., 0.]))
    """
    if others:
        raise unexpected(layer_norm_backward, others)
    if "dask" in modules and any_lazy(dy, x, mean, rstd, gamma, where, weights):
        return lazily(layer_norm_backward, locals())
    if where is not None or weights is not None or nan_policy != "propagate":
        x = weighted_input(of_rows, x, axis, where, weights, nan_policy, None)
    backend, x, layout, scaling = resolve_axis(x, axis, 0.0)
    detached = detached_by(detach)
    return Gradients(
        *backend.row_backward(LAYER, dy, x, mean, rstd, gamma, None, layout, scaling, detached, out)
    )


def _row_call(shape: Shape, axis: Any, eps: Any = 0.0, detach: Any = None) -> RowCall:
    """Return what the backend is handed."""
    return RowCall(row_layout(shape, axis), scaling_by(check_eps(eps)), detached_by(detach))


SPEC = NormSpec(
    layer_norm,
    layer_norm_forward,
    layer_norm_backward,
    family="rows",
    counts=of_rows,
    parameters={"gamma": "normalized", "beta": "normalized"},
    norm=LAYER,
    row_call=_row_call,
    example=Example(
        "[[1.0, 2.0, 3.0]]",
        "eps=0",
        "[[-1.2247  0.      1.2247]]",
        "[[ 0.2041 -0.4082  0.2041]]",
    ),
)
