"""The norms and recurrent cells as functions that autograd (HIPS) differentiates.

The functions of `numnorm` with the same names compute the results and the gradients. They have
first derivatives in reverse mode: a second derivative and forward mode raise a NotImplementedError.
"""

try:
    import autograd as _  # noqa: F401
except ImportError as error:
    raise ImportError('numnorm.autograd needs autograd: pip install "numnorm[autograd]"') from error

from numnorm.autograd.cells import gru, lstm, rnn
from numnorm.autograd.channels import batch_norm, group_norm, instance_norm
from numnorm.autograd.moving import exponential_norm, moving_norm
from numnorm.autograd.rows import (
    ada_norm,
    layer_norm,
    rms_norm,
    standard_normal_variate,
    weight_norm,
)
from numnorm.keywords import hide_others

__all__ = [
    "ada_norm",
    "batch_norm",
    "exponential_norm",
    "group_norm",
    "gru",
    "instance_norm",
    "layer_norm",
    "lstm",
    "moving_norm",
    "rms_norm",
    "rnn",
    "standard_normal_variate",
    "weight_norm",
]

hide_others(globals()[name] for name in __all__)
