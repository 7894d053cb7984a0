"""The norms for arrays of xarray: dimensions by name, coordinates and attributes kept.

The functions of `numnorm` with the same names compute the results. A Dataset is normalized variable
by variable: those without the named dimensions stay as they are. An array of Dask stays lazy, and
each chunk is normalized for itself; so a chunk must hold all elements that share statistics, but
for moving norms.
"""

try:
    import xarray as _  # noqa: F401
except ImportError as error:
    raise ImportError('numnorm.xarray needs xarray: pip install "numnorm[xarray]"') from error

from numnorm.xarray.channels import batch_norm, group_norm, instance_norm
from numnorm.xarray.moments import batch_moments
from numnorm.xarray.moving import exponential_norm, moving_norm
from numnorm.xarray.rows import (
    ada_norm,
    layer_norm,
    rms_norm,
    standard_normal_variate,
    weight_norm,
)

__all__ = [
    "ada_norm",
    "batch_moments",
    "batch_norm",
    "exponential_norm",
    "group_norm",
    "instance_norm",
    "layer_norm",
    "moving_norm",
    "rms_norm",
    "standard_normal_variate",
    "weight_norm",
]
