"""AdaNorm: layer normalization with an adaptive factor in place of gain and bias (Xu 2019)."""

from __future__ import annotations

from sys import modules
from typing import Any, Never

from numnorm.arguments import Axis, Shape, check_choice, check_eps, check_flag, check_number
from numnorm.array_likes import any_lazy, lazily
from numnorm.array_types import Array, ArrayLike, EpsIn, Input, Integer, NanPolicy, Number
from numnorm.backends import backend_for
from numnorm.backends.contract.norms import Detached, Formula, Norm, Scaling, scaling_by
from numnorm.keywords import unexpected
from numnorm.layouts import RowLayout, row_layout
from numnorm.norms.results import Normalized
from numnorm.norms.spec import Example, NormSpec, RowCall
from numnorm.norms.standard import check_ddof
from numnorm.norms.weighted import of_rows, weighted_input


def adaptive(xhat: Any, scale: Any, k: Any) -> Any:
    """Return ``scale * (1 - k * xhat) * xhat``."""
    return scale * (xhat - k * xhat * xhat)


def adaptive_gradient(dy: Any, xhat: Any, scale: Any, k: Any) -> Any:
    """Return the gradient of `adaptive` for a constant factor; pass 2 k to differentiate it."""
    return dy * (scale - scale * k * xhat)


_ADAPTIVE = Formula("adaptive", centred=True, forward=adaptive, backward=adaptive_gradient)
ADA = Norm(_ADAPTIVE, parameters=0)


def scaling_of(eps: Any, eps_in: Any, ddof: Any, layout: RowLayout) -> Scaling:
    """Return the scaling of rows by the arguments of `ada_norm`."""
    eps = check_eps(eps)
    ddof = check_ddof(ddof, layout)
    if check_choice("eps_in", eps_in, ("variance", "std")) == "variance":
        return scaling_by(eps, 0.0, ddof)
    return scaling_by(0.0, eps, ddof)


def check_scale(scale: Any) -> float:
    """Return the scale, which must be greater than 0, as a float."""
    number = check_number("scale", scale)
    if number <= 0.0:
        raise ValueError(f"scale must be greater than 0, got {number:g}")
    return number


def ada_norm(
    x: Input[Array],
    *,
    axis: Axis = -1,
    scale: float = 1.0,
    k: Number = 0.1,
    eps: Number = 1e-5,
    eps_in: EpsIn = "variance",
    ddof: Integer = 0,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> Array:
    r"""Normalize over the given axes, then scale each value by a factor that depends on it.

    .. math:: z = C (1 - k y) y, \quad y = \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}}

    Parameters
    ----------
    x : array_like
        Any shape; float16, bfloat16, float32 or float64. Integers and bool become float64.
        An array that is not C-contiguous with the normalized axes last is copied once.
        An array of Dask, in any chunks, gives a lazy result.
    axis : int or tuple of int, default -1
        The axes that share their statistics.
    scale : float, default 1
        C in the formula, greater than 0. The authors use 1 to 2.
    k : float, default 0.1
        k in the formula. By Chebyshev's inequality, the factor is positive for at least 99% of the
        values at 0.1.
    eps : float, default 1e-5
        Keeps the division defined. With 0, a constant row is normalized to 0.
    eps_in : {"variance", "std"}
        Whether `eps` is added to the variance or to the standard deviation.
    ddof : int, default 0
        The variance divides by the number of elements less `ddof`. The authors' published code
        is ``ddof=1, eps_in="std"``.
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
    J. Xu et al., "Understanding and Improving Layer Normalization", NeurIPS 2019.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.ada_norm([[1.0, 3.0]], eps=0)
    array([[-1.1,  0.9]])
    """
    if others:
        raise unexpected(ada_norm, others)
    if "dask" in modules and any_lazy(x, where, weights):
        return lazily(ada_norm, locals())
    if where is not None or weights is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_rows, x, axis, where, weights, nan_policy, fill)
    return _forward(x, axis, scale, k, eps, eps_in, ddof, out, False)[0]


def ada_norm_forward(
    x: Input[Array],
    *,
    axis: Axis = -1,
    scale: float = 1.0,
    k: Number = 0.1,
    eps: Number = 1e-5,
    eps_in: EpsIn = "variance",
    ddof: Integer = 0,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> Normalized[Array]:
    """Return `ada_norm` together with the statistics that its backward pass needs.

    Parameters
    ----------
    x, axis, scale, k, eps, eps_in, ddof, out, where, weights, nan_policy, fill
        As for `ada_norm`.

    Returns
    -------
    Normalized
        ``(y, mean, rstd)``.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.ada_norm_forward([[1.0, 3.0]], eps=0)
    Normalized(y=array([[-1.1,  0.9]]), mean=array([2.]), rstd=array([1.]))
    """
    if others:
        raise unexpected(ada_norm_forward, others)
    if "dask" in modules and any_lazy(x, where, weights):
        return lazily(ada_norm_forward, locals())
    if where is not None or weights is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_rows, x, axis, where, weights, nan_policy, fill)
    return Normalized(*_forward(x, axis, scale, k, eps, eps_in, ddof, out, True))


def _forward(
    x: Any, axis: Any, scale: Any, k: Any, eps: Any, eps_in: Any, ddof: Any, out: Any, save: bool
) -> tuple[Any, Any, Any]:
    backend, x = backend_for(x, "x")
    layout = row_layout(x.shape, axis)
    scaling = scaling_of(eps, eps_in, ddof, layout)
    factors = check_scale(scale), check_number("k", k)
    return backend.row_forward(ADA, x, *factors, layout, scaling, out, save)


def ada_norm_backward(
    dy: ArrayLike,
    x: Input[Array],
    mean: ArrayLike,
    rstd: ArrayLike,
    *,
    axis: Axis = -1,
    scale: float = 1.0,
    k: Number = 0.1,
    eps: Number = 1e-5,
    eps_in: EpsIn = "variance",
    ddof: Integer = 0,
    detach_factor: bool = True,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    **others: Never,
) -> Array:
    r"""Return the gradient of `ada_norm` with respect to x.

    The factor :math:`\varphi = C (1 - k y)` is a constant in the backward pass, as the authors
    define it. With :math:`g = \varphi \, dz`, the divisor q of the forward pass and the standard
    deviation s (s = q with epsilon in the variance),

    .. math:: dx = \frac{g - \overline g}{q} - \frac{(x - \mu) \sum g y}{(D - \mathrm{ddof})\,s\,q}

    Parameters
    ----------
    dy : array_like
        The gradient of the loss with respect to the result, of the shape of x and any float dtype.
    x : array_like
        The input of the forward pass, with the values that it had then.
    mean, rstd : array_like
        As `ada_norm_forward` returned them.
    axis, scale, k, eps, eps_in, ddof
        As in the forward pass.
    detach_factor : bool, default True
        False differentiates the factor, too: :math:`g = C (1 - 2 k y) \, dz`.
    out : array, optional
        Where to write dx; it may be `dy` or `x`.
    where, weights, nan_policy
        As in the forward pass.

    Returns
    -------
    array
        dx, of the shape and dtype of x. The norm has no parameters.

    Raises
    ------
    TypeError, ValueError
        As `ada_norm` does.

    Examples
    --------
    >>> import numnorm
    >>> x = [[1.0, 2.0, 4.0]]
    >>> y, mean, rstd = numnorm.ada_norm_forward(x)
    >>> numnorm.ada_norm_backward([[1.0, 0.0, 0.0]], x, mean, rstd).round(4)
    array([[ 0.2536, -0.3804,  0.1268]])
    """
    if others:
        raise unexpected(ada_norm_backward, others)
    if "dask" in modules and any_lazy(dy, x, mean, rstd, where, weights):
        return lazily(ada_norm_backward, locals())
    if where is not None or weights is not None or nan_policy != "propagate":
        x = weighted_input(of_rows, x, axis, where, weights, nan_policy, None)
    backend, x = backend_for(x, "x")
    layout = row_layout(x.shape, axis)
    scaling = scaling_of(eps, eps_in, ddof, layout)
    k = check_number("k", k) * (1.0 if check_flag("detach_factor", detach_factor) else 2.0)
    return backend.row_backward(
        ADA, dy, x, mean, rstd, check_scale(scale), k, layout, scaling, Detached(), out
    )[0]


def _row_call(
    shape: Shape,
    axis: Any,
    scale: Any,
    k: Any,
    eps: Any,
    eps_in: Any,
    ddof: Any,
    detach_factor: Any = True,
) -> RowCall:
    """Return what the backend is handed."""
    layout = row_layout(shape, axis)
    scaling = scaling_of(eps, eps_in, ddof, layout)
    number = check_number("k", k)
    backward_k = number if check_flag("detach_factor", detach_factor) else 2.0 * number
    return RowCall(layout, scaling, factors=(check_scale(scale), number, backward_k))


SPEC = NormSpec(
    ada_norm,
    ada_norm_forward,
    ada_norm_backward,
    family="rows",
    counts=of_rows,
    norm=ADA,
    row_call=_row_call,
    example=Example(
        "[[1.0, 2.0, 3.0]]",
        "eps=0",
        "[[-1.3747  0.      1.0747]]",
        "[[ 0.1791 -0.3582  0.1791]]",
    ),
)
