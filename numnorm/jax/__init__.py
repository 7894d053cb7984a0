"""The norms and recurrent cells for arrays of JAX on the CPU, with their gradients."""

try:
    import jax.ffi as _ffi  # noqa: F401
except ImportError as error:
    raise ImportError('numnorm.jax needs JAX 0.5 or newer: pip install "numnorm[jax]"') from error

from numnorm.jax.batch import BatchNormalized, batch_norm
from numnorm.jax.denormalize import denormalize
from numnorm.jax.norms import for_jax
from numnorm.jax.recurrent import gru, lstm
from numnorm.norms.declared import SPECS

__all__ = ["BatchNormalized", "batch_norm", "denormalize", "gru", "lstm"]
__all__ += [spec.name for spec in SPECS if spec.name not in __all__]
__all__.sort()

globals().update(
    {spec.name: for_jax(spec, __name__) for spec in SPECS if spec.name not in globals()}
)
