"""The time of the host for calls on a device: ``python -m gpu.host``, which needs no device.

Tensors of a made-up PyTorch stand for arrays, and a made-up driver counts launches. So the time is
that of numnorm's own Python; a real library's tensors and a real driver take longer. numba-cuda is
needed, as for kernels.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import timeit
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

from peers.report import as_markdown

import numnorm

ROWS, WIDTH = 4096, 1024
LAUNCHES: list[Any] = []


def made_up_torch() -> ModuleType:
    """Return a module with what numnorm uses of PyTorch; its tensors have addresses, no memory."""
    module: Any = ModuleType("torch")
    module.strided, free = object(), [1 << 40]

    class DType:
        def __init__(self, name: str) -> None:
            self.name = name

        def __str__(self) -> str:
            return f"torch.{self.name}"

    for name in ("float16", "bfloat16", "float32", "float64"):
        setattr(module, name, DType(name))

    class Tensor:
        layout, requires_grad, is_cuda, device = module.strided, False, True, "cuda:0"

        def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
            self.shape, self.dtype, self._address = shape, dtype, free[0]
            free[0] += 16 * -(-math.prod(shape) // 2)

        def data_ptr(self) -> int:
            return self._address

        def get_device(self) -> int:
            return 0

        def is_contiguous(self) -> bool:
            return True

        def contiguous(self) -> Any:
            return self

        def is_neg(self) -> bool:
            return False

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

    stream = SimpleNamespace(cuda_stream=7)
    module.Tensor, module.is_grad_enabled = Tensor, lambda: True
    module.empty = lambda shape, *, dtype, device: Tensor(shape, dtype)
    module.cuda = SimpleNamespace(current_stream=lambda device: stream)
    return module


def without_a_device() -> None:
    """Let numnorm launch kernels that only count."""
    from numnorm.backends.cuda.compiler import launches, target

    target.check_available = lambda: None  # type: ignore[assignment]
    launches._device_count = lambda: 1  # type: ignore[assignment]
    target.Kernel._on = lambda kernel, device: kernel  # type: ignore[method-assign]
    target.Kernel._configure = lambda *given, **options: None  # type: ignore[method-assign]
    launches._stream = lambda handle: handle  # type: ignore[assignment]
    launches._thread.has_device = True
    launches.launch = lambda *given: LAUNCHES.append(None)


def calls(torch: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the calls that are timed."""
    x, dy, out = (torch.Tensor((ROWS, WIDTH), torch.float32) for _ in range(3))
    gamma, beta = (torch.Tensor((WIDTH,), torch.float32) for _ in range(2))
    mean, rstd = (torch.Tensor((ROWS,), torch.float64) for _ in range(2))
    saved = mean, rstd
    yield "layer_norm", lambda: numnorm.layer_norm(x, gamma, beta, out=out)
    yield "layer_norm, new result", lambda: numnorm.layer_norm(x, gamma, beta)
    yield "rms_norm", lambda: numnorm.rms_norm(x, gamma, out=out)
    yield "layer_norm_backward", lambda: numnorm.layer_norm_backward(dy, x, *saved, gamma, out=out)
    yield "batch_norm", lambda: numnorm.batch_norm(x, gamma, beta, out=out)


def main() -> None:
    """Print the median time of each call, and its launches."""
    parser = argparse.ArgumentParser(prog="python -m gpu.host", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000, help="calls of each function (10000)")
    count = parser.parse_args().calls
    torch = made_up_torch()
    sys.modules["torch"] = torch
    without_a_device()
    rows = []
    for name, call in calls(torch):
        call()
        LAUNCHES.clear()
        call()
        launches = len(LAUNCHES)
        times = timeit.repeat(call, number=10, repeat=max(1, count // 10))
        rows.append([name, f"{statistics.median(times) * 1e5:.1f}", str(launches)])
    print(as_markdown(["call", "host, µs", "launches"], rows))


if __name__ == "__main__":
    main()
