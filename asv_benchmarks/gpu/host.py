"""The time of the host for calls on a device: ``python -m gpu.host``, which needs no device.

Tensors of a made-up PyTorch stand for arrays, and a made-up driver counts launches. So the time is
that of numnorm's own Python; a real library's tensors and a real driver take longer. One of both
compilers is needed, as for kernels.

The time of a cell's step is the difference of sequences of 101 steps and of 1 step, by the number
of steps between them.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from peers.report import as_markdown

import numnorm
from numnorm import rnn

ROWS, WIDTH = 4096, 1024
BATCH, INPUTS, UNITS, STEPS = 32, 256, 256, 100
LAUNCHES: list[Any] = []
LIBRARY: list[Any] = []  # products and new tensors
WHAT = "host, µs", "launches", "calls of the library"


def made_up_torch() -> ModuleType:
    """Return a module with what numnorm uses of PyTorch; its tensors have addresses, no memory."""
    module: Any = ModuleType("torch")
    module.strided, free = object(), [1 << 40]

    class DType:
        def __init__(self, name: str) -> None:
            self.name = name

        def __str__(self) -> str:
            return f"torch.{self.name}"

    for name in ("float16", "bfloat16", "float32", "float64", "int32", "bool"):
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

        def reshape(self, shape: tuple[int, ...]) -> Any:
            view = Tensor(shape, self.dtype)
            view._address = self._address
            return view

        def is_neg(self) -> bool:
            return False

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __getitem__(self, rows: slice) -> Any:
            return Tensor((rows.stop - rows.start, *self.shape[1:]), self.dtype)

        def permute(self, order: tuple[int, ...]) -> Any:
            return Tensor(tuple(self.shape[axis] for axis in order), self.dtype)

    def made(shape: tuple[int, ...], *given: Any, dtype: Any, device: Any) -> Any:
        LIBRARY.append(None)
        return Tensor(shape, dtype)

    def joined(tensors: list[Any]) -> Any:
        LIBRARY.append(None)
        rows = sum(tensor.shape[0] for tensor in tensors)
        return Tensor((rows, *tensors[0].shape[1:]), tensors[0].dtype)

    stream = SimpleNamespace(cuda_stream=7)
    module.Tensor, module.is_grad_enabled = Tensor, lambda: True
    module.empty, module.full, module.cat = made, made, joined
    module.as_tensor = lambda host, *, device: made(host.shape, dtype=module.int32, device=device)
    module.mm = lambda a, b, *, out: LIBRARY.append(None)
    module.cuda = SimpleNamespace(
        current_stream=lambda device: stream, is_current_stream_capturing=lambda: False
    )
    return module


def without_a_device() -> None:
    """Let numnorm launch kernels that only count."""
    from numnorm.backends.cuda.compiler import launches, target
    from numnorm.backends.cuda.compiler.device_limits import DeviceLimits

    limits = DeviceLimits(132, 232448, 233472, 2048, 65536, cooperative=True)  # of an H100
    target.device_limits = lambda device: limits  # type: ignore[assignment]
    target.Kernel.most_cooperative = lambda kernel, memory: 132  # type: ignore[method-assign]
    target.check_available = lambda: None  # type: ignore[assignment]
    launches._device_count = lambda: 1  # type: ignore[assignment]
    target.Kernel.is_loaded = lambda kernel, device: True  # type: ignore[method-assign]
    target.Kernel._on = lambda kernel, device: kernel  # type: ignore[method-assign]
    target.Kernel._configure = lambda *given, **options: None  # type: ignore[method-assign]
    launches._stream = lambda handle, device: handle  # type: ignore[assignment]
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
    yield "add_layer_norm", lambda: numnorm.add_layer_norm(x, dy, gamma, beta)


def calls_of_other_norms(torch: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield calls of norms of channels, groups and steps, and of one with a mask."""

    def new(*shape: int, dtype: Any = torch.float32) -> Any:
        return torch.Tensor(shape, dtype)

    images = 32, 64, 56, 56
    x, dy, out, g = new(*images), new(*images), new(*images), new(ROWS)
    gamma, beta, mean, variance = (new(images[1]) for _ in range(4))
    running = {"running_mean": mean, "running_var": variance}
    saved = [new(images[1], dtype=torch.float64) for _ in range(2)]
    yield "batch_norm_forward", lambda: numnorm.batch_norm_forward(x, gamma, beta, out=out)
    yield (
        "batch_norm, running statistics",
        lambda: numnorm.batch_norm(x, gamma, beta, out=out, **running),
    )
    yield (
        "batch_norm, inference",
        lambda: numnorm.batch_norm(x, gamma, beta, training=False, out=out, **running),
    )
    yield (
        "batch_norm_backward",
        lambda: numnorm.batch_norm_backward(dy, x, *saved, gamma, out=out),
    )
    yield "batch_moments", lambda: numnorm.batch_moments(x)
    yield "group_norm", lambda: numnorm.group_norm(x, gamma, beta, groups=8, out=out)
    yield "instance_norm", lambda: numnorm.instance_norm(x, gamma, beta, out=out)
    yield (
        "instance_norm, running statistics",
        lambda: numnorm.instance_norm(x, gamma, beta, out=out, **running),
    )
    rows, target = new(ROWS, WIDTH), new(ROWS, WIDTH)
    norm = new(ROWS, dtype=torch.float64)
    yield "weight_norm", lambda: numnorm.weight_norm(rows, g, out=target)
    yield (
        "weight_norm_backward",
        lambda: numnorm.weight_norm_backward(rows, rows, norm, g, out=target),
    )
    of_steps = [new(ROWS, WIDTH, dtype=torch.float64) for _ in range(2)]
    yield "moving_norm", lambda: numnorm.moving_norm(rows, 100, axis=0, out=target)
    yield (
        "moving_norm_backward",
        lambda: numnorm.moving_norm_backward(rows, rows, *of_steps, 100, axis=0, out=target),
    )
    yield "exponential_norm", lambda: numnorm.exponential_norm(rows, 0.01, axis=0, out=target)
    mask, of_rows = new(ROWS, WIDTH, dtype=torch.bool), (new(WIDTH), new(WIDTH))
    of_row = [new(ROWS, dtype=torch.float64) for _ in range(2)]
    yield "layer_norm, mask", lambda: numnorm.layer_norm(rows, *of_rows, where=mask, out=target)
    yield (
        "layer_norm_backward, mask",
        lambda: numnorm.layer_norm_backward(
            rows, rows, *of_row, of_rows[0], where=mask, out=target
        ),
    )
    whole = new(*images, dtype=torch.bool)
    yield "batch_norm, mask", lambda: numnorm.batch_norm(x, gamma, beta, where=whole, out=out)


def cell_calls(torch: Any, steps: int) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield the calls of cells with layer norms that are timed, of sequences of some steps."""
    x, dy = (torch.Tensor((steps, BATCH, n), torch.float32) for n in (INPUTS, UNITS))
    for name in ("lstm", "gru"):
        function, forward, backward, init = (
            getattr(rnn, name + part) for part in ("", "_forward", "_backward", "_init")
        )
        given = init(INPUTS, UNITS, rng=np.random.default_rng(0))
        parameters = type(given)(
            *(None if a is None else torch.Tensor(a.shape, torch.float32) for a in given)
        )
        saved = forward(x, parameters)[-1]
        yield name, lambda f=function, p=parameters: f(x, p)
        yield f"{name}_forward", lambda f=forward, p=parameters: f(x, p)
        yield f"{name}_backward", lambda f=backward, s=saved: f(dy, s)


def measured(call: Callable[[], Any], count: int, number: int = 1) -> tuple[float, int, int]:
    """Return the median time of a call, in µs, and its launches and calls of the library.

    The calls are timed `number` at a time.
    """
    call()
    LAUNCHES.clear()
    LIBRARY.clear()
    call()
    found = len(LAUNCHES), len(LIBRARY)
    # Of the processor, so that other processes hardly matter.
    repeat = max(1, count // number)
    times = timeit.repeat(call, timer=time.process_time, number=number, repeat=repeat)
    return statistics.median(times) / number * 1e6, *found


def cells_report(torch: Any, count: int) -> str:
    """Return the table of cells: what a sequence of one step takes, and each further step."""
    rows = []
    for at_once in (False, True):
        with rnn.persistent_kernels(at_once):
            pairs = [*zip(cell_calls(torch, 1), cell_calls(torch, 1 + STEPS), strict=True)]
            for (name, one), (_, many) in pairs:
                of_one = measured(one, count)
                of_many = measured(many, -(-count // STEPS))
                step = ((b - a) / STEPS for a, b in zip(of_one, of_many, strict=True))
                way = "at once" if at_once else "step by step"
                rows.append([f"{name}, {way}", *(f"{number:.1f}" for number in (*of_one, *step))])
    title = ["call", *(f"{what}, {of}" for of in ("1 step", "a further step") for what in WHAT)]
    return as_markdown(title, rows)


def main() -> None:
    """Print the median time of each call, and its launches."""
    parser = argparse.ArgumentParser(prog="python -m gpu.host", description=__doc__)
    parser.add_argument("--calls", type=int, default=10_000, help="calls of each function (10000)")
    parser.add_argument("--cells", action="store_true", help="recurrent cells, in place of norms")
    arguments = parser.parse_args()
    count = arguments.calls
    torch = made_up_torch()
    sys.modules["torch"] = torch
    without_a_device()
    if arguments.cells:
        print(cells_report(torch, count))
        return
    rows = []
    for name, call in itertools.chain(calls(torch), calls_of_other_norms(torch)):
        time, launches, of_library = measured(call, count, 10)
        rows.append([name, f"{time:.1f}", str(launches), str(of_library)])
    print(as_markdown(["call", *WHAT], rows))


if __name__ == "__main__":
    main()
