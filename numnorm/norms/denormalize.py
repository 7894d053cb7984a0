"""The way back from a normalized array, by the statistics that a forward function returned."""

from __future__ import annotations

import functools
from sys import modules
from typing import Any, Generic, NamedTuple, cast

import numpy as np

from numnorm.arguments import (
    Axis,
    Shape,
    broadcasts,
    check_float,
    check_parameter_shape,
    check_shape,
    result_dtype,
)
from numnorm.array_likes import (
    any_lazy,
    as_plain_array,
    check_norm_on_host,
    lazily,
    results_like,
    statistics_like,
    writable_view,
)
from numnorm.array_types import Array, ArrayLike, Input
from numnorm.backends import backend_for, backend_of
from numnorm.backends.contract.backend import DenormalizeBackend
from numnorm.layouts import normalized_axes

STATISTICS = "mean", "rstd"
PARAMETERS = "gamma", "beta"
_FLOAT64 = np.dtype(np.float64)


class DenormalizedGradients(NamedTuple, Generic[Array]):
    """The gradients of `denormalize`; each has the shape and the float dtype of its array.

    Attributes
    ----------
    dy : array
        The gradient with respect to y.
    dmean, drstd : array
        Those with respect to the statistics; ``dmean`` is None if there was no mean.
    dgamma, dbeta : array or None
        Those with respect to gain and bias; None for what was not given.

    Examples
    --------
    >>> import numnorm
    >>> gradients = numnorm.denormalize_backward([[1.0, 2.0]], [[-1.0, 1.0]], [5.0], [0.5])
    >>> gradients.dy, gradients.dmean, gradients.drstd
    (array([[2., 4.]]), array([3.]), array([-4.]))
    """

    dy: Array
    dmean: Any
    drstd: Any
    dgamma: Any
    dbeta: Any


def denormalize(
    y: Input[Array],
    mean: ArrayLike | None,
    rstd: ArrayLike,
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    channel_axis: Axis | None = None,
    out: Any = None,
) -> Array:
    r"""Undo a norm: bring a normalized array back to the mean and the scale that it had.

    .. math:: x = \frac{y - \beta}{\gamma \, r} + \mu

    with the mean :math:`\mu` and the factor :math:`r` = rstd that the norm's ``_forward`` function
    returned. The array may be another one than the norm's result, such as a forecast: then this is
    the second half of reversible instance norm [1]_.

    Parameters
    ----------
    y : array_like
        Any shape; float16, bfloat16, float32 or float64. Integers and bool become float64. It may
        be longer or shorter than x along axes that the statistics lack, and hold a part of x along
        the others, with that part of the statistics. An array of Dask gives a lazy result.
    mean, rstd : array_like
        As a ``_forward`` function returned them: of the shape of y without `axis`; or, with
        `channel_axis`, of the shape of the channels, ``(C,)``, or ``(N, C)`` for each sample and
        channel, or ``(N, G)`` for groups of channels. Or a number, or an array with as many axes
        as y, to broadcast against it, as for moving norms. The mean is None for norms that do not
        subtract one.
    gamma, beta : array_like, optional
        Gain and bias, as in the forward function. Default: 1 and 0.
    axis : int or tuple of int, default -1
        The axes that share statistics, as in the forward function.
    channel_axis : int or tuple of int, optional
        The axis of the channels, for batch, instance and group norm; `axis` is then of no account.
    out : array, optional
        Where to write the result, an array of its shape and dtype. It may be `y` itself.

    Returns
    -------
    array
        Of the shape and dtype of y. Where rstd is 0 or infinite, as for a constant row without
        epsilon, it is the mean.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape.
    NotImplementedError
        If y is on a device.

    See Also
    --------
    denormalize_backward : Its gradients, also with respect to the statistics.

    Notes
    -----
    Computed in float64 and rounded once to the dtype of y. Where gamma is 0, nothing of x is left
    in y, and the result is infinite or NaN. `ada_norm` has no inverse, as two values of x may have
    the same y. For `weight_norm` the mean is None and rstd is ``g / norm``; for a norm by center
    and scale rstd is ``1 / (factor * scale + eps)``.

    References
    ----------
    .. [1] T. Kim et al., "Reversible Instance Normalization for Accurate Time-Series Forecasting
       against Distribution Shift", ICLR 2022.

    Examples
    --------
    >>> import numpy as np
    >>> import numnorm
    >>> window = np.array([[10.0, 12.0, 14.0]])
    >>> y, mean, rstd = numnorm.layer_norm_forward(window, eps=0)
    >>> numnorm.denormalize(y, mean, rstd).round(12)
    array([[10., 12., 14.]])

    A forecast of two steps, of which the first is that of the window's mean:

    >>> numnorm.denormalize([[0.0, 1.5]], mean, rstd).round(2)
    array([[12.  , 14.45]])
    """
    if "dask" in modules and any_lazy(y, mean, rstd, gamma, beta):
        return lazily(denormalize, locals())
    result, array = _of_host(y)
    given = float_arrays(mean=mean, rstd=rstd, gamma=gamma, beta=beta)
    places = places_of(array.shape, shapes_of(given), axis, channel_axis)
    laid = {name: places[name].laid(value) for name, value in given.items()}
    x = denormalized(array, laid, writable_view("out", out))
    if out is not None or result is None:
        return x if out is None else out
    return result(x)


def denormalize_backward(
    dx: ArrayLike,
    y: Input[Array],
    mean: ArrayLike | None,
    rstd: ArrayLike,
    gamma: ArrayLike | None = None,
    beta: ArrayLike | None = None,
    *,
    axis: Axis = -1,
    channel_axis: Axis | None = None,
) -> DenormalizedGradients[Array]:
    r"""Return the gradients of `denormalize` with respect to all its arrays.

    .. math:: dy = \frac{dx}{\gamma \, r}, \quad d\mu = \sum dx, \quad
              dr = -\sum \frac{dx \, (y - \beta)}{\gamma \, r^2}, \quad
              d\gamma = -\sum dy \, \frac{y - \beta}{\gamma}, \quad d\beta = -\sum dy

    over the elements that share a number. A model between a norm and its inverse passes dy to its
    own gradient; add what `dmean` and `drstd` pass to x if the statistics are no constants.

    Parameters
    ----------
    dx : array_like
        The gradient of the loss with respect to the result of `denormalize`, of its shape and any
        float dtype.
    y, mean, rstd, gamma, beta, axis, channel_axis
        As in the call of `denormalize`.

    Returns
    -------
    DenormalizedGradients
        ``(dy, dmean, drstd, dgamma, dbeta)``. Where rstd is 0 or infinite, all but dmean get no
        gradient.

    Raises
    ------
    TypeError, ValueError, NotImplementedError
        As `denormalize` does.

    Examples
    --------
    >>> import numnorm
    >>> y, mean, rstd = numnorm.layer_norm_forward([[1.0, 3.0]], eps=0)
    >>> numnorm.denormalize_backward([[1.0, 2.0]], y, mean, rstd).dmean
    array([3.])
    """
    if "dask" in modules and any_lazy(dx, y, mean, rstd, gamma, beta):
        return lazily(denormalize_backward, locals())
    result, array = _of_host(y)
    gradient = float_arrays(dx=dx)["dx"]
    check_shape("dx", gradient.shape, array.shape, "the shape of y")
    given = float_arrays(mean=mean, rstd=rstd, gamma=gamma, beta=beta)
    places = places_of(array.shape, shapes_of(given), axis, channel_axis)
    laid = {name: places[name].laid(value) for name, value in given.items()}
    found = gradients_of(gradient, array, laid)
    dy = rounded(found.pop("y"), array.dtype)
    own = {name: rounded(places[name].gathered(g), given[name].dtype) for name, g in found.items()}
    if result is not None:
        dy = result(dy)
        make = {
            **dict.fromkeys(STATISTICS, statistics_like(result)),
            **dict.fromkeys(PARAMETERS, result),
        }
        own = {name: make[name](value) for name, value in own.items()}
    return DenormalizedGradients(dy, *map(own.get, (*STATISTICS, *PARAMETERS)))


# How statistics and parameters lie along the axes of y


class Place(NamedTuple):
    """How an array lies along the axes of y.

    Attributes
    ----------
    shape : tuple of int
        Its own shape.
    axes : tuple of int
        The axes of y that its axes are.
    ndim : int
        The number of axes of y.
    repeats : int
        How many channels of y share an entry along its last axis.
    """

    shape: Shape
    axes: tuple[int, ...]
    ndim: int
    repeats: int = 1

    def laid(self, array: Any) -> Any:
        """Return the array with as many axes as y, to broadcast against it."""
        if self.repeats > 1:
            array = array.repeat(self.repeats, axis=len(self.shape) - 1)
        elif len(self.shape) == self.ndim:
            return array
        return array[_index(self.axes, self.ndim)]

    def gathered(self, gradient: Any) -> Any:
        """Return the gradient of the array, given that of the laid one."""
        if self.repeats > 1:
            gradient = gradient.reshape(*self.shape, self.repeats).sum(axis=-1)
        return gradient.reshape(self.shape)


@functools.cache
def _index(axes: tuple[int, ...], ndim: int) -> tuple[Any, ...]:
    """Return the index that puts the axes of an array at some of `ndim` axes."""
    return tuple(slice(None) if axis in axes else None for axis in range(ndim))


def places_of(
    shape: Shape, given: dict[str, Shape], axis: Any, channel_axis: Any
) -> dict[str, Place]:
    """Return how arrays of the given shapes lie along y of a shape.

    Raises
    ------
    TypeError, ValueError
        If an axis is wrong, or an array has a shape that does not fit.
    """
    if (type(axis) is int and channel_axis is None) or type(channel_axis) is int:
        return _known_places(shape, tuple(given.items()), axis, channel_axis)
    return _places(shape, given, axis, channel_axis)


def _places(
    shape: Shape, given: dict[str, Shape], axis: Any, channel_axis: Any
) -> dict[str, Place]:
    if not shape:
        raise ValueError("y must have at least 1 axis, got a scalar")
    every = tuple(range(len(shape)))
    if channel_axis is None:
        along = normalized_axes(axis, len(shape))
        kept = [tuple(a for a in every if a not in along)]
        meaning = "the normalized axes of y"
    else:
        along = normalized_axes(channel_axis, len(shape), "channel_axis")
        kept = [along]
        if len(along) == 1 and along != (0,):
            kept.append((0, *along))
        meaning = "the channels of y"
    return {
        name: _place_of_statistic(name, own, shape, kept)
        if name in STATISTICS
        else _place_of_parameter(name, own, shape, along, meaning)
        for name, own in given.items()
    }


@functools.lru_cache(maxsize=1024)
def _known_places(
    shape: Shape, given: tuple[tuple[str, Shape], ...], axis: Any, channel_axis: Any
) -> dict[str, Place]:
    return _places(shape, dict(given), axis, channel_axis)


def _place_of_statistic(name: str, own: Shape, shape: Shape, kept: list[tuple[int, ...]]) -> Place:
    for axes in kept:
        if own == tuple(shape[a] for a in axes):
            return Place(own, axes, len(shape))
    if own == ():
        return Place(own, (), len(shape))
    if len(kept) == 2 and len(own) == 2 and own[0] == shape[0]:
        channels = shape[kept[1][1]]
        if own[1] and channels % own[1] == 0:
            return Place(own, kept[1], len(shape), channels // own[1])
    if len(own) == len(shape) and all(n in (1, m) for n, m in zip(own, shape, strict=True)):
        return Place(own, tuple(range(len(shape))), len(shape))
    usual = [str(tuple(shape[a] for a in axes)) for axes in kept]
    if len(kept) == 2:
        usual.append(f"({shape[0]}, G) for G groups of channels")
    raise ValueError(
        f"{name} must have shape {', '.join(usual)}, or as many axes as y, to broadcast against "
        f"{shape}, got {own}"
    )


def _place_of_parameter(
    name: str, own: Shape, shape: Shape, along: tuple[int, ...], meaning: str
) -> Place:
    usual = tuple(shape[a] for a in along)
    if broadcasts(own, usual, shape):
        return Place(own, tuple(range(len(shape))), len(shape))
    check_parameter_shape(name, own, usual, meaning, shape)
    return Place(own, along, len(shape))


def _of_host(y: Any) -> tuple[Any, Any]:
    """Return what makes results of the library of y, None for NumPy's, and y as a float array."""
    if type(y) is np.ndarray:
        return None, backend_for(y, "y")[1]
    check_norm_on_host("denormalize", y, "y")
    return results_like(y), backend_for(y, "y")[1]


def float_arrays(**values: Any) -> dict[str, Any]:
    """Return those arrays that are given, as NumPy's; only the mean, a gain or a bias may lack."""
    arrays = {}
    for name, value in values.items():
        if value is None and name in ("mean", *PARAMETERS):
            continue
        array = as_plain_array(name, value)
        if array.dtype is not _FLOAT64:
            check_float(name, array.dtype)
            array = array.astype(result_dtype(name, array.dtype), copy=False)
        arrays[name] = array
    return arrays


def shapes_of(arrays: dict[str, Any]) -> dict[str, Shape]:
    """Return the shapes of arrays by name."""
    return {name: tuple(array.shape) for name, array in arrays.items()}


# The computation, for arrays with as many axes as y


def denormalized(y: Any, laid: dict[str, Any], out: Any = None) -> Any:
    """Return x, an array of NumPy, maybe in `out`."""
    backend = cast(DenormalizeBackend, backend_of(np.ndarray))
    gain = None
    if "gamma" in laid:
        with np.errstate(all="ignore"):
            gain = 1.0 / laid["gamma"].astype(np.float64, copy=False)
    return backend.denormalized(y, laid.get("beta"), gain, laid["rstd"], laid.get("mean"), out)


def _deviation(rstd: Any) -> Any:
    """Return the reciprocal of rstd, 0 where rstd is 0."""
    return np.where(rstd == 0.0, 0.0, 1.0 / rstd)


def gradients_of(dx: Any, y: Any, laid: dict[str, Any]) -> dict[str, Any]:
    """Return float64 gradients of y and of the laid arrays by name; sums keep their axes."""
    with np.errstate(all="ignore"):
        wide = {name: array.astype(np.float64) for name, array in laid.items()}
        found: dict[str, Any] = {}
        gradient, xhat = dx.astype(np.float64), y.astype(np.float64)
        if "mean" in wide:
            found["mean"] = _summed(gradient, wide["mean"])
        if "beta" in wide:
            xhat -= wide["beta"]
        if "gamma" in wide:
            xhat /= wide["gamma"]
        deviation = _deviation(wide["rstd"])
        gradient *= deviation  # now that of xhat
        found["rstd"] = -_summed(gradient * xhat * deviation, wide["rstd"])
        if "gamma" in wide:
            gradient /= wide["gamma"]
            found["gamma"] = -_summed(gradient * xhat, wide["gamma"])
        if "beta" in wide:
            found["beta"] = -_summed(gradient, wide["beta"])
        return {"y": gradient, **found}


def _summed(values: Any, like: Any) -> Any:
    """Return sums of an array over the axes in which another one broadcasts against it."""
    return values.sum(
        axis=tuple(axis for axis, n in enumerate(like.shape) if n == 1), keepdims=True
    )


def rounded(array: Any, dtype: Any) -> Any:
    """Return an array in a dtype whose range it may leave."""
    with np.errstate(all="ignore"):
        return array.astype(dtype, copy=False)
