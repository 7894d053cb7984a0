"""Robust norms: rows centred and scaled by their order statistics, which outliers do not move."""

from __future__ import annotations

from sys import modules
from typing import Any, Generic, NamedTuple, Never, cast

import numpy as np

from numnorm.arguments import Axis, Shape, brief, check_eps, check_float, check_number, check_shape
from numnorm.array_likes import (
    any_lazy,
    as_plain_array,
    check_norm_on_host,
    lazily,
    results_like,
    statistics_like,
    writable_view,
)
from numnorm.array_types import Array, ArrayLike, Input, NanPolicy, Number
from numnorm.backends import backend_for, backend_of
from numnorm.backends.contract.norms import scaling_by
from numnorm.backends.contract.order import OrderBackend, OrderScaling
from numnorm.backends.contract.weighting import WeightedInput, Weighting
from numnorm.keywords import unexpected
from numnorm.layouts import RowLayout, row_layout
from numnorm.norms.order_statistics import (
    METHODS,
    Center,
    Factor,
    Method,
    Scale,
    check_method,
    spread_by,
)
from numnorm.norms.spec import Example, NormSpec, RowCall
from numnorm.norms.weighted import of_rows, weighted_input


class RobustNormalized(NamedTuple, Generic[Array]):
    """A normalized array, and by what each row was centred and scaled.

    Attributes
    ----------
    y : array
        The normalized array, of the shape and dtype of x.
    center, scale : array
        What was subtracted, and the scale without factor and eps, 1 if there is none; float64
        (float32 for float16). NaN where nothing counts, or NaN does.

    Examples
    --------
    >>> import numnorm
    >>> forward = numnorm.robust_norm_forward([[1.0, 2.0, 4.0, 9.0, 99.0]])
    >>> forward.center, forward.scale
    (array([4.]), array([3.]))
    """

    y: Array
    center: Any
    scale: Any


def robust_norm(
    x: Input[Array],
    *,
    axis: Axis = -1,
    center: Center = "median",
    scale: Scale = "mad",
    factor: Factor = 1.0,
    method: Method | None = None,
    eps: Number = 0.0,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> Array:
    r"""Centre by a median, and scale by a spread that outliers do not move.

    .. math:: y = \frac{x - c}{f s + \varepsilon}

    with the center :math:`c`, the scale :math:`s` and the factor :math:`f` of the elements of
    `axis`. By default c is their median and s the median absolute deviation from it [1]_.

    Parameters
    ----------
    x : array_like
        Any shape; float16, bfloat16, float32 or float64. Integers and bool become float64.
        An array of Dask, in any chunks, gives a lazy result.
    axis : int or tuple of int, default -1
        The axes that share their statistics.
    center : {"median", "mean"} or float, default "median"
        What is subtracted.
    scale : {"mad", "iqr", "range"}, pair of float or None, default "mad"
        What is divided by. "mad": the median absolute deviation from the center. "iqr": the
        distance of the quantiles 0.25 and 0.75. "range": that of the least and the largest element.
        A pair, such as ``(0.05, 0.95)``: the distance of these quantiles. None: only centre.
    factor : float or "normal", default 1
        By what the scale is multiplied. "normal" makes it the standard deviation of normally
        distributed data: 1.4826 for "mad", 0.7413 for "iqr". "range" has no such factor.
    method : str, optional
        What a quantile between two elements is: one of the methods of `numpy.quantile`. The
        median is the quantile 0.5. Default: "linear", and with weights "inverted_cdf".
    eps : float, default 0
        Added to the divisor.
    out : array, optional
        Where to write the result, an array of its shape and dtype. It may be `x` itself.
    where : array_like of bool, or of 0 and 1, optional
        Which elements count; it broadcasts against x. The others get `fill`, whatever they are.
    weights : array_like, optional
        How much each element counts, any numbers from 0 on, of the shape of the normalized axes,
        or broadcasting against x. A quantile q is then the least element up to which at least the
        share q of all weights lies [2]_, as in `numpy.quantile` with weights.
    nan_policy : {"propagate", "omit", "raise"}
        What to do with NaN: make its row NaN, leave it out as `where` does, or raise an error.
    fill : float, optional
        The result of what is left out. Default: 0 where `where` is false, and NaN for NaN.

    Returns
    -------
    array
        Of the shape and dtype of x. Where the divisor of a row is 0, the row becomes 0.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.

    See Also
    --------
    standard_normal_variate : The same by mean and standard deviation.

    Notes
    -----
    Elements are selected, not sorted, each row by itself; rows over axes that are not the last are
    not copied as a whole. An infinite element counts as larger, or smaller, than all others; it
    moves the statistics only where they are made of it, and becomes infinite itself.

    References
    ----------
    .. [1] F. R. Hampel, "The influence curve and its role in robust estimation", Journal of the
       American Statistical Association, 1974.
    .. [2] R. J. Hyndman, Y. Fan, "Sample quantiles in statistical packages", The American
       Statistician, 1996.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.robust_norm([[1.0, 2.0, 4.0, 9.0, 99.0], [7.0, 7.0, 7.0, 7.0, 7.0]])
    array([[-1.        , -0.66666667,  0.        ,  1.66666667, 31.66666667],
           [ 0.        ,  0.        ,  0.        ,  0.        ,  0.        ]])
    >>> numnorm.robust_norm([1.0, 2.0, 4.0, 6.0, 99.0], scale="iqr", center=2)
    array([-0.25,  0.  ,  0.5 ,  1.  , 24.25])
    """
    if others:
        raise unexpected(robust_norm, others)
    if "dask" in modules and any_lazy(x, where, weights):
        return lazily(robust_norm, locals())
    counting = where, weights, nan_policy, fill
    call = _checked(x, axis, center, scale, factor, method, eps, counting)
    return call.forward(out).y


def robust_norm_forward(
    x: Input[Array],
    *,
    axis: Axis = -1,
    center: Center = "median",
    scale: Scale = "mad",
    factor: Factor = 1.0,
    method: Method | None = None,
    eps: Number = 0.0,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> RobustNormalized[Array]:
    """Return `robust_norm` together with the statistics of each row.

    Parameters
    ----------
    x, axis, center, scale, factor, method, eps, out, where, weights, nan_policy, fill
        As for `robust_norm`.

    Returns
    -------
    RobustNormalized
        ``(y, center, scale)``.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.robust_norm_forward([[1.0, 2.0, 4.0, 9.0, 99.0]], scale=(0.0, 0.5)).scale
    array([3.])
    """
    if others:
        raise unexpected(robust_norm_forward, others)
    if "dask" in modules and any_lazy(x, where, weights):
        return lazily(robust_norm_forward, locals())
    counting = where, weights, nan_policy, fill
    call = _checked(x, axis, center, scale, factor, method, eps, counting)
    return call.forward(out)


def robust_norm_backward(
    dy: ArrayLike,
    x: Input[Array],
    centers: ArrayLike,
    scales: ArrayLike,
    *,
    axis: Axis = -1,
    center: Center = "median",
    scale: Scale = "mad",
    factor: Factor = 1.0,
    method: Method | None = None,
    eps: Number = 0.0,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    **others: Never,
) -> Array:
    r"""Return the gradient of `robust_norm` with respect to x.

    With the divisor :math:`d = f s + \varepsilon`,

    .. math:: dx = \frac{dy}{d} - \frac{\sum dy}{d} \nabla c
              - \frac{f \sum dy \, y}{d} \nabla s

    A quantile depends on the elements that it is made of; equal ones share its gradient equally. So
    does the median absolute deviation, by the sign of a deviation, and through the center.

    Parameters
    ----------
    dy : array_like
        The gradient of the loss with respect to y, of the shape of x and any float dtype.
    x : array_like
        The input of the forward pass, with the values that it had then.
    centers, scales : array_like
        The center and the scale of each row, as `robust_norm_forward` returned them. Of
        `centers` only the dtype and the shape are checked: centers are found again.
    axis, center, scale, factor, method, eps
        As in the forward pass.
    out : array, optional
        Where to write the result; it may be `dy` or `x`.
    where, weights, nan_policy
        As in the forward pass.

    Returns
    -------
    array
        dx, of the shape and dtype of x. A row whose divisor is 0 gets a gradient of 0.

    Raises
    ------
    TypeError, ValueError
        As `robust_norm` does.

    Examples
    --------
    >>> import numnorm
    >>> x = [[1.0, 2.0, 4.0, 8.0]]
    >>> y, centers, scales = numnorm.robust_norm_forward(x, scale="range")
    >>> numnorm.robust_norm_backward([[0.0, 0.0, 0.0, 7.0]], x, centers, scales, scale="range")
    array([[ 0.71428571, -0.5       , -0.5       ,  0.28571429]])
    """
    if others:
        raise unexpected(robust_norm_backward, others)
    if "dask" in modules and any_lazy(dy, x, centers, scales, where, weights):
        return lazily(robust_norm_backward, locals())
    counting = where, weights, nan_policy, None
    call = _checked(x, axis, center, scale, factor, method, eps, counting)
    return call.backward(dy, centers, scales, out)


# Checked arguments


class _Call(NamedTuple):
    """The checked arguments of a call.

    Attributes
    ----------
    like : callable or None
        Makes an array of the library of x of one of NumPy.
    x : array
    layout : RowLayout
    scaling : OrderScaling
    weighting : Weighting or None
        Which elements count, and how much; None if all do alike.
    """

    like: Any
    x: Any
    layout: RowLayout
    scaling: OrderScaling
    weighting: Weighting | None

    def forward(self, out: Any) -> RobustNormalized[Any]:
        """Return y, center and scale for the caller."""
        backend = cast(OrderBackend, backend_of(np.ndarray))
        target = None if out is None else writable_view("out", out)
        y, *saved = backend.order_forward(self.x, self.layout, self.scaling, self.weighting, target)
        if self.like is not None:
            y, saved = self.like(y), [*map(statistics_like(self.like), saved)]
        return RobustNormalized(y if out is None else out, *saved)

    def backward(self, dy: Any, centers: Any, scales: Any, out: Any) -> Any:
        """Return dx for the caller."""
        rows = self.layout.statistic_shape, "one for each row"
        gradient = as_plain_array("dy", dy)
        check_float("dy", gradient.dtype)
        _float_array("centers", centers, *rows)
        own = _float_array("scales", scales, *rows)
        backend = cast(OrderBackend, backend_of(np.ndarray))
        target = None if out is None else writable_view("out", out)
        dx = backend.order_backward(
            gradient, self.x, own, self.layout, self.scaling, self.weighting, target
        )
        if out is not None:
            return out
        return dx if self.like is None else self.like(dx)


def _float_array(name: str, value: Any, shape: Shape, meaning: str) -> Any:
    array = as_plain_array(name, value)
    check_float(name, array.dtype)
    check_shape(name, array.shape, shape, meaning)
    return array


def _checked(
    x: Any,
    axis: Any,
    center: Any,
    scale: Any,
    factor: Any,
    method: Any,
    eps: Any,
    counting: tuple[Any, Any, Any, Any],
) -> _Call:
    check_norm_on_host("robust_norm", x)
    like, weighting = results_like(x), None
    where, weights, nan_policy, fill = counting
    if where is not None or weights is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_rows, x, axis, where, weights, nan_policy, fill)
        weighting = x.weighting if isinstance(x, WeightedInput) else None
    _, array = backend_for(x, "x")
    scaling = _scaling(center, scale, factor, method, eps, weights is not None)
    return _Call(like, array, row_layout(array.shape, axis), scaling, weighting)


def _scaling(
    center: Any, scale: Any, factor: Any, method: Any, eps: Any, weighted: bool
) -> OrderScaling:
    """Return how rows are centred and scaled."""
    spread, rule = spread_by(scale, factor), METHODS[check_method(method, weighted)]
    added = check_eps(eps)
    if scale is None and added != 0.0:
        raise ValueError(f"eps must be 0 where scale is None, got {added:g}")
    return OrderScaling(_checked_center(center), spread, added, rule)


def _checked_center(center: Any) -> Any:
    if isinstance(center, str) and center in ("median", "mean"):
        return center
    if center is None or isinstance(center, str):
        raise ValueError(f"center must be 'median', 'mean' or a number, got {brief(center)}")
    return check_number("center", center)


def _row_call(
    shape: Shape,
    axis: Any,
    center: Any = "median",
    scale: Any = "mad",
    factor: Any = 1.0,
    method: Any = None,
    eps: Any = 0.0,
) -> RowCall:
    """Return the layout of the rows."""
    # It is not known here whether there are weights. A method for weights is also one without.
    _scaling(center, scale, factor, method, eps, False)
    return RowCall(row_layout(shape, axis), scaling_by(0.0))


SPEC = NormSpec(
    robust_norm,
    robust_norm_forward,
    robust_norm_backward,
    family="rows",
    counts=of_rows,
    row_call=_row_call,
    example=Example(
        "[[1.0, 2.0, 4.0, 8.0]]",
        "scale='range'",
        "[[-0.2857 -0.1429  0.1429  0.7143]]",
        "[[ 0.102  -0.0714 -0.0714  0.0408]]",
    ),
)
