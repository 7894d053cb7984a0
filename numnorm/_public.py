"""The public functions and the types of their results, which `numnorm` offers as its own."""

from numnorm.backends.contract.moving import ExponentialState, MovingState
from numnorm.keywords import hide_others
from numnorm.memory_pool import set_memory_pool
from numnorm.norms.ada import ada_norm, ada_norm_backward, ada_norm_forward
from numnorm.norms.batch import (
    batch_moments,
    batch_norm,
    batch_norm_backward,
    batch_norm_forward,
    chunk_multiple,
)
from numnorm.norms.denormalize import (
    DenormalizedGradients,
    denormalize,
    denormalize_backward,
)
from numnorm.norms.emsc import EMSCNormalized, emsc, emsc_backward, emsc_forward
from numnorm.norms.exponential import (
    exponential_norm,
    exponential_norm_backward,
    exponential_norm_forward,
    exponential_norm_step,
)
from numnorm.norms.group import group_norm, group_norm_backward, group_norm_forward
from numnorm.norms.instance import instance_norm, instance_norm_backward, instance_norm_forward
from numnorm.norms.layer import layer_norm, layer_norm_backward, layer_norm_forward
from numnorm.norms.moments import GroupMoments, Moments
from numnorm.norms.moving import (
    moving_norm,
    moving_norm_backward,
    moving_norm_forward,
    moving_norm_step,
)
from numnorm.norms.moving_robust import (
    MovingRobustNormalized,
    moving_robust_norm,
    moving_robust_norm_backward,
    moving_robust_norm_forward,
    moving_robust_norm_step,
)
from numnorm.norms.pcen import (
    PCENGradients,
    PCENNormalized,
    pcen,
    pcen_backward,
    pcen_forward,
    pcen_step,
)
from numnorm.norms.quantiles import Quantiles, quantiles
from numnorm.norms.residual import (
    Added,
    AddedNormalized,
    AddedRMSNormalized,
    add_layer_norm,
    add_layer_norm_backward,
    add_layer_norm_forward,
    add_rms_norm,
    add_rms_norm_backward,
    add_rms_norm_forward,
)
from numnorm.norms.results import (
    Gradients,
    Normalized,
    RMSGradients,
    RMSNormalized,
    WeightGradients,
    WeightNormalized,
)
from numnorm.norms.rms import rms_norm, rms_norm_backward, rms_norm_forward
from numnorm.norms.robust import (
    RobustNormalized,
    robust_norm,
    robust_norm_backward,
    robust_norm_forward,
)
from numnorm.norms.standard import (
    standard_normal_variate,
    standard_normal_variate_backward,
    standard_normal_variate_forward,
)
from numnorm.norms.weight import weight_norm, weight_norm_backward, weight_norm_forward
from numnorm.positions import positional_encoding
from numnorm.threads import num_threads

__all__ = [
    "Added",
    "AddedNormalized",
    "AddedRMSNormalized",
    "DenormalizedGradients",
    "EMSCNormalized",
    "ExponentialState",
    "Gradients",
    "GroupMoments",
    "Moments",
    "MovingRobustNormalized",
    "MovingState",
    "Normalized",
    "PCENGradients",
    "PCENNormalized",
    "Quantiles",
    "RMSGradients",
    "RMSNormalized",
    "RobustNormalized",
    "WeightGradients",
    "WeightNormalized",
    "ada_norm",
    "ada_norm_backward",
    "ada_norm_forward",
    "add_layer_norm",
    "add_layer_norm_backward",
    "add_layer_norm_forward",
    "add_rms_norm",
    "add_rms_norm_backward",
    "add_rms_norm_forward",
    "batch_moments",
    "batch_norm",
    "batch_norm_backward",
    "batch_norm_forward",
    "chunk_multiple",
    "denormalize",
    "denormalize_backward",
    "emsc",
    "emsc_backward",
    "emsc_forward",
    "exponential_norm",
    "exponential_norm_backward",
    "exponential_norm_forward",
    "exponential_norm_step",
    "group_norm",
    "group_norm_backward",
    "group_norm_forward",
    "instance_norm",
    "instance_norm_backward",
    "instance_norm_forward",
    "layer_norm",
    "layer_norm_backward",
    "layer_norm_forward",
    "moving_norm",
    "moving_norm_backward",
    "moving_norm_forward",
    "moving_norm_step",
    "moving_robust_norm",
    "moving_robust_norm_backward",
    "moving_robust_norm_forward",
    "moving_robust_norm_step",
    "num_threads",
    "pcen",
    "pcen_backward",
    "pcen_forward",
    "pcen_step",
    "positional_encoding",
    "quantiles",
    "rms_norm",
    "rms_norm_backward",
    "rms_norm_forward",
    "robust_norm",
    "robust_norm_backward",
    "robust_norm_forward",
    "set_memory_pool",
    "standard_normal_variate",
    "standard_normal_variate_backward",
    "standard_normal_variate_forward",
    "weight_norm",
    "weight_norm_backward",
    "weight_norm_forward",
]

hide_others(globals()[name] for name in __all__ if name.islower())
