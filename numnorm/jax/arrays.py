"""Checks of JAX arrays, when a function is traced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from numnorm.arguments import Shape, check_shape, result_dtype
from numnorm.jax.rows import compute_dtype
from numnorm.norms.spec import NormSpec
from numnorm.norms.weighted import check_broadcasts


def as_float_array(name: str, value: Any) -> Any:
    """Return an array of JAX in a supported float dtype; integers and bool become floats."""
    check_on_cpu(name, value)
    try:
        if isinstance(value, str | bytes | None):
            raise TypeError
        array = jnp.asarray(value)
    except TypeError:
        raise TypeError(f"{name} must be an array, got {type(value).__name__}") from None
    if jnp.issubdtype(array.dtype, jnp.integer) or array.dtype == bool:
        return array.astype(jnp.result_type(float))
    result_dtype(name, np.dtype(array.dtype))
    return array


def check_on_cpu(name: str, value: Any) -> None:
    """Raise if an array with values lies on another device."""
    if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer):
        platforms = {device.platform for device in value.devices()} - {"cpu"}
        if platforms:
            raise NotImplementedError(
                f"{name} must be on the CPU for numnorm.jax, got an array on {min(platforms)}"
            )


def as_parameter(name: str, value: Any, shape: Shape, meaning: str, x: Any) -> Any:
    """Return a parameter as ``(1, size)`` in the compute dtype of x; None for None."""
    if value is None:
        return None
    array = as_float_array(name, value)
    check_shape(name, array.shape, shape, meaning)
    return array.astype(compute_dtype(x.dtype)).reshape(1, -1)


def counting_arrays(spec: NormSpec, x: Any, axis: Any, counting: dict[str, Any]) -> dict[str, Any]:
    """Take the arrays that say which elements count out of keywords; return them by name."""
    arrays: dict[str, Any] = {}
    for name in ("where", "weights"):
        if name in counting:
            arrays[name] = jnp.asarray(counting.pop(name))
            own = spec.counts(axis, x.ndim).own if name == "weights" else None
            if own is None or arrays[name].shape != tuple(x.shape[axis] for axis in own):
                check_broadcasts(name, arrays[name].shape, x.shape)
    return arrays
