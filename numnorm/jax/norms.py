"""The norms with statistics of rows, for arrays of JAX."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from numnorm.arguments import Axis, check_eps, check_flag, check_number
from numnorm.array_types import Detach, EpsIn
from numnorm.backends.contract.norms import Detached, Norm, Scaling, scaling_by
from numnorm.jax.arrays import as_float_array, as_parameter
from numnorm.jax.rows import RowNorm, normalize
from numnorm.jax.varying import varying_like
from numnorm.layouts import (
    RowLayout,
    group_layout,
    instance_layout,
    row_layout,
    vector_layout,
)
from numnorm.norms import ada, standard, weight
from numnorm.norms.group import GROUP
from numnorm.norms.layer import LAYER, detached_by
from numnorm.norms.rms import RMS

_NO_FACTORS = 0.0, 0.0, 0.0
_NOTHING = Detached()
# The defaults of gamma and beta.
_FILLS = jnp.ones_like, jnp.zeros_like


@functools.partial(jax.jit, static_argnums=(0, 1))
def _normalized(static: RowNorm, layout: RowLayout, x: Any, gamma: Any, beta: Any) -> Any:
    order = layout.order
    moved = x if order is None else jnp.transpose(x, order)
    rows = moved.reshape(1, layout.rows, layout.width)
    arrays = rows, gamma, beta
    y = normalize(static, *varying_like(arrays, arrays)).reshape(moved.shape)
    return y if order is None else jnp.transpose(y, [order.index(k) for k in range(y.ndim)])


def _norm(
    norm: Norm,
    x: Any,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: Scaling,
    detached: Detached = _NOTHING,
    factors: tuple[float, float, float] = _NO_FACTORS,
) -> Any:
    weights = [
        as_parameter(name, value, layout.parameter_shape, layout.parameter_meaning, x)
        for name, value in ((norm.names.gamma, gamma), ("beta", beta))
    ]
    if norm.parameters == 2 and (weights[0] is None) != (weights[1] is None):
        given = next(a for a in weights if a is not None)
        weights = [
            a if a is not None else fill(given) for a, fill in zip(weights, _FILLS, strict=True)
        ]
    static = RowNorm(
        norm, scaling, detached, layout.segment, layout.channels, layout.shared, factors
    )
    return _normalized(static, layout, x, *weights)


def layer_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    axis: Axis = -1,
    eps: float = 1e-5,
    detach: Detach | None = None,
) -> jax.Array:
    """Normalize to mean 0 and variance 1 over the given axes, then scale and shift.

    Parameters
    ----------
    x : array_like
        Any shape; float16, bfloat16, float32 or float64. Integers and bool become JAX's default
        float.
    gamma, beta : array_like, optional
        Gain and bias, of the shape of the normalized axes of x. Default: 1 and 0.
    axis, eps
        As for `numnorm.layer_norm`.
    detach : {None, "mean", "scale", "both"}
        The statistics that are constants for the gradient, as for `numnorm.layer_norm_backward`.

    Returns
    -------
    jax.Array
        Of the shape and dtype of x.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value; already when
        the caller is traced.

    Examples
    --------
    >>> import jax
    >>> import numnorm.jax
    >>> numnorm.jax.layer_norm(jax.numpy.array([[1.0, 3.0], [10.0, 30.0]]), eps=0.0)
    Array([[-1.,  1.],
           [-1.,  1.]], dtype=float32)
    """
    x = as_float_array("x", x)
    layout, scaling = row_layout(x.shape, axis), scaling_by(check_eps(eps))
    return _norm(LAYER, x, gamma, beta, layout, scaling, detached_by(detach))


def rms_norm(x: Any, gamma: Any = None, *, axis: Axis = -1, eps: float = 1e-5) -> jax.Array:
    """Divide by the root mean square over the given axes, then scale.

    Parameters
    ----------
    x : array_like
        As for `layer_norm`.
    gamma : array_like, optional
        Gain, of the shape of the normalized axes of x. Default: 1.
    axis, eps
        As for `numnorm.rms_norm`.

    Returns
    -------
    jax.Array
        Of the shape and dtype of x.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm` does.

    Examples
    --------
    >>> import jax
    >>> import numnorm.jax
    >>> numnorm.jax.rms_norm(jax.numpy.array([[2.0, -2.0]]), eps=0.0)
    Array([[ 1., -1.]], dtype=float32)
    """
    x = as_float_array("x", x)
    layout, scaling = row_layout(x.shape, axis), scaling_by(check_eps(eps))
    return _norm(RMS, x, gamma, None, layout, scaling)


def ada_norm(
    x: Any,
    *,
    axis: Axis = -1,
    scale: float = 1.0,
    k: float = 0.1,
    eps: float = 1e-5,
    eps_in: EpsIn = "variance",
    ddof: int = 0,
    detach_factor: bool = True,
) -> jax.Array:
    """Normalize over the given axes, then scale each value by a factor that depends on it.

    Parameters
    ----------
    x : array_like
        As for `layer_norm`.
    axis, scale, k, eps, eps_in, ddof
        As for `numnorm.ada_norm`.
    detach_factor : bool, default True
        Whether the factor is a constant for the gradient, as the authors define it.

    Returns
    -------
    jax.Array
        Of the shape and dtype of x.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm` does.

    Examples
    --------
    >>> import jax
    >>> import numnorm.jax
    >>> numnorm.jax.ada_norm(jax.numpy.array([[1.0, 3.0]]), eps=0.0)
    Array([[-1.1,  0.9]], dtype=float32)
    """
    x = as_float_array("x", x)
    layout = row_layout(x.shape, axis)
    scaling, k = ada.scaling_of(eps, eps_in, ddof, layout), check_number("k", k)
    backward_k = k if check_flag("detach_factor", detach_factor) else 2.0 * k
    factors = ada.check_scale(scale), k, backward_k
    return _norm(ada.ADA, x, None, None, layout, scaling, factors=factors)


def standard_normal_variate(x: Any, *, axis: Axis = -1, ddof: int = 0) -> jax.Array:
    """Normalize to mean 0 and standard deviation 1, however small the deviation is.

    Parameters
    ----------
    x : array_like
        As for `layer_norm`.
    axis, ddof
        As for `numnorm.standard_normal_variate`.

    Returns
    -------
    jax.Array
        Of the shape and dtype of x.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm` does.

    Examples
    --------
    >>> import jax
    >>> import numnorm.jax
    >>> numnorm.jax.standard_normal_variate(jax.numpy.array([[1.0, 2.0, 3.0]]), ddof=1)
    Array([[-1.,  0.,  1.]], dtype=float32)
    """
    x = as_float_array("x", x)
    layout = row_layout(x.shape, axis)
    scaling = scaling_by(0.0, 0.0, standard.check_ddof(ddof, layout))
    return _norm(LAYER, x, None, None, layout, scaling)


def group_norm(
    x: Any,
    gamma: Any = None,
    beta: Any = None,
    *,
    groups: int,
    channel_axis: int = 1,
    eps: float = 1e-5,
) -> jax.Array:
    """Normalize each sample over groups of channels, then scale and shift each channel.

    Parameters
    ----------
    x : array_like
        ``(N, ...)`` with a channel axis; a dtype as for `layer_norm`.
    gamma, beta : array_like, optional
        Gain and bias of each channel, of shape ``(C,)``. Default: 1 and 0.
    groups, channel_axis, eps
        As for `numnorm.group_norm`.

    Returns
    -------
    jax.Array
        Of the shape and dtype of x.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm` does.

    Examples
    --------
    >>> import jax
    >>> import numnorm.jax
    >>> numnorm.jax.group_norm(jax.numpy.array([[1.0, 3.0, 10.0, 30.0]]), groups=2, eps=0.0)
    Array([[-1.,  1., -1.,  1.]], dtype=float32)
    """
    x = as_float_array("x", x)
    layout, scaling = group_layout(x.shape, channel_axis, groups), scaling_by(check_eps(eps))
    return _norm(GROUP, x, gamma, beta, layout, scaling)


def instance_norm(
    x: Any, gamma: Any = None, beta: Any = None, *, channel_axis: int = 1, eps: float = 1e-5
) -> jax.Array:
    """Normalize each channel of each sample over space, then scale and shift it.

    Parameters
    ----------
    x : array_like
        ``(N, ...)`` with a channel axis; a dtype as for `layer_norm`.
    gamma, beta : array_like, optional
        Gain and bias of each channel, of shape ``(C,)``. Default: 1 and 0.
    channel_axis, eps
        As for `numnorm.instance_norm`.

    Returns
    -------
    jax.Array
        Of the shape and dtype of x.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm` does.

    Examples
    --------
    >>> import jax
    >>> import numnorm.jax
    >>> numnorm.jax.instance_norm(jax.numpy.array([[[1.0, 3.0], [10.0, 30.0]]]), eps=0.0)
    Array([[[-1.,  1.],
            [-1.,  1.]]], dtype=float32)
    """
    x = as_float_array("x", x)
    layout, scaling = instance_layout(x.shape, channel_axis), scaling_by(check_eps(eps))
    return _norm(GROUP, x, gamma, beta, layout, scaling)


def weight_norm(v: Any, g: Any = None, *, axis: Axis = -1) -> jax.Array:
    """Scale each vector to a given length.

    Parameters
    ----------
    v : array_like
        As x for `layer_norm`.
    g : array_like, optional
        The lengths, of the shape of v without the normalized axes. Default: 1.
    axis
        As for `numnorm.weight_norm`.

    Returns
    -------
    jax.Array
        Of the shape and dtype of v. A vector of zeros stays 0, and gets gradients of 0.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm` does.

    Examples
    --------
    >>> import jax
    >>> import numnorm.jax
    >>> numnorm.jax.weight_norm(jax.numpy.array([[3.0, 4.0]]), jax.numpy.array([10.0]))
    Array([[6., 8.]], dtype=float32)
    """
    v = as_float_array("v", v)
    layout = vector_layout(v.shape, axis)
    return _norm(weight.WEIGHT, v, g, None, layout, weight.scaling_of(layout))
