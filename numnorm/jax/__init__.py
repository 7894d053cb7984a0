"""The norms and recurrent cells for arrays of JAX on the CPU, with their gradients."""

try:
    import jax.ffi as _jax_ffi  # noqa: F401
except ImportError as error:
    raise ImportError('numnorm.jax needs JAX 0.5 or newer: pip install "numnorm[jax]"') from error

from numnorm.jax.norms import (
    ada_norm,
    group_norm,
    instance_norm,
    layer_norm,
    rms_norm,
    standard_normal_variate,
    weight_norm,
)

__all__ = [
    "ada_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "rms_norm",
    "standard_normal_variate",
    "weight_norm",
]
