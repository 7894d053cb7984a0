"""Kernels in Triton: a program loads a row into registers, and reads and writes it once."""

import torch
import triton
import triton.language as tl

from ...arrays import Arrays
from ...cases import Case
from .. import Call

# Elements of a thread: enough loads in flight with few enough registers.
_EACH, _MOST_WARPS = 16, 32


@triton.jit
def _layer_norm(x, gamma, beta, y, width, eps, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    active = column < width
    row = tl.load(x + first + column, mask=active, other=0.0).to(tl.float32)
    mean = tl.sum(row, axis=0) / width
    centred = tl.where(active, row - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, axis=0) / width + eps)
    weight = tl.load(gamma + column, mask=active, other=0.0).to(tl.float32)
    bias = tl.load(beta + column, mask=active, other=0.0).to(tl.float32)
    tl.store(y + first + column, centred * rstd * weight + bias, mask=active)


@triton.jit
def _rms_norm(x, gamma, y, width, eps, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * width
    column = tl.arange(0, BLOCK)
    active = column < width
    row = tl.load(x + first + column, mask=active, other=0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(row * row, axis=0) / width + eps)
    weight = tl.load(gamma + column, mask=active, other=0.0).to(tl.float32)
    tl.store(y + first + column, row * rstd * weight, mask=active)


def call_of(case: Case, arrays: Arrays) -> Call | None:
    """Return a forward pass that is computed in float32."""
    if case.direction != "forward" or case.dtype == "float64":
        return None
    kernels = {
        "layer_norm": (_layer_norm, (arrays.gamma, arrays.beta)),
        "rms_norm": (_rms_norm, (arrays.gamma,)),
    }
    if case.norm not in kernels:
        return None
    kernel, weights = kernels[case.norm]
    block = triton.next_power_of_2(case.width)
    warps = min(max(1, block // (32 * _EACH)), _MOST_WARPS)

    def run():
        y = torch.empty_like(arrays.x)
        kernel[(case.rows,)](arrays.x, *weights, y, case.width, 1e-5, BLOCK=block, num_warps=warps)
        return y

    return Call(run)
