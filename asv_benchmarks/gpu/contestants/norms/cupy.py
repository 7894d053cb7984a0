"""CuPy: means and variances, and an elementwise kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cupy

from ...arrays import Arrays
from ...cases import Case
from .. import Call

_layer_norm = cupy.ElementwiseKernel(
    "T x, S mean, S variance, T gamma, T beta, S eps",
    "T y",
    "y = T((S(x) - mean) * rsqrt(variance + eps) * S(gamma) + S(beta))",
    "layer_norm",
)
_rms_norm = cupy.ElementwiseKernel(
    "T x, S squares, T gamma, S inv_count, S eps",
    "T y",
    "y = T(S(x) * rsqrt(squares * inv_count + eps) * S(gamma))",
    "rms_norm",
)
# By the compute dtype.
_squares = {
    name: cupy.ReductionKernel(
        "T x", f"{name} y", f"{kind}(x) * {kind}(x)", "a + b", "y = a", "0", f"squares_{name}"
    )
    for name, kind in (("float32", "float"), ("float64", "double"))
}


def call_of(case: Case, arrays: Arrays) -> Call | None:
    """Return a forward pass; CuPy does not support bfloat16."""
    if case.direction != "forward" or case.dtype == "bfloat16":
        return None
    x, gamma, beta = (cupy.from_dlpack(t) for t in (arrays.x, arrays.gamma, arrays.beta))
    wide = "float64" if case.dtype == "float64" else "float32"
    inv_count, eps = (cupy.dtype(wide).type(number) for number in (1 / case.width, 1e-5))
    norms: dict[str, Callable[[], Any]] = {
        "layer_norm": lambda: _centred(x, gamma, beta, 1, wide, eps),
        "rms_norm": lambda: _rms_norm(
            x, _squares[wide](x, axis=1, keepdims=True), gamma, inv_count, eps
        ),
        "batch_norm": lambda: _centred(x, gamma, beta, 0, wide, eps),
    }
    return Call(norms[case.norm]) if case.norm in norms else None


def _centred(x: Any, gamma: Any, beta: Any, axis: int, wide: str, eps: Any) -> Any:
    mean = x.mean(axis=axis, keepdims=True, dtype=wide)
    variance = x.var(axis=axis, keepdims=True, dtype=wide)
    return _layer_norm(x, mean, variance, gamma, beta, eps)
