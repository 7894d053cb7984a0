"""The norms and recurrent cells as functions that autograd (HIPS) differentiates.

The functions of `numnorm` with the same names compute the results and the gradients. They have
first derivatives in reverse mode: a second derivative and forward mode raise a NotImplementedError.
"""

try:
    import autograd as _  # noqa: F401
except ImportError as error:
    raise ImportError('numnorm.autograd needs autograd: pip install "numnorm[autograd]"') from error

from numnorm.autograd.cells import gru, lstm, rnn
from numnorm.autograd.denormalize import denormalize
from numnorm.autograd.norms import differentiable
from numnorm.norms.declared import SPECS

__all__ = ["denormalize", "gru", "lstm", "rnn", *(spec.name for spec in SPECS)]
__all__.sort()

globals().update({spec.name: differentiable(spec, __name__) for spec in SPECS})
