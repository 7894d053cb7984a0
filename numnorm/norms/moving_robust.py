"""Moving robust normalization: each step by the median and the spread of a window."""

from __future__ import annotations

from sys import modules
from typing import Any, Generic, NamedTuple, Never

from numnorm.arguments import check_eps, check_flag, check_integer
from numnorm.array_likes import (
    any_lazy,
    as_plain_array,
    check_norm_on_host,
    lazily,
    results_like,
    statistics_like,
    writable_view,
)
from numnorm.array_types import Array, ArrayLike, Input, Integer, NanPolicy, Number
from numnorm.backends import backend_for
from numnorm.backends.contract.moving import MovingState, windows_by
from numnorm.backends.contract.moving_order import OrderWindows
from numnorm.backends.contract.weighting import WeightedInput, Weighting
from numnorm.keywords import unexpected
from numnorm.layouts import MovingLayout, moving_layout
from numnorm.norms.order_statistics import (
    METHODS,
    Factor,
    Method,
    Scale,
    check_method,
    spread_by,
)
from numnorm.norms.spec import Example, NormSpec
from numnorm.norms.weighted import of_steps, weighted_input


class MovingRobustNormalized(NamedTuple, Generic[Array]):
    """An array after `moving_robust_norm`, and what its backward pass needs.

    Attributes
    ----------
    y : array
        Of the shape and dtype of x.
    median, scale : array
        The median of each step's window, and its scale without factor and eps, 1 if there is none:
        of the shape of x; float64 (float32 for float16). NaN where nothing counts, or NaN does.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.moving_robust_norm_forward([1.0, 3.0, 5.0], 2).median
    array([1., 2., 4.])
    """

    y: Array
    median: Any
    scale: Any


def moving_robust_norm(
    x: Input[Array],
    window: Integer,
    *,
    axis: Integer = -1,
    center: bool = False,
    min_window: Integer = 1,
    scale: Scale = "mad",
    factor: Factor = 1.0,
    method: Method | None = None,
    eps: Number = 0.0,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> Array:
    r"""Subtract the median of a window of steps from each step, and divide by the window's spread.

    .. math:: y_t = \frac{x_t - m_t}{f s_t + \epsilon}, \quad
        s_t = \operatorname{median}_j |x_j - m_t|

    with the median :math:`m_t` of the window of step t along `axis`, and its median absolute
    deviation or the distance of two of its quantiles; each sequence along the axis is a channel of
    its own. Outliers hardly move either. Steps beyond 3 with ``factor="normal"`` are those of
    Hampel's rule.

    Parameters
    ----------
    x : array_like
        Any shape; float16, bfloat16, float32 or float64. Integers and bool become float64.
        An array of Dask, in any chunks, gives a lazy result.
    window : int
        The number of steps of a window. If x is shorter, the window is all of x.
    axis : int, default -1
        The axis of time.
    center : bool, default False
        Whether the window of step t begins with step ``t - window // 2``, or else ends with t.
        Near the ends of x a centred window moves inwards and keeps its length.
    min_window : int, default 1
        The least number of steps of a trailing window. The first steps share the first window
        of that length, which then also holds steps after them. Steps that `where` leaves out are
        steps, too: pandas' ``min_periods`` counts values.
    scale : {"mad", "iqr", "range"}, pair of float, or None, default "mad"
        What is divided by: the median absolute deviation from the median, the distance of the
        quartiles, that of the least and the largest value, or that of two quantiles, such as
        ``(0.05, 0.95)``. None only subtracts the median.
    factor : float or "normal", default 1
        By what the scale is multiplied. "normal" makes it the standard deviation of normal data:
        1.4826 for "mad", 0.7413 for "iqr".
    method : str, optional
        How a quantile that lies between two values is found, the median included: one of the
        methods of `numpy.quantile`. Default: "linear".
    eps : float, default 0
        Added to the scale, in the unit of x.
    out : array, optional
        Where to write the result, an array of its shape and dtype. It may be `x` itself.
    where : array_like of bool, or of 0 and 1, optional
        Which steps count; it broadcasts against x. The others get `fill`, whatever they are.
    nan_policy : {"propagate", "omit", "raise"}
        What to do with NaN: make the windows that hold it NaN, leave it out as `where` does, or
        raise an error.
    fill : float, optional
        The result of what is left out. Default: 0 where `where` is false, and NaN for NaN.

    Returns
    -------
    array
        Of the shape and dtype of x. Where the scale and `eps` are 0, as in a window of which more
        than half is constant, the result is 0.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.

    See Also
    --------
    moving_robust_norm_step : The same for a stream in chunks.
    moving_norm : By the mean and the standard deviation.

    Notes
    -----
    Order statistics are those of float64, without rounding, so a result depends on the values of
    its window alone, and the time of a step grows with the logarithm of the window. An infinity is
    the largest value of its window, or the least one, and its deviation is infinite: such a step
    gets an infinite result. Where half of a window is infinite and the median with it, the scale
    is NaN.

    References
    ----------
    F. R. Hampel, "The influence curve and its role in robust estimation", Journal of the American
    Statistical Association 69, 1974.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.moving_robust_norm([1.0, 2.0, 4.0, 90.0, 5.0], 3)
    array([ 0.,  1.,  2., 43.,  0.])
    >>> numnorm.moving_robust_norm([1.0, 2.0, 4.0, 90.0, 5.0], 3, center=True, scale=None)
    array([-1.,  0.,  0., 85.,  0.])
    """
    if others:
        raise unexpected(moving_robust_norm, others)
    if "dask" in modules and any_lazy(x, where):
        return lazily(moving_robust_norm, locals())
    options = window, center, min_window, scale, factor, method, eps
    call = _checked(x, axis, options, (where, nan_policy, fill))
    return call.forward(out, False)[0]


def moving_robust_norm_forward(
    x: Input[Array],
    window: Integer,
    *,
    axis: Integer = -1,
    center: bool = False,
    min_window: Integer = 1,
    scale: Scale = "mad",
    factor: Factor = 1.0,
    method: Method | None = None,
    eps: Number = 0.0,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> MovingRobustNormalized[Array]:
    """Return `moving_robust_norm` together with the statistics that its backward pass needs.

    Parameters
    ----------
    x, window, axis, center, min_window, scale, factor, method, eps, out, where, nan_policy, fill
        As for `moving_robust_norm`.

    Returns
    -------
    MovingRobustNormalized
        ``(y, median, scale)``, all of the shape of x. Both statistics are NaN for windows in which
        no step counts.

    Examples
    --------
    >>> import numnorm
    >>> y, median, scale = numnorm.moving_robust_norm_forward([1.0, 2.0, 9.0], 3)
    >>> median, scale
    (array([1. , 1.5, 2. ]), array([0. , 0.5, 1. ]))
    """
    if others:
        raise unexpected(moving_robust_norm_forward, others)
    if "dask" in modules and any_lazy(x, where):
        return lazily(moving_robust_norm_forward, locals())
    options = window, center, min_window, scale, factor, method, eps
    call = _checked(x, axis, options, (where, nan_policy, fill))
    return MovingRobustNormalized(*call.forward(out, True))


def moving_robust_norm_backward(
    dy: ArrayLike,
    x: Input[Array],
    median: ArrayLike,
    scales: ArrayLike,
    window: Integer,
    *,
    axis: Integer = -1,
    center: bool = False,
    min_window: Integer = 1,
    scale: Scale = "mad",
    factor: Factor = 1.0,
    method: Method | None = None,
    eps: Number = 0.0,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    **others: Never,
) -> Array:
    r"""Return the gradient of `moving_robust_norm` with respect to x.

    The gradient of an order statistic goes to the values of its window that attain it, in equal
    shares; between two values it is divided as they are weighted. A deviation of 0 passes none.

    Parameters
    ----------
    dy : array_like
        The gradient of the loss with respect to y, of the shape of x and any float dtype.
    x : array_like
        The input of the forward pass, with the values that it had then.
    median, scales : array_like
        As `moving_robust_norm_forward` returned them.
    window, axis, center, min_window, scale, factor, method, eps
        As in the forward pass.
    out : array, optional
        Where to write dx; it may be `dy` or `x`.
    where, nan_policy
        As in the forward pass. What was left out passes no gradient.

    Returns
    -------
    array
        dx, of the shape and dtype of x. Windows whose scale and `eps` are 0 pass no gradient.

    Raises
    ------
    TypeError, ValueError
        As `moving_robust_norm` does.

    Examples
    --------
    >>> import numnorm
    >>> x = [1.0, 2.0, 9.0]
    >>> y, median, scale = numnorm.moving_robust_norm_forward(x, 3)
    >>> numnorm.moving_robust_norm_backward([0.0, 0.0, 1.0], x, median, scale, 3)
    array([ 7., -8.,  1.])
    """
    if others:
        raise unexpected(moving_robust_norm_backward, others)
    if "dask" in modules and any_lazy(dy, x, median, scales, where):
        return lazily(moving_robust_norm_backward, locals())
    options = window, center, min_window, scale, factor, method, eps
    call = _checked(x, axis, options, (where, nan_policy, None))
    given = (as_plain_array(*each) for each in (("dy", dy), ("median", median), ("scales", scales)))
    first, *saved = given
    layout, target = (call.layout, call.windows), writable_view("out", out)
    dx = call.backend.moving_order_backward(call.weighting, first, call.x, *saved, *layout, target)
    return call.result(dx, out)


def moving_robust_norm_step(
    x: Input[Array],
    window: Integer,
    state: MovingState | None = None,
    *,
    axis: Integer = -1,
    scale: Scale = "mad",
    factor: Factor = 1.0,
    method: Method | None = None,
    eps: Number = 0.0,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> tuple[Array, MovingState]:
    """Normalize the next chunk of a stream as `moving_robust_norm` with trailing windows does.

    Parameters
    ----------
    x : array_like
        A chunk of any number of steps, of one dtype and shape but for the steps.
    window : int
        As for `moving_robust_norm`, the same for all chunks.
    state : MovingState, optional
        What the call for the previous chunk returned; None for the first one. It can be pickled.
    axis, scale, factor, method, eps, out, where, nan_policy, fill
        As for `moving_robust_norm`; `where` is for the chunk.

    Returns
    -------
    y : array
        Of the shape and dtype of x: for all chunks together the same bytes as from one call of
        `moving_robust_norm`.
    state : MovingState
        For the next chunk.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.

    Notes
    -----
    There is no `center` and no `min_window`: both look at steps that are still to come. A call
    sorts the window before the chunk again, so the time for short chunks grows with the window.

    Examples
    --------
    >>> import numnorm
    >>> y, state = numnorm.moving_robust_norm_step([1.0, 2.0, 4.0], 3)
    >>> y, state = numnorm.moving_robust_norm_step([90.0, 5.0], 3, state)
    >>> y
    array([43.,  0.])
    """
    if others:
        raise unexpected(moving_robust_norm_step, others)
    options = window, False, 1, scale, factor, method, eps
    call = _checked(x, axis, options, (where, nan_policy, fill))
    if state is not None and not isinstance(state, MovingState):
        raise TypeError(f"state must be a MovingState, got {type(state).__name__}")
    if state is not None and state.times is not None:
        raise ValueError("state must be of steps without times, got one of steps with times")
    layout, target = (call.layout, call.windows), writable_view("out", out)
    y, after = call.backend.moving_order_step(call.weighting, call.x, state, *layout, target)
    return call.result(y, out), after


# Checked arguments


class _Call(NamedTuple):
    """The checked arguments of a call.

    Attributes
    ----------
    like : callable or None
        Makes an array of the library of x of one of NumPy.
    backend : backend
        That of NumPy's arrays.
    x : array
        As one of NumPy.
    weighting : Weighting or None
        Which steps count; None if all do.
    layout : MovingLayout
    windows : OrderWindows
    """

    like: Any
    backend: Any
    x: Any
    weighting: Weighting | None
    layout: MovingLayout
    windows: OrderWindows

    def forward(self, out: Any, save: bool) -> tuple[Any, Any, Any]:
        """Return y and, if `save` is true, median and scale."""
        layout, target = (self.layout, self.windows), writable_view("out", out)
        found = self.backend.moving_order_forward(self.weighting, self.x, *layout, target, save)
        y, *saved = found
        if save and self.like is not None:
            saved = map(statistics_like(self.like), saved)
        median, scales = saved
        return self.result(y, out), median, scales

    def result(self, array: Any, out: Any) -> Any:
        """Return an array of the shape of x as the caller gets it."""
        if out is not None:
            return out
        return array if self.like is None else self.like(array)


def _checked(x: Any, axis: Any, options: tuple[Any, ...], counting: tuple[Any, ...]) -> _Call:
    """Return the arguments of a call, or raise an error."""
    check_norm_on_host("moving_robust_norm", x)
    like, weighting = results_like(x), None
    where, nan_policy, fill = counting
    if where is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_steps, x, axis, where, None, nan_policy, fill)
        if isinstance(x, WeightedInput):
            x, weighting = x
    backend: Any
    backend, array = backend_for(x, "x")
    return _Call(
        like, backend, array, weighting, moving_layout(array.shape, axis), _order_windows(*options)
    )


def _order_windows(
    window: Any, center: Any, min_window: Any, scale: Any, factor: Any, method: Any, eps: Any
) -> OrderWindows:
    """Return the checked windows."""
    window = check_integer("window", window, 1)
    least = check_integer("min_window", min_window, 1)
    if least > window:
        raise ValueError(f"min_window must be at most the window, {window}, got {least}")
    around, added = check_flag("center", center), check_eps(eps)
    windows = windows_by(window, around, least, centred=True, scaled=True, eps=added)
    rule = METHODS[check_method(method, weighted=False)]
    return OrderWindows(windows, spread_by(scale, factor), rule)


SPEC = NormSpec(
    moving_robust_norm,
    moving_robust_norm_forward,
    moving_robust_norm_backward,
    step=moving_robust_norm_step,
    family="windows",
    counts=of_steps,
    example=Example(
        "[[1.0, 2.0, 9.0, 6.0]]",
        "4",
        "[[0.  1.  7.  0.8]]",
        "[[ 0.16 -0.2   0.    0.04]]",
    ),
)
