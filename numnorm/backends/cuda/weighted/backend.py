"""The CUDA backend for an array of which elements are missing or have weights."""

from typing import Any

from numnorm.backends import cuda
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cuda.moving import exponential, windows
from numnorm.backends.cuda.weighted import rows

# Functions that do not depend on which elements count, and those that are on the host alone.
_SAME = frozenset({"saved", "reciprocal", "check_updatable", "running_statistics"})
_SAME |= {"moving_step", "exponential_step", "rounded"}


class DeviceWeightedBackend:
    """The functions of the CUDA backend, with statistics of what a weighting keeps."""

    def __init__(self, weighting: Weighting) -> None:
        self.weighting = weighting

    def __getattr__(self, name: str) -> Any:
        if name not in _SAME:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(cuda, name)

    def as_float_array(self, name: str, value: Any) -> Any:
        """Return the array of the backend of arrays without a weighting."""
        return value

    def row_forward(self, norm: Any, x: Any, *arguments: Any) -> tuple[Any, Any, Any]:
        """Return what `RowBackend.row_forward` returns."""
        if 0 in x.shape:
            plain: tuple[Any, Any, Any] = cuda.row_forward(norm, x, *arguments)
            return plain
        return rows.weighted_row_forward(self.weighting, norm, x, *arguments)

    def row_backward(self, norm: Any, dy: Any, x: Any, *arguments: Any) -> tuple[Any, Any, Any]:
        """Return what `RowBackend.row_backward` returns."""
        if 0 in x.shape:
            plain: tuple[Any, Any, Any] = cuda.row_backward(norm, dy, x, *arguments)
            return plain
        return rows.weighted_row_backward(self.weighting, norm, dy, x, *arguments)

    def moving_forward(self, *arguments: Any) -> tuple[Any, Any, Any]:
        """Return what `MovingBackend.moving_forward` returns."""
        return windows.missing_moving_forward(self.weighting, *arguments)

    def moving_backward(self, *arguments: Any) -> Any:
        """Return what `MovingBackend.moving_backward` returns."""
        return windows.missing_moving_backward(self.weighting, *arguments)

    def exponential_forward(self, *arguments: Any) -> tuple[Any, Any, Any]:
        """Return what `MovingBackend.exponential_forward` returns."""
        return exponential.missing_exponential_forward(self.weighting, *arguments)

    def exponential_backward(self, *arguments: Any) -> Any:
        """Return what `MovingBackend.exponential_backward` returns."""
        return exponential.missing_exponential_backward(self.weighting, *arguments)


def with_weighting(weighting: Weighting) -> DeviceWeightedBackend:
    """Return the backend of device arrays with a weighting."""
    return DeviceWeightedBackend(weighting)
