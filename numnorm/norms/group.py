"""Group normalization (Wu and He 2018)."""

from __future__ import annotations

from sys import modules
from typing import Any, Never

from numnorm.arguments import Shape, check_eps
from numnorm.array_likes import any_lazy, lazily
from numnorm.array_types import Array, ArrayLike, Input, Integer, NanPolicy, Number
from numnorm.backends import backend_for
from numnorm.backends.contract.norms import Detached, Norm, scaling_by
from numnorm.keywords import unexpected
from numnorm.layouts import group_layout
from numnorm.norms.affine import AFFINE
from numnorm.norms.results import Gradients, Normalized
from numnorm.norms.spec import Example, NormSpec, RowCall
from numnorm.norms.weighted import of_groups, weighted_input

GROUP = Norm(AFFINE, parameters=2)


def group_norm(
    x: Input[Array],
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    groups: Integer,
    channel_axis: Integer = 1,
    eps: Number = 1e-5,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> Array:
    r"""Normalize each sample over groups of channels, then scale and shift each channel.

    .. math:: y = \gamma_c \, \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta_c

    with the mean and the biased variance over the channels of a group and all spatial axes.

    Parameters
    ----------
    x : array_like
        ``(N, ...)`` with a channel axis; float16, bfloat16, float32 or float64. Integers and
        bool become float64. An array that is not C-contiguous with the channels second is
        copied once. An array of Dask, in any chunks, gives a lazy result.
    gamma, beta : array_like, optional
        Gain and bias of each channel, of shape ``(C,)``; or with as many axes as x, to broadcast
        against it: ``(N, C, 1)`` is a gain for each sample and channel. Default: 1 and 0.
    groups : int
        The number of groups; it divides C. 1 is layer norm over channels and space, C is
        instance norm.
    channel_axis : int, default 1
        The axis of the channels; not 0, the axis of the samples.
    eps : float, default 1e-5
        Added to the variance. With 0, a constant group is normalized to 0.
    out : array, optional
        Where to write the result, an array of its shape and dtype. It may be `x` itself.
    where : array_like of bool, or of 0 and 1, optional
        Which elements count; it broadcasts against x. The others get `fill`, whatever they are.
    weights : array_like, optional
        How often each element counts: `numpy.cov`'s `fweights`, but any numbers from 0 on. They
        broadcast against x.
    nan_policy : {"propagate", "omit", "raise"}
        What to do with NaN: make its group NaN, leave it out as `where` does, or raise an error.
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
    Y. Wu, K. He, "Group Normalization", ECCV 2018.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.group_norm([[1.0, 3.0, 10.0, 30.0]], groups=2, eps=0)
    array([[-1.,  1., -1.,  1.]])
    """
    if others:
        raise unexpected(group_norm, others)
    if "dask" in modules and any_lazy(x, gamma, beta, where, weights):
        return lazily(group_norm, locals())
    if where is not None or weights is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_groups, x, channel_axis, where, weights, nan_policy, fill)
    backend, x = backend_for(x, "x")
    layout = group_layout(x.shape, channel_axis, groups)
    scaling = scaling_by(check_eps(eps))
    return backend.row_forward(GROUP, x, gamma, beta, layout, scaling, out, False)[0]


def group_norm_forward(
    x: Input[Array],
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    groups: Integer,
    channel_axis: Integer = 1,
    eps: Number = 1e-5,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    fill: Number | None = None,
    **others: Never,
) -> Normalized[Array]:
    """Return `group_norm` together with the statistics that its backward pass needs.

    Parameters
    ----------
    x, gamma, beta, groups, channel_axis, eps, out, where, weights, nan_policy, fill
        As for `group_norm`.

    Returns
    -------
    Normalized
        ``(y, mean, rstd)``.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.group_norm_forward([[1.0, 3.0, 10.0, 30.0]], groups=2, eps=0).mean
    array([[ 2., 20.]])
    """
    if others:
        raise unexpected(group_norm_forward, others)
    if "dask" in modules and any_lazy(x, gamma, beta, where, weights):
        return lazily(group_norm_forward, locals())
    if where is not None or weights is not None or nan_policy != "propagate" or fill is not None:
        x = weighted_input(of_groups, x, channel_axis, where, weights, nan_policy, fill)
    backend, x = backend_for(x, "x")
    layout = group_layout(x.shape, channel_axis, groups)
    scaling = scaling_by(check_eps(eps))
    return Normalized(*backend.row_forward(GROUP, x, gamma, beta, layout, scaling, out, True))


def group_norm_backward(
    dy: ArrayLike,
    x: Input[Array],
    mean: ArrayLike,
    rstd: ArrayLike,
    gamma: ArrayLike | None = None,
    *,
    groups: Integer,
    channel_axis: Integer = 1,
    out: Any = None,
    where: ArrayLike | bool | None = None,
    weights: ArrayLike | Number | None = None,
    nan_policy: NanPolicy = "propagate",
    **others: Never,
) -> Gradients[Array]:
    r"""Return the gradients of `group_norm`.

    The formula of `layer_norm_backward` applies, with :math:`g = \gamma_c \, dy` and the means
    over a group; dgamma and dbeta are sums over samples and space.

    Parameters
    ----------
    dy : array_like
        The gradient of the loss with respect to y, of the shape of x and any float dtype.
    x : array_like
        The input of the forward pass, with the values that it had then.
    mean, rstd : array_like
        As `group_norm_forward` returned them.
    gamma : array_like, optional
        As in the forward pass.
    groups, channel_axis
        As in the forward pass.
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
        As `group_norm` does.

    Examples
    --------
    >>> import numnorm
    >>> x = [[1.0, 2.0, 4.0, 8.0]]
    >>> y, mean, rstd = numnorm.group_norm_forward(x, groups=2)
    >>> numnorm.group_norm_backward([[1.0, 0.0, 0.0, 2.0]], x, mean, rstd, groups=2).dbeta
    array([1., 0., 0., 2.])
    """
    if others:
        raise unexpected(group_norm_backward, others)
    if "dask" in modules and any_lazy(dy, x, mean, rstd, gamma, where, weights):
        return lazily(group_norm_backward, locals())
    if where is not None or weights is not None or nan_policy != "propagate":
        x = weighted_input(of_groups, x, channel_axis, where, weights, nan_policy, None)
    backend, x = backend_for(x, "x")
    layout = group_layout(x.shape, channel_axis, groups)
    return Gradients(
        *backend.row_backward(
            GROUP, dy, x, mean, rstd, gamma, None, layout, scaling_by(0.0), Detached(), out
        )
    )


def _row_call(shape: Shape, channel_axis: Any, groups: Any, eps: Any = 0.0) -> RowCall:
    """Return what the backend is handed."""
    return RowCall(group_layout(shape, channel_axis, groups), scaling_by(check_eps(eps)))


SPEC = NormSpec(
    group_norm,
    group_norm_forward,
    group_norm_backward,
    family="groups",
    counts=of_groups,
    parameters={"gamma": "channels", "beta": "channels"},
    norm=GROUP,
    row_call=_row_call,
    example=Example(
        "[[1.0, 3.0, 10.0, 20.0]]",
        "groups=2, eps=1",
        "[[-0.7071  0.7071 -0.9806  0.9806]]",
        "[[ 0.      0.     -0.0038  0.0038]]",
    ),
)
