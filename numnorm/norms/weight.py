"""Weight normalization (Salimans and Kingma 2016): the length of a vector as a parameter."""

from __future__ import annotations

from sys import modules
from typing import Any, Unpack

from numnorm.arguments import Axis
from numnorm.array_types import Array, ArrayLike, Counting, Filling, Input
from numnorm.backends import backend_for
from numnorm.backends.contract.norms import Detached, Names, Norm, Scaling, scaling_by
from numnorm.layouts import RowLayout, vector_layout
from numnorm.lazy_arrays import any_lazy, lazy_twin
from numnorm.norms.affine import GAIN
from numnorm.norms.results import WeightGradients, WeightNormalized
from numnorm.norms.weighted import with_weights

WEIGHT = Norm(
    GAIN, parameters=1, names=Names(x="v", dy="dw", rstd="norm", gamma="g"), of_length=True
)


def scaling_of(layout: RowLayout) -> Scaling:
    """Return the scaling that makes the deviation of a row its length."""
    # A divisor of 1 in place of the width turns the root mean square into the Euclidean norm.
    return scaling_by(0.0, ddof=layout.width - 1)


def weight_norm(
    v: Input[Array],
    g: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    out: Any = None,
    **others: Unpack[Filling],
) -> Array:
    r"""Scale each vector to a given length.

    .. math:: w = g \, \frac{v}{\lVert v \rVert}

    Parameters
    ----------
    v : array_like
        Any shape; float16, bfloat16, float32 or float64. Integers and bool become float64.
        An array that is not C-contiguous with the normalized axes last is copied once.
        An array of Dask, in any chunks, gives a lazy result.
    g : array_like, optional
        The lengths, of the shape of v without the normalized axes; or with as many axes as v, to
        broadcast against it, as PyTorch has them. Default: 1.
    axis : int or tuple of int, default -1
        The axes of one vector, as in `numpy.linalg.norm`. PyTorch's default ``dim=0`` names the
        axis that remains: here ``axis=tuple(range(1, v.ndim))``.
    out : array, optional
        Where to write the result, an array of its shape and dtype. It may be `v` itself.
    where : array_like of bool, or of 0 and 1, optional
        Which elements count; it broadcasts against v. The others get `fill`, whatever they are.
    weights : array_like, optional
        How often each element counts: `numpy.cov`'s `fweights`, but any numbers from 0 on, of the
        shape of the normalized axes, or broadcasting against v.
    nan_policy : {"propagate", "omit", "raise"}
        What to do with NaN: make its vector NaN, leave it out as `where` does, or raise an error.
    fill : float, optional
        The result of what is left out. Default: 0 where `where` is false, and NaN for NaN.

    Returns
    -------
    array
        Of the shape and dtype of v. A vector of zeros stays 0.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.

    References
    ----------
    T. Salimans, D. P. Kingma, "Weight Normalization", NeurIPS 2016.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.weight_norm([[3.0, 4.0], [0.0, 0.0]], [10.0, 1.0])
    array([[6., 8.],
           [0., 0.]])
    """
    if others:
        return with_weights(weight_norm, locals())
    if "dask" in modules and any_lazy(v, g):
        return lazy_twin("weight_norm")(v, g, axis=axis, out=out)
    backend, v = backend_for(v, "v")
    layout = vector_layout(v.shape, axis)
    return backend.row_forward(WEIGHT, v, g, None, layout, scaling_of(layout), out, False)[0]


def weight_norm_forward(
    v: Input[Array],
    g: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    out: Any = None,
    **others: Unpack[Filling],
) -> WeightNormalized[Array]:
    """Return `weight_norm` together with the lengths that its backward pass needs.

    Parameters
    ----------
    v, g, axis, out, where, weights, nan_policy, fill
        As for `weight_norm`.

    Returns
    -------
    WeightNormalized
        ``(w, norm)``.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.weight_norm_forward([[3.0, 4.0]], [10.0])
    WeightNormalized(w=array([[6., 8.]]), norm=array([5.]))
    """
    if others:
        return with_weights(weight_norm_forward, locals())
    if "dask" in modules and any_lazy(v, g):
        return lazy_twin("weight_norm_forward")(v, g, axis=axis, out=out)
    backend, v = backend_for(v, "v")
    layout = vector_layout(v.shape, axis)
    w, norm, _ = backend.row_forward(WEIGHT, v, g, None, layout, scaling_of(layout), out, True)
    return WeightNormalized(w, norm)


def weight_norm_backward(
    dw: ArrayLike,
    v: Input[Array],
    norm: ArrayLike,
    g: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    out: Any = None,
    **others: Unpack[Counting],
) -> WeightGradients[Array]:
    r"""Return the gradients of `weight_norm`.

    With :math:`\hat v = v / \lVert v \rVert`,

    .. math:: dg = \sum dw \, \hat v, \quad
              dv = \frac{g}{\lVert v \rVert} \left( dw - \hat v \, dg \right)

    A vector of zeros gets gradients of 0.

    Parameters
    ----------
    dw : array_like
        The gradient of the loss with respect to w, of the shape of v and any float dtype.
    v : array_like
        The input of the forward pass, with the values that it had then.
    norm : array_like
        As `weight_norm_forward` returned it.
    g : array_like, optional
        As in the forward pass.
    axis : int or tuple of int, default -1
        As in the forward pass.
    out : array, optional
        Where to write dv; it may be `dw` or `v`.
    where, weights, nan_policy
        As in the forward pass.

    Returns
    -------
    WeightGradients
        ``(dv, dg)``: dv has the dtype of v, dg that of g if given, or v.

    Raises
    ------
    TypeError, ValueError
        As `weight_norm` does.

    Examples
    --------
    >>> import numnorm
    >>> w, norm = numnorm.weight_norm_forward([[3.0, 4.0]])
    >>> numnorm.weight_norm_backward([[1.0, 0.0]], [[3.0, 4.0]], norm)
    WeightGradients(dv=array([[ 0.128, -0.096]]), dg=array([0.6]))
    """
    if others:
        return with_weights(weight_norm_backward, locals())
    if "dask" in modules and any_lazy(dw, v, norm, g):
        return lazy_twin("weight_norm_backward")(dw, v, norm, g, axis=axis, out=out)
    backend, v = backend_for(v, "v")
    layout = vector_layout(v.shape, axis)
    rnorm = backend.reciprocal("norm", norm, v, layout)
    dv, dg, _ = backend.row_backward(
        WEIGHT, dw, v, None, rnorm, g, None, layout, scaling_of(layout), Detached(), out
    )
    return WeightGradients(dv, dg)
