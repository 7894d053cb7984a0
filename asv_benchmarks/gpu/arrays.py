"""The numbers that every contestant is given, in the device's memory."""

from __future__ import annotations

from typing import Any

from .cases import Case


class Arrays:
    """The inputs of a case, made by a device: x, dy, gamma, beta, and a place for the result."""

    def __init__(self, device: Any, case: Case) -> None:
        shape = (case.rows, case.width)
        self.x, self.dy = device.normal(shape, case.dtype), device.normal(shape, case.dtype)
        self.gamma, self.beta = (device.normal((case.width,), case.dtype) for _ in range(2))
        self.out = device.normal(shape, case.dtype)
