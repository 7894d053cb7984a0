"""Weight normalization (Salimans and Kingma 2016): the length of a vector as a parameter."""

from __future__ import annotations

from sys import modules
from typing import Any, Never

from numnorm.arguments import Axis, Shape
from numnorm.array_likes import any_lazy, lazily
from numnorm.array_types import Array, ArrayLike, Input, NanPolicy, Number
from numnorm.backends import backend_for
from numnorm.backends.contract.norms import Detached, Names, Norm, Scaling, scaling_by
from numnorm.keywords import unexpected
from numnorm.layouts import RowLayout, vector_layout
from numnorm.norms.affine import GAIN
from numnorm.norms.results import WeightGradients, WeightNormalized
from numnorm.norms.spec import Example, NormSpec, RowCall
from numnorm.norms.weighted import of_vectors, weighted_input

WEIGHT = Norm(GAIN, parameters=1, names=Names(rstd="norm", gamma="g"), of_length=True)


def scaling_of(layout: RowLayout) -> Scaling:
    """Return the scaling that makes the deviation of a row its length."""
    # A divisor of 1 in place of the width turns the root mean square into the Euclidean norm.
    return scaling_by(0.0, ddof=layout.width - 1)


def weight_norm(
    x: Input[Array],
    g: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> Array:
    r"""Scale each vector to a given length.

    .. math:: y = g \, \frac{x}{\lVert x \rVert}

    Parameters
    ----------
    x : array_like
        Any shape; float16, bfloat16, float32 or float64. Integers and bool become float64.
        An array that is not C-contiguous with the normalized axes last is copied once.
        An array of Dask, in any chunks, gives a lazy result.
    g : array_like, optional
        The lengths, of the shape of x without the normalized axes; or with as many axes as x, to
        broadcast against it, as PyTorch has them. Default: 1.
    axis : int or tuple of int, default -1
        The axes of one vector, as in `numpy.linalg.norm`. PyTorch's default ``dim=0`` names the
        axis that remains: here ``axis=tuple(range(1, x.ndim))``.
    out : array, optional
        Where to write the result, an array of its shape and dtype. It may be `x` itself.
    where : array_like of bool, or of 0 and 1, optional
        Which elements count; it broadcasts against x. The others get `fill`, whatever they are.
    weights : array_like, optional
        How often each element counts: `numpy.cov`'s `fweights`, but any numbers from 0 on, of the
        shape of the normalized axes, or broadcasting against x.
    nan_policy : {"propagate", "omit", "raise"}
        What to do with NaN: make its vector NaN, leave it out as `where` does, or raise an error.
    fill : float, optional
        The result of what is left out. Default: 0 where `where` is false, and NaN for NaN.

    Returns
    -------
    array
        Of the shape and dtype of x. A vector of zeros stays 0.

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
        raise unexpected(weight_norm, others)
    if "dask" in modules and any_lazy(x, g, where, weights):
        return lazily(weight_norm, locals())
    if where is not None or weights is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_vectors, x, axis, where, weights, nan_policy, fill)
    backend, x = backend_for(x, "x")
    layout = vector_layout(x.shape, axis)
    return backend.row_forward(WEIGHT, x, g, None, layout, scaling_of(layout), out, False)[0]


def weight_norm_forward(
    x: Input[Array],
    g: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> WeightNormalized[Array]:
    """Return `weight_norm` together with the lengths that its backward pass needs.

    Parameters
    ----------
    x, g, axis, out, where, weights, nan_policy, fill
        As for `weight_norm`.

    Returns
    -------
    WeightNormalized
        ``(y, norm)``.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.weight_norm_forward([[3.0, 4.0]], [10.0])
    WeightNormalized(y=array([[6., 8.]]), norm=array([5.]))
    """
    if others:
        raise unexpected(weight_norm_forward, others)
    if "dask" in modules and any_lazy(x, g, where, weights):
        return lazily(weight_norm_forward, locals())
    if where is not None or weights is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_vectors, x, axis, where, weights, nan_policy, fill)
    backend, x = backend_for(x, "x")
    layout = vector_layout(x.shape, axis)
    y, norm, _ = backend.row_forward(WEIGHT, x, g, None, layout, scaling_of(layout), out, True)
    return WeightNormalized(y, norm)


def weight_norm_backward(
    dy: ArrayLike,
    x: Input[Array],
    norm: ArrayLike,
    g: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    **others: Never,
) -> WeightGradients[Array]:
    r"""Return the gradients of `weight_norm`.

    With :math:`\hat x = x / \lVert x \rVert`,

    .. math:: dg = \sum dy \, \hat x, \quad
              dx = \frac{g}{\lVert x \rVert} \left( dy - \hat x \, dg \right)

    A vector of zeros gets gradients of 0.

    Parameters
    ----------
    dy : array_like
        The gradient of the loss with respect to y, of the shape of x and any float dtype.
    x : array_like
        The input of the forward pass, with the values that it had then.
    norm : array_like
        As `weight_norm_forward` returned it.
    g : array_like, optional
        As in the forward pass.
    axis : int or tuple of int, default -1
        As in the forward pass.
    out : array, optional
        Where to write dx; it may be `dy` or `x`.
    where, weights, nan_policy
        As in the forward pass.

    Returns
    -------
    WeightGradients
        ``(dx, dg)``: dx has the dtype of x, dg that of g if given, or x.

    Raises
    ------
    TypeError, ValueError
        As `weight_norm` does.

    Examples
    --------
    >>> import numnorm
    >>> y, norm = numnorm.weight_norm_forward([[3.0, 4.0]])
    >>> numnorm.weight_norm_backward([[1.0, 0.0]], [[3.0, 4.0]], norm)
    WeightGradients(dx=array([[ 0.128, -0.096]]), dg=array([0.6]))
    """
    if others:
        raise unexpected(weight_norm_backward, others)
    if "dask" in modules and any_lazy(dy, x, norm, g, where, weights):
        return lazily(weight_norm_backward, locals())
    if where is not None or weights is not None or nan_policy != "propagate":
        x = weighted_input(of_vectors, x, axis, where, weights, nan_policy, None)
    backend, x = backend_for(x, "x")
    layout = vector_layout(x.shape, axis)
    given = backend, dy, x, norm, g, layout, out
    arrays = dy, norm, g, out
    found: WeightGradients[Array] = backend.repeated(_gradients, given, x, arrays, layout)
    return found


def _gradients(
    backend: Any, dy: Any, x: Any, norm: Any, g: Any, layout: RowLayout, out: Any
) -> WeightGradients[Any]:
    """Return dx and dg."""
    rnorm = backend.reciprocal("norm", norm, x, layout)
    dx, dg, _ = backend.row_backward(
        WEIGHT, dy, x, None, rnorm, g, None, layout, scaling_of(layout), Detached(), out
    )
    return WeightGradients(dx, dg)


def _row_call(shape: Shape, axis: Any) -> RowCall:
    """Return what the backend is handed."""
    layout = vector_layout(shape, axis)
    return RowCall(layout, scaling_of(layout))


SPEC = NormSpec(
    weight_norm,
    weight_norm_forward,
    weight_norm_backward,
    family="rows",
    counts=of_vectors,
    parameters={"g": "others"},
    norm=WEIGHT,
    row_call=_row_call,
    example=Example(
        "[[3.0, 4.0]]",
        "[10.0]",
        "[[6. 8.]]",
        "[[-0.96  0.72]]",
    ),
)
