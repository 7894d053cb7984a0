"""Standard normal variate (Barnes, Dhanoa and Lister 1989): a layer norm without epsilon."""

from __future__ import annotations

from sys import modules
from typing import Any, Never

from numnorm.arguments import Axis, Shape, check_integer
from numnorm.array_likes import any_lazy, lazily
from numnorm.array_types import Array, ArrayLike, Input, Integer, NanPolicy, Number
from numnorm.backends import backend_for
from numnorm.backends.contract.norms import Detached, scaling_by
from numnorm.keywords import unexpected
from numnorm.layouts import RowLayout, row_layout
from numnorm.norms.layer import LAYER
from numnorm.norms.results import Normalized
from numnorm.norms.spec import Example, NormSpec, RowCall
from numnorm.norms.weighted import of_rows, weighted_input


def standard_normal_variate(
    x: Input[Array],
    *,
    axis: Axis = -1,
    ddof: Integer = 0,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> Array:
    r"""Normalize to mean 0 and standard deviation 1, however small the deviation is.

    .. math:: y = \frac{x - \mu}{s}, \quad s^2 = \frac{1}{D - \mathrm{ddof}} \sum (x - \mu)^2

    over the D elements of `axis` [1]_: the scatter correction of spectroscopy.

    Parameters
    ----------
    x : array_like
        Any shape; float16, bfloat16, float32 or float64. Integers and bool become float64.
        An array that is not C-contiguous with the normalized axes last is copied once.
        An array of Dask, in any chunks, gives a lazy result.
    axis : int or tuple of int, default -1
        The axes that share their statistics: of spectra in rows, the wavelengths.
    ddof : int, default 0
        The variance divides by the number of elements less `ddof`, as in `numpy.std`. Many
        programs for spectra use 1.
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
        Of the shape and dtype of x. A constant row gives 0, not NaN.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.

    See Also
    --------
    layer_norm : The same with epsilon, gain and bias, and with a backward pass.

    Notes
    -----
    As accurate as `layer_norm`, at any mean and scale. A NaN makes only its own row NaN, unless
    `nan_policy` leaves it out.

    References
    ----------
    .. [1] R. J. Barnes, M. S. Dhanoa, S. J. Lister, "Standard Normal Variate Transformation and
       De-trending of Near-Infrared Diffuse Reflectance Spectra", 1989.

    Examples
    --------
    >>> import numpy as np
    >>> import numnorm
    >>> numnorm.standard_normal_variate([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]], ddof=1)
    array([[-1.,  0.,  1.],
           [ 0.,  0.,  0.]])
    >>> numnorm.standard_normal_variate([[1.0, np.nan, 3.0]], nan_policy="omit")
    array([[-1., nan,  1.]])
    """
    if others:
        raise unexpected(standard_normal_variate, others)
    if "dask" in modules and any_lazy(x, where, weights):
        return lazily(standard_normal_variate, locals())
    if where is not None or weights is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_rows, x, axis, where, weights, nan_policy, fill)
    backend, x = backend_for(x, "x")
    layout = row_layout(x.shape, axis)
    scaling = scaling_by(0.0, 0.0, check_ddof(ddof, layout))
    return backend.row_forward(LAYER, x, None, None, layout, scaling, out, False)[0]


def standard_normal_variate_forward(
    x: Input[Array],
    *,
    axis: Axis = -1,
    ddof: Integer = 0,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> Normalized[Array]:
    """Return `standard_normal_variate` with the statistics that its backward pass needs.

    Parameters
    ----------
    x, axis, ddof, out, where, weights, nan_policy, fill
        As for `standard_normal_variate`.

    Returns
    -------
    Normalized
        ``(y, mean, rstd)``: rstd is 1 / s.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.standard_normal_variate_forward([[1.0, 2.0, 3.0]], ddof=1)
    Normalized(y=array([[-1.,  0.,  1.]]), mean=array([2.]), rstd=array([1.]))
    """
    if others:
        raise unexpected(standard_normal_variate_forward, others)
    if "dask" in modules and any_lazy(x, where, weights):
        return lazily(standard_normal_variate_forward, locals())
    if where is not None or weights is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_rows, x, axis, where, weights, nan_policy, fill)
    backend, x = backend_for(x, "x")
    layout = row_layout(x.shape, axis)
    scaling = scaling_by(0.0, 0.0, check_ddof(ddof, layout))
    return Normalized(*backend.row_forward(LAYER, x, None, None, layout, scaling, out, True))


def standard_normal_variate_backward(
    dy: ArrayLike,
    x: Input[Array],
    mean: ArrayLike,
    rstd: ArrayLike,
    *,
    axis: Axis = -1,
    ddof: Integer = 0,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    **others: Never,
) -> Array:
    r"""Return the gradient of `standard_normal_variate` with respect to x.

    With :math:`\hat x = (x - \mu) / s` over the D elements of a row,

    .. math:: dx = \frac1s \left( dy - \overline{dy}
              - \frac{\hat x}{D - \mathrm{ddof}} \sum dy \, \hat x \right)

    A constant row has no derivative, and gets a gradient of 0.

    Parameters
    ----------
    dy : array_like
        The gradient of the loss with respect to y, of the shape of x and any float dtype.
    x : array_like
        The input of the forward pass, with the values that it had then.
    mean, rstd : array_like
        As `standard_normal_variate_forward` returned them.
    axis, ddof
        As in the forward pass.
    out : array, optional
        Where to write the result; it may be `dy` or `x`.
    where, weights, nan_policy
        As in the forward pass.

    Returns
    -------
    array
        dx, of the shape and dtype of x.

    Raises
    ------
    TypeError, ValueError
        As `standard_normal_variate` does.

    Examples
    --------
    >>> import numnorm
    >>> x = [[1.0, 2.0, 3.0]]
    >>> y, mean, rstd = numnorm.standard_normal_variate_forward(x, ddof=1)
    >>> dy = [[1.0, 0.0, 0.0]]
    >>> numnorm.standard_normal_variate_backward(dy, x, mean, rstd, ddof=1).round(4)
    array([[ 0.1667, -0.3333,  0.1667]])
    """
    if others:
        raise unexpected(standard_normal_variate_backward, others)
    if "dask" in modules and any_lazy(dy, x, mean, rstd, where, weights):
        return lazily(standard_normal_variate_backward, locals())
    if where is not None or weights is not None or nan_policy != "propagate":
        x = weighted_input(of_rows, x, axis, where, weights, nan_policy, None)
    backend, x = backend_for(x, "x")
    layout = row_layout(x.shape, axis)
    scaling = scaling_by(0.0, 0.0, check_ddof(ddof, layout))
    return backend.row_backward(
        LAYER, dy, x, mean, rstd, None, None, layout, scaling, Detached(), out
    )[0]


def check_ddof(ddof: Any, layout: RowLayout) -> int:
    """Return an integer that is less than the number of normalized elements."""
    number = check_integer("ddof", ddof, 0)
    if number >= layout.width > 0:
        raise ValueError(
            f"ddof must be less than the {layout.width} normalized elements, got {number}"
        )
    return number


def _row_call(shape: Shape, axis: Any, ddof: Any = 0) -> RowCall:
    """Return what the backend is handed."""
    layout = row_layout(shape, axis)
    return RowCall(layout, scaling_by(0.0, 0.0, check_ddof(ddof, layout)))


SPEC = NormSpec(
    standard_normal_variate,
    standard_normal_variate_forward,
    standard_normal_variate_backward,
    family="rows",
    counts=of_rows,
    norm=LAYER,
    row_call=_row_call,
    example=Example(
        "[[1.0, 2.0, 3.0]]",
        "ddof=1",
        "[[-1.  0.  1.]]",
        "[[ 0.1667 -0.3333  0.1667]]",
    ),
)
