"""The norms and recurrent cells for arrays of JAX on the CPU, with their gradients."""

try:
    import jax.ffi as _ffi  # noqa: F401
except ImportError as error:
    raise ImportError('numnorm.jax needs JAX 0.5 or newer: pip install "numnorm[jax]"') from error

from numnorm.jax.batch import BatchNormalized, batch_norm
from numnorm.jax.norms import (
    ada_norm,
    group_norm,
    instance_norm,
    layer_norm,
    rms_norm,
    standard_normal_variate,
    weight_norm,
)
from numnorm.jax.recurrent import gru, lstm

__all__ = [
    "BatchNormalized",
    "ada_norm",
    "batch_norm",
    "group_norm",
    "gru",
    "instance_norm",
    "layer_norm",
    "lstm",
    "rms_norm",
    "standard_normal_variate",
    "weight_norm",
]
