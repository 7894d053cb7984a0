"""The norms for arrays of Dask: lazy, for any chunks.

The functions of `numnorm` with the same names call these ones when one of their arrays is lazy.
"""

from numnorm.dask.rows import layer_norm, layer_norm_backward, layer_norm_forward

__all__ = ["layer_norm", "layer_norm_backward", "layer_norm_forward"]
