"""The libraries: each makes of a case a function of no arguments that does all of the work.

None stands for a library that does not have the norm. Arrays are tensors of PyTorch, in the
device's memory; other libraries take the same memory as theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .cases import Case

Call = Callable[[], Any]
Maker = Callable[[Case, "Arrays"], Call | None]


class Arrays:
    """The inputs of a case, made by a device: x, dy, gamma, beta, and a place for the result."""

    def __init__(self, device: Any, case: Case) -> None:
        shape = (case.rows, case.width)
        self.x, self.dy = device.normal(shape, case.dtype), device.normal(shape, case.dtype)
        self.gamma, self.beta = (device.normal((case.width,), case.dtype) for _ in range(2))
        self.out = device.normal(shape, case.dtype)


def numnorm(case: Case, arrays: Arrays) -> Call | None:
    """The library at hand, with an output that is there already."""
    import numnorm

    x, dy, gamma, beta, out = arrays.x, arrays.dy, arrays.gamma, arrays.beta, arrays.out
    weights = {"rms_norm": (gamma,), "ada_norm": ()}.get(case.norm, (gamma, beta))
    if case.direction == "forward":
        forward = getattr(numnorm, case.norm)
        return lambda: forward(x, *weights, out=out)
    saved = getattr(numnorm, f"{case.norm}_forward")(x, *weights)[1:]
    backward = getattr(numnorm, f"{case.norm}_backward")
    return lambda: backward(dy, x, *saved, *weights[:1], out=out)


def torch(case: Case, arrays: Arrays) -> Call | None:
    """PyTorch's own kernels."""
    import torch
    from torch.nn import functional

    shape, x, gamma, beta = (case.width,), arrays.x, arrays.gamma, arrays.beta
    if case.norm == "layer_norm" and case.direction == "forward":
        return lambda: functional.layer_norm(x, shape, gamma, beta)
    if case.norm == "layer_norm":
        _, mean, rstd = torch.native_layer_norm(x, shape, gamma, beta, 1e-5)
        backward = torch.ops.aten.native_layer_norm_backward
        wanted = [True, True, True]
        return lambda: backward(arrays.dy, x, shape, mean, rstd, gamma, beta, wanted)
    if case.norm == "rms_norm" and case.direction == "forward":
        return lambda: functional.rms_norm(x, shape, gamma)
    if case.norm == "batch_norm" and case.direction == "forward":
        return lambda: functional.batch_norm(x, None, None, gamma, beta, training=True)
    return None


def torch_compile(case: Case, arrays: Arrays) -> Call | None:
    """PyTorch's compiler on its own functions, forward."""
    import torch

    eager = torch_functions(case, arrays)
    if eager is None or case.direction != "forward":
        return None
    compiled = torch.compile(eager)
    return lambda: compiled(arrays.x, arrays.gamma, arrays.beta)


def torch_functions(case: Case, arrays: Arrays) -> Callable[..., Any] | None:
    """Return the norm as a function of tensors."""
    from torch.nn import functional

    shape = (case.width,)
    return {
        "layer_norm": lambda x, gamma, beta: functional.layer_norm(x, shape, gamma, beta),
        "rms_norm": lambda x, gamma, beta: functional.rms_norm(x, shape, gamma),
    }.get(case.norm)


def copy(case: Case, arrays: Arrays) -> Call | None:
    """A copy of x in the device's memory: as many bytes as a forward pass has to move."""
    return lambda: arrays.out.copy_(arrays.x)


CONTESTANTS: dict[str, Maker] = {
    "numnorm": numnorm,
    "copy": copy,
    "torch": torch,
    "torch.compile": torch_compile,
}
