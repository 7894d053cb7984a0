"""QuACK: kernels in the CuTe DSL, for devices from Hopper on."""

from __future__ import annotations

from quack.rmsnorm import layernorm_fwd, rmsnorm

from ...arrays import Arrays
from ...cases import Case
from .. import Call
from .torch import gradient_call


def call_of(case: Case, arrays: Arrays) -> Call | None:
    """Return its RMS norm, or its forward layer norm, whose parameters are float32."""
    if case.dtype == "float64":
        return None
    x, gamma, beta = arrays.x, arrays.gamma, arrays.beta
    if case.norm == "rms_norm" and case.direction == "forward":
        return Call(lambda: rmsnorm(x, gamma, eps=1e-5))
    if case.norm == "rms_norm":
        return gradient_call(lambda x, gamma, beta: rmsnorm(x, gamma, eps=1e-5), case, arrays)
    if case.norm == "layer_norm" and case.direction == "forward":
        weight, bias = gamma.float(), beta.float()
        return Call(lambda: layernorm_fwd(x, weight, bias, eps=1e-5))
    return None
