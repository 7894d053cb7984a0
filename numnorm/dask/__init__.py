"""The norms for arrays of Dask: lazy, for any chunks.

The functions of `numnorm` with the same names call these ones when one of their arrays is lazy.
"""

from numnorm.dask.batch import batch_norm_forward
from numnorm.dask.batch_gradients import batch_norm_backward
from numnorm.dask.channels import (
    group_norm,
    group_norm_backward,
    group_norm_forward,
    instance_norm_backward,
    instance_norm_forward,
)
from numnorm.dask.moments import batch_moments, merge, of_divisor
from numnorm.dask.moving import (
    exponential_norm,
    exponential_norm_backward,
    exponential_norm_forward,
    moving_norm,
    moving_norm_backward,
    moving_norm_forward,
)
from numnorm.dask.rows import (
    ada_norm,
    ada_norm_backward,
    ada_norm_forward,
    layer_norm,
    layer_norm_backward,
    layer_norm_forward,
    rms_norm,
    rms_norm_backward,
    rms_norm_forward,
    standard_normal_variate,
    weight_norm,
    weight_norm_backward,
    weight_norm_forward,
)
from numnorm.dask.weights import with_weights

__all__ = [
    "ada_norm",
    "ada_norm_backward",
    "ada_norm_forward",
    "batch_moments",
    "batch_norm_backward",
    "batch_norm_forward",
    "exponential_norm",
    "exponential_norm_backward",
    "exponential_norm_forward",
    "group_norm",
    "group_norm_backward",
    "group_norm_forward",
    "instance_norm_backward",
    "instance_norm_forward",
    "layer_norm",
    "layer_norm_backward",
    "layer_norm_forward",
    "merge",
    "moving_norm",
    "moving_norm_backward",
    "moving_norm_forward",
    "of_divisor",
    "rms_norm",
    "rms_norm_backward",
    "rms_norm_forward",
    "standard_normal_variate",
    "weight_norm",
    "weight_norm_backward",
    "weight_norm_forward",
    "with_weights",
]
