"""The CPU backend for an array of which elements are missing or have weights."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import check_float
from numnorm.array_likes import as_plain_array
from numnorm.backends import cpu
from numnorm.backends.contract.weighting import Weighting
from numnorm.layouts import ColumnLayout


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

    def column_moments(self, x: Any, layout: ColumnLayout) -> tuple[int, Any, Any, float]:
        """Return 1, the mean, the variance and 1: as if a channel had one value with this m2.

        So the caller's formulas, which have one count for all channels, divide by 1.
        """
        if not x.size:
            empty: tuple[int, Any, Any, float] = cpu.column_moments(x, layout)
            return empty
        total, mean, _, m2 = cpu.weighted_moments(self.weighting, x, layout)
        self._total = total
        seen = total > 0.0
        variance = np.where(seen, m2 / np.where(seen, total, 1.0), np.nan)
        return 1, np.where(seen, mean, np.nan), variance, 1.0

    def update_running(
        self, running: tuple[Any, Any], mean: Any, variance: Any, divisor: float, momentum: float
    ) -> None:
        """Move running statistics; those of a channel with too few values stay as they are.

        The correction of the variance is ``1 - divisor``.
        """
        total, correction = self._total, 1.0 - divisor
        seen = total > correction
        unbiased = variance * (total / np.where(seen, total - correction, 1.0))
        new = np.where(seen, mean, 0.0), np.where(seen, unbiased, 0.0)
        moved = np.array(running[0], np.float64), np.array(running[1], np.float64)
        cpu.update_running(moved, *new, 1.0, momentum)
        for array, values in zip(running, moved, strict=True):
            with np.errstate(over="ignore"):  # a variance may leave the range of float32
                np.copyto(array, values, where=seen, casting="same_kind")

    def column_forward(self, *arguments: Any) -> tuple[Any, Any]:
        """Return what `ColumnBackend.column_forward` returns."""
        result: tuple[Any, Any] = cpu.weighted_column_forward(self.weighting, *arguments)
        return result

    def column_backward(self, *arguments: Any) -> tuple[Any, Any, Any]:
        """Return what `ColumnBackend.column_backward` returns; there are no `ChannelSums`."""
        result: tuple[Any, Any, Any] = cpu.weighted_column_backward(self.weighting, *arguments)
        return result

    def streamed_moments(
        self, x: Any, layout: ColumnLayout, after: Any
    ) -> tuple[Any, Any, Any, Any]:
        """Return what `ColumnBackend.streamed_moments` returns, with a count for each channel."""
        moments = cpu.weighted_moments(self.weighting, x, layout)
        if after is not None:
            moments = cpu.merge_counted(counted("after", after), moments)
        count, mean, mean_lo, m2 = moments
        return count, mean, m2, mean_lo


class WeightedInput(NamedTuple):
    """An array x with the backend for its weighting: what norms get in place of x.

    Attributes
    ----------
    backend : Backend
        The backend that takes the weighting into account.
    x : numpy.ndarray
        The array, of a float dtype.
    weighting : Weighting
        Which elements count, and how much.
    """

    backend: Any
    x: Any
    weighting: Weighting

    def folded(self, fold: Callable[[str, Any], Any]) -> "WeightedInput":
        """Return it in another shape, into which `fold` brings arrays of the shape of x."""
        keep, weights = (
            None if value is None else fold("x", np.broadcast_to(value, self.x.shape))
            for value in self.weighting[:2]
        )
        weighting = self.weighting._replace(keep=keep, weights=weights)
        return WeightedInput(WeightedBackend(weighting), fold("x", self.x), weighting)


def counted(name: str, moments: Any) -> tuple[Any, Any, Any, Any]:
    """Return the caller's count, mean, mean_lo and m2 of each channel in float64."""
    count, mean, m2, mean_lo = moments
    arrays = []
    for field, value in (("count", count), ("mean", mean), ("mean_lo", mean_lo), ("m2", m2)):
        array = as_plain_array(f"{name}.{field}", 0.0 if value is None else value)
        check_float(f"{name}.{field}", array.dtype)
        arrays.append(np.broadcast_to(array.astype(np.float64), np.shape(mean)))
    return arrays[0], arrays[1], arrays[2], arrays[3]
