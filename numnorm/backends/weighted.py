"""The CPU backend for an array of which elements are missing or have weights."""

from typing import Any, NamedTuple

from numnorm.backends import cpu
from numnorm.backends.contract.weighting import Weighting


class WeightedBackend:
    """The functions of the CPU backend, with statistics of what a weighting keeps."""

    def __init__(self, weighting: Weighting) -> None:
        self.weighting = weighting

    def __getattr__(self, name: str) -> Any:
        return getattr(cpu, name)

    def row_forward(self, *arguments: Any) -> tuple[Any, Any, Any]:
        """Return what `RowBackend.row_forward` returns."""
        result: tuple[Any, Any, Any] = cpu.weighted_row_forward(self.weighting, *arguments)
        return result

    def row_backward(self, *arguments: Any) -> tuple[Any, Any, Any]:
        """Return what `RowBackend.row_backward` returns."""
        result: tuple[Any, Any, Any] = cpu.weighted_row_backward(self.weighting, *arguments)
        return result


class WeightedInput(NamedTuple):
    """An array x with the backend for its weighting: what norms get in place of x.

    Attributes
    ----------
    backend : Backend
        The backend that takes the weighting into account.
    x : numpy.ndarray
        The array, of a float dtype.
    """

    backend: Any
    x: Any
