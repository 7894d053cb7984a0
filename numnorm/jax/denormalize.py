"""The way back from a normalized array, for arrays of JAX: by operations of JAX."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from numnorm.arguments import Axis
from numnorm.jax.arrays import as_float_array
from numnorm.norms.denormalize import places_of, shapes_of


def denormalize(
    y: Any,
    mean: Any,
    rstd: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    axis: Axis = -1,
    channel_axis: Axis | None = None,
) -> Any:
    """Undo a norm: bring a normalized array back to the mean and the scale that it had.

    Parameters
    ----------
    y : array_like
        As for `numnorm.denormalize`; integers and bool become JAX's default float.
    mean, rstd : array_like
        As for `numnorm.denormalize`: what a ``_forward`` function of numnorm returned, or arrays of
        the trace.
    gamma, beta : array_like, optional
        As for `numnorm.denormalize`.
    axis, channel_axis
        As for `numnorm.denormalize`.

    Returns
    -------
    jax.Array
        Of the shape and dtype of y. Where rstd is 0 or infinite, it is the mean.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape; already when the caller
        is traced.

    Notes
    -----
    Computed in float64 if JAX has it, or else in float32: the mean of a large offset is then
    rounded to float32.

    Examples
    --------
    >>> import jax
    >>> import numnorm.jax
    >>> forecast = jax.numpy.array([[0.0, 1.0]])
    >>> print(numnorm.jax.denormalize(forecast, jax.numpy.array([5.0]), jax.numpy.array([0.5])))
    [[5. 7.]]
    """
    values = as_float_array("y", y)
    given = {"mean": mean, "rstd": rstd, "gamma": gamma, "beta": beta}
    wide = jnp.result_type(float)
    arrays = {
        name: as_float_array(name, value).astype(wide)
        for name, value in given.items()
        if value is not None or name == "rstd"
    }
    places = places_of(values.shape, shapes_of(arrays), axis, channel_axis)
    laid = {name: places[name].laid(array) for name, array in arrays.items()}
    x = values.astype(wide) - laid.get("beta", 0.0)
    # Not a quotient: with respect to an rstd of 0 its gradient would be NaN.
    flat = laid["rstd"] == 0.0
    deviation = jnp.where(flat, 0.0, 1.0 / jnp.where(flat, 1.0, laid["rstd"]))
    x = x / laid.get("gamma", 1.0) * deviation + laid.get("mean", 0.0)
    return x.astype(values.dtype)
