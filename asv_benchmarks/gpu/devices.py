"""A device that makes arrays and times calls; the tests have a simulated one."""

from __future__ import annotations

import statistics
import time
from typing import Any, Protocol

from .contestants import Call

# Some 10 ms, for which the device waits while the host queues calls: then no time of the host is
# between them.
_CYCLES = 20_000_000


class Device(Protocol):
    """The protocol of a device."""

    def normal(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return random numbers in the device's memory."""

    def taken(self, array: Any) -> Any:
        """Return a copy of a NumPy array in the device's memory."""

    def wide(self, array: Any) -> Any:
        """Return an array of any library in float64, with NumPy's methods and operators."""

    def seconds(self, call: Call, launches: int) -> float:
        """Return the time of a call on the device, averaged over `launches` calls."""

    def host_seconds(self, call: Call, launches: int) -> float:
        """Return the time of a call on the host, the median of `launches` calls."""

    def description(self) -> dict[str, str]:
        """Return the device, its driver, and the versions of the libraries."""


class TorchDevice:
    """A GPU; PyTorch makes the arrays and times the calls."""

    def normal(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Return random numbers in the device's memory."""
        import torch

        return torch.randn(shape, device="cuda", dtype=getattr(torch, dtype))

    def taken(self, array: Any) -> Any:
        """Return a copy of a NumPy array in the device's memory."""
        import torch

        return torch.tensor(array, device="cuda")

    def wide(self, array: Any) -> Any:
        """Return an array of any library in float64, with NumPy's methods and operators."""
        import torch

        tensor = array.detach() if isinstance(array, torch.Tensor) else torch.from_dlpack(array)
        return tensor.double()

    def seconds(self, call: Call, launches: int) -> float:
        """Return the time of a call on the device, averaged over `launches` calls."""
        import torch

        if call.wait is not None:
            return _waited(call, launches)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(_CYCLES)
        begin.record()
        for _ in range(launches):
            call.run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / launches

    def host_seconds(self, call: Call, launches: int) -> float:
        """Return the time of a call on the host, the median of `launches` calls."""
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
    """Return the time of a call by the host's clock, for work outside PyTorch's stream."""
    import torch

    assert call.wait is not None
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(launches):
        result = call.run()
    call.wait(result)
    return (time.perf_counter() - begin) / launches
