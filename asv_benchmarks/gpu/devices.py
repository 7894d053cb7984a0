"""A device that makes arrays and tells the time; the tests have another one, in Python."""

from __future__ import annotations

import statistics
import time
from typing import Any, Protocol

from .contestants import Call


class Device(Protocol):
    """What the comparison asks of a device."""

    def normal(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return random numbers in the device's memory."""

    def taken(self, array: Any) -> Any:
        """Return an array of NumPy, in the device's memory."""

    def wide(self, array: Any) -> Any:
        """Return any contestant's array in float64, with NumPy's methods and operators."""

    def seconds(self, call: Call, launches: int) -> float:
        """Return how long the device works on a call, so many of them in a row."""

    def host_seconds(self, call: Call, launches: int) -> float:
        """Return how long the host is busy with a call, the median of so many."""

    def description(self) -> dict[str, str]:
        """Return the device, its driver, and the versions of the libraries."""


class TorchDevice:
    """A GPU, its arrays made and its time told by PyTorch."""

    def normal(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return random numbers in the device's memory."""
        import torch

        return torch.randn(shape, device="cuda", dtype=getattr(torch, dtype))

    def taken(self, array: Any) -> Any:
        """Return an array of NumPy, in the device's memory."""
        import torch

        return torch.tensor(array, device="cuda")

    def wide(self, array: Any) -> Any:
        """Return any contestant's array in float64, with NumPy's methods and operators."""
        import torch

        tensor = array.detach() if isinstance(array, torch.Tensor) else torch.from_dlpack(array)
        return tensor.double()

    def seconds(self, call: Call, launches: int) -> float:
        """Return how long the device works on a call, so many of them in a row."""
        import torch

        if call.wait is not None:
            return _waited(call, launches)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(launches):
            call.run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / launches

    def host_seconds(self, call: Call, launches: int) -> float:
        """Return how long the host is busy with a call, the median of so many."""
        import torch

        times = []
        for _ in range(launches):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            call.run()
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
        }


def _waited(call: Call, launches: int) -> float:
    """Return the like by the host's clock, for what PyTorch's stream does not see."""
    import torch

    assert call.wait is not None
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(launches):
        result = call.run()
    call.wait(result)
    return (time.perf_counter() - begin) / launches
