"""The norms of rows as differentiable functions of arrays ``(1, rows, width)``."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from numnorm.backends.contract.norms import Detached, Norm, Scaling
from numnorm.backends.cpu.xla.row_calls import backward_call, forward_call
from numnorm.jax.targets import call, target_of, varying_like
from numnorm.layouts import RowLayout


class RowNorm(NamedTuple):
    """A norm of rows, as the static argument of the functions below.

    Attributes
    ----------
    norm, scaling, detached
        As in `numnorm.backends`.
    segment, channels : int
        How the parameters repeat along the rows.
    shared : bool
        Whether a segment shares one parameter.
    factors : tuple of float
        The fixed parameters of a norm that has no others, in both passes.
    """

    norm: Norm
    scaling: Scaling
    detached: Detached
    segment: int
    channels: int
    shared: bool
    factors: tuple[float, float, float]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def normalize(static: RowNorm, x: Any, gamma: Any, beta: Any) -> Any:
    """Return the normalized rows of ``x (1, rows, width)``.

    Gamma and beta are None or ``(1, size)``, in the compute dtype.
    """
    return _forward(static, False, x, gamma, beta)[0]


def _normalize_forward(static: RowNorm, x: Any, gamma: Any, beta: Any) -> Any:
    y, mean, rstd = _forward(static, True, x, gamma, beta)
    return y, (x, mean, rstd, gamma, beta)


def _normalize_backward(static: RowNorm, saved: Any, dy: Any) -> Any:
    x, mean, rstd, gamma, beta = saved
    weights = () if gamma is None else (gamma,)
    dx, *gradients = once(_backward_of(static, len(weights)))(dy, x, mean, rstd, *weights)
    given = [
        None if parameter is None else gradient
        for parameter, gradient in zip((gamma, beta), [*gradients, None, None], strict=False)
    ]
    return dx, *given


normalize.defvjp(_normalize_forward, _normalize_backward)


def once(function: Any) -> Any:
    """Return the function, which raises an error where a gradient flows back through it."""
    differentiated = jax.custom_vjp(function)

    def forward(*arrays: Any) -> Any:
        return function(*arrays), None

    def backward(saved: Any, gradients: Any) -> Any:
        raise NotImplementedError("numnorm.jax has no second derivatives")

    differentiated.defvjp(forward, backward)
    return differentiated


def _forward(static: RowNorm, save: bool, x: Any, gamma: Any, beta: Any) -> Any:
    weights = tuple(a for a in (gamma, beta) if a is not None)
    function = _forward_of(static, save, len(weights))
    return (once(function) if save else function)(x, *weights)


@functools.lru_cache(maxsize=1024)
def _forward_of(static: RowNorm, save: bool, parameters: int) -> Any:
    """Return the function of ``x (groups, rows, width)`` and parameters (groups or 1, size)."""

    @custom_vmap
    def forward(x: Any, *weights: Any) -> Any:
        shape, groups = x.shape, len(weights[0]) if weights else 1
        if groups == 1:  # all rows share the parameters
            x = _as_one_group(x)
        described = forward_call(
            static.norm, np.dtype(x.dtype), _layout(static, *x.shape[1:]), static.scaling,
            (len(x), groups), static.factors[:2], parameters, save,
        )  # fmt: skip
        results = [jax.ShapeDtypeStruct(x.shape, x.dtype)]
        results += [_statistics(x)] * (2 if save else 0)
        y, *saved = _call(described, results, x, *weights)
        return y.reshape(shape), *(a.reshape(*shape[:2], 2) for a in saved)

    return mapped(forward, 1)


@functools.lru_cache(maxsize=1024)
def _backward_of(static: RowNorm, parameters: int) -> Any:
    """Return the function of dy, x, mean, rstd and gamma; dgamma and dbeta are (groups, size)."""

    @custom_vmap
    def backward(dy: Any, x: Any, mean: Any, rstd: Any, *weights: Any) -> Any:
        shape, groups = x.shape, len(weights[0]) if weights else 1
        if not static.norm.parameters:
            dy, x = _as_one_group(dy), _as_one_group(x)
        scale, _, k = static.factors
        described = backward_call(
            static.norm, np.dtype(x.dtype), _layout(static, *x.shape[1:]), static.scaling,
            static.detached, (len(x), groups), (scale, k), parameters,
        )  # fmt: skip
        size = static.channels * (1 if static.shared else static.segment)
        gradient = jax.ShapeDtypeStruct((len(x), size), compute_dtype(x.dtype))
        results = [jax.ShapeDtypeStruct(x.shape, x.dtype), *[gradient] * static.norm.parameters]
        dx, *gradients = _call(described, results, dy, x, mean, rstd, *weights)
        return dx.reshape(shape), *gradients

    return mapped(backward, 4)


def mapped(function: Any, arrays: int) -> Any:
    """Give a function of groups its rule for `jax.vmap`: the mapped axis becomes groups.

    The first `arrays` arguments have one entry for each group. The others may have one for all.
    """

    @function.def_vmap
    def rule(size: int, is_mapped: Any, *given: Any) -> Any:
        def merged(array: Any, mapped: bool, always: bool) -> Any:
            if not mapped and not always and len(array) == 1:
                return array
            if not mapped:
                array = jnp.broadcast_to(array, (size, *array.shape))
            return array.reshape(len(array) * array.shape[1], *array.shape[2:])

        groups = len(given[0]) if not is_mapped[0] else given[0].shape[1]
        taken = []
        for k, (array, mapped) in enumerate(zip(given, is_mapped, strict=True)):
            if mapped and k >= arrays and array.shape[1] != groups:
                array = jnp.broadcast_to(array, (size, groups, *array.shape[2:]))
            taken.append(merged(array, mapped, k < arrays))
        # A parameter that is one for all groups stays so only if all parameters are.
        rows = next((len(a) for a in taken[arrays:] if len(a) != 1), 1)
        taken[arrays:] = [jnp.broadcast_to(a, (rows, *a.shape[1:])) for a in taken[arrays:]]
        results = function(*taken)
        unmerged = tuple(a.reshape(size, groups, *a.shape[1:]) for a in results)
        return unmerged, (True,) * len(unmerged)

    return function


def compute_dtype(dtype: Any) -> Any:
    """Return the dtype of parameters and their gradients in the kernels."""
    return jnp.float64 if dtype == jnp.float64 else jnp.float32


def _as_one_group(rows: Any) -> Any:
    groups, count, width = rows.shape
    return rows.reshape(1, groups * count, width)


def _layout(static: RowNorm, rows: int, width: int) -> RowLayout:
    return RowLayout(
        order=None, rows=rows, width=width, segment=static.segment, channels=static.channels,
        shared=static.shared, statistic_shape=(rows,), parameter_shape=(),
        parameter_meaning="",
    )  # fmt: skip


def _statistics(x: Any) -> jax.ShapeDtypeStruct:
    """Return float64 numbers of the rows of x as pairs of words: JAX may have no float64."""
    return jax.ShapeDtypeStruct((*x.shape[:2], 2), jnp.uint32)


def _call(described: Any, results: Any, *arrays: Any) -> Any:
    if not arrays[0].size:
        return varying_like([jnp.zeros(r.shape, r.dtype) for r in results], arrays)
    target = target_of(described.name, described.handler)
    return call(target, results, *arrays, numbers=np.array(described.numbers))
