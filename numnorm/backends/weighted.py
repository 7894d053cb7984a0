"""The backend of arrays with missing elements or weights. `WeightedBackend` is the CPU's."""

from typing import Any

from numnorm.backends import cpu
from numnorm.backends.contract.norms import Norm
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.host import HostBackend
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

    def row_backward(self, norm: Norm, dy: Any, x: Any, *arguments: Any) -> tuple[Any, Any, Any]:
        """Return what `RowBackend.row_backward` returns."""
        given = norm, dy, x, *arguments
        if not x.size:
            plain: tuple[Any, Any, Any] = cpu.row_backward(*given)
            return plain
        result: tuple[Any, Any, Any] = cpu.weighted_row_backward(self.weighting, *given)
        return result

    def column_moments(self, x: Any, layout: ColumnLayout) -> tuple[int, Any, Any, float]:
        """Return a count of 1, the mean, the variance and a unit of 1.

        Channels have different counts, so the division is done here; the caller divides by 1.
        """
        if not x.size:
            empty: tuple[int, Any, Any, float] = cpu.column_moments(x, layout)
            return empty
        self.weighting = cpu.whole_mask(self.weighting, x.shape)
        statistics = cpu.weighted_statistics(self.weighting, x, layout)
        self._total, mean, variance = statistics
        return 1, mean, variance, 1.0

    def update_running(
        self, running: tuple[Any, Any], mean: Any, variance: Any, divisor: float, momentum: float
    ) -> None:
        """Move the mean of each channel that has weight, and the variance that can be corrected.

        The correction of the variance is ``1 - divisor``. `column_moments` was called before and
        left the sums of weights in ``_total``.
        """
        cpu.update_counted(running, mean, variance, self._total, 1.0 - divisor, momentum)

    def column_forward(self, *arguments: Any) -> tuple[Any, Any]:
        """Return what `ColumnBackend.column_forward` returns."""
        result: tuple[Any, Any] = cpu.weighted_column_forward(self.weighting, *arguments)
        return result

    def column_backward(self, *arguments: Any) -> tuple[Any, Any, Any]:
        """Return what `ColumnBackend.column_backward` returns; there are no `ChannelSums`."""
        result: tuple[Any, Any, Any] = cpu.weighted_column_backward(self.weighting, *arguments)
        return result

    def moving_forward(self, *arguments: Any) -> tuple[Any, Any, Any]:
        """Return what `MovingBackend.moving_forward` returns."""
        result: tuple[Any, Any, Any] = cpu.masked_moving_forward(self.weighting, *arguments)
        return result

    def moving_backward(self, *arguments: Any) -> Any:
        """Return what `MovingBackend.moving_backward` returns."""
        return cpu.masked_moving_backward(self.weighting, *arguments)

    def moving_step(self, *arguments: Any) -> tuple[Any, Any]:
        """Return what `MovingBackend.moving_step` returns."""
        result: tuple[Any, Any] = cpu.masked_moving_step(self.weighting, *arguments)
        return result

    def exponential_forward(self, *arguments: Any) -> tuple[Any, Any, Any]:
        """Return what `MovingBackend.exponential_forward` returns."""
        result: tuple[Any, Any, Any] = cpu.masked_exponential_forward(self.weighting, *arguments)
        return result

    def exponential_backward(self, *arguments: Any) -> Any:
        """Return what `MovingBackend.exponential_backward` returns."""
        return cpu.masked_exponential_backward(self.weighting, *arguments)

    def exponential_step(self, *arguments: Any) -> tuple[tuple[Any, Any, Any], Any]:
        """Return what `MovingBackend.exponential_step` returns."""
        result: tuple[tuple[Any, Any, Any], Any] = cpu.masked_exponential_step(
            self.weighting, *arguments
        )
        return result

    def streamed_moments(
        self, x: Any, layout: ColumnLayout, after: Any
    ) -> tuple[Any, Any, Any, Any]:
        """Return what `ColumnBackend.streamed_moments` returns, with a count for each channel."""
        moments: tuple[Any, Any, Any, Any] = cpu.weighted_moments(self.weighting, x, layout)
        return moments if after is None else cpu.streamed_counts(after, moments)


def with_weighting(backend: Any, weighting: Weighting) -> Any:
    """Return the backend of arrays with a weighting, given that of arrays without."""
    if backend is cpu:
        return WeightedBackend(weighting)
    if isinstance(backend, HostBackend):
        return HostBackend(backend.result, WeightedBackend(weighting))
    return backend.with_weighting(weighting)
