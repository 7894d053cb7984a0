"""Liger Kernel: Triton kernels for training, a program a row."""

from __future__ import annotations

from liger_kernel.transformers.functional import liger_layer_norm, liger_rms_norm

from ...arrays import Arrays
from ...cases import Case
from .. import Call
from .torch import gradient_call


def call_of(case: Case, arrays: Arrays) -> Call | None:
    """Return its layer norm or RMS norm, which it computes in float32."""
    norms = {
        "layer_norm": lambda x, gamma, beta: liger_layer_norm(x, gamma, beta, 1e-5),
        # In place, it would overwrite dy with dx.
        "rms_norm": lambda x, gamma, beta: liger_rms_norm(x, gamma, 1e-5, in_place=False),
    }
    function = norms.get(case.norm)
    if function is None or case.dtype == "float64":
        return None
    if case.direction == "forward":
        return Call(lambda: function(arrays.x, arrays.gamma, arrays.beta))
    return gradient_call(function, case, arrays)
