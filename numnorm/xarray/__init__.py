"""The norms for arrays of xarray: dimensions by name, coordinates and attributes kept.

The functions of `numnorm` with the same names compute the results. A Dataset is normalized variable
by variable: those without the named dimensions stay as they are. An array of Dask, in any chunks,
stays lazy.
"""

try:
    import xarray as _  # noqa: F401
except ImportError as error:
    raise ImportError('numnorm.xarray needs xarray: pip install "numnorm[xarray]"') from error

from numnorm.norms.declared import SPECS
from numnorm.xarray.denormalize import denormalize
from numnorm.xarray.moments import batch_moments
from numnorm.xarray.norms import by_names
from numnorm.xarray.statistics import GroupMoments, Moments

__all__ = ["GroupMoments", "Moments", "batch_moments", "denormalize"]
__all__ += [spec.name for spec in SPECS]
__all__.sort()

globals().update({spec.name: by_names(spec, __name__) for spec in SPECS})
