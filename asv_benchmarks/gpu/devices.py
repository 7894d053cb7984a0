"""A device that makes arrays and tells the time; the tests have another one, in Python."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

_LAUNCHES = 20


class Device(Protocol):
    """What the comparison asks of a device."""

    def normal(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return random numbers in the device's memory."""

    def seconds(self, call: Callable[[], Any]) -> float:
        """Return how long the device works on a call, many of them in a row."""

    def host_seconds(self, call: Callable[[], Any]) -> float:
        """Return how long the host is busy with a call, without waiting for the device."""

    def description(self) -> dict[str, str]:
        """Return the device, its driver, and the versions of the libraries."""


class TorchDevice:
    """A GPU, its arrays made and its time told by PyTorch."""

    def normal(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return random numbers in the device's memory."""
        import torch

        return torch.randn(shape, device="cuda", dtype=getattr(torch, dtype))

    def seconds(self, call: Callable[[], Any]) -> float:
        """Return how long the device works on a call, many of them in a row."""
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(_LAUNCHES):
            call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / _LAUNCHES

    def host_seconds(self, call: Callable[[], Any]) -> float:
        """Return how long the host is busy with a call, without waiting for the device."""
        import torch

        times = []
        for _ in range(_LAUNCHES):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        return statistics.median(times)

    def description(self) -> dict[str, str]:
        """Return the device, its driver, and the versions of the libraries."""
        import torch

        properties = torch.cuda.get_device_properties(0)
        return {
            "device": properties.name,
            "compute capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": str(properties.multi_processor_count),
            "CUDA of torch": str(torch.version.cuda),
            "torch": torch.__version__,
        }
