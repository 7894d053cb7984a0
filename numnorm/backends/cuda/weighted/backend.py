"""The CUDA backend for an array of which elements are missing or have weights."""

from typing import Any

from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cuda.arrays.known_calls import repeated
from numnorm.backends.cuda.columns.columns import column_backward, column_forward
from numnorm.backends.cuda.columns.moments import column_moments
from numnorm.backends.cuda.moving import exponential, windows
from numnorm.backends.cuda.rows.backward import row_backward
from numnorm.backends.cuda.rows.forward import row_forward
from numnorm.backends.cuda.statistics import stored
from numnorm.backends.cuda.weighted import columns, rows
from numnorm.layouts import ColumnLayout


class DeviceWeightedBackend:
    """The functions of the CUDA backend, with statistics of what a weighting keeps."""

    saved = staticmethod(stored.saved)
    reciprocal = staticmethod(stored.reciprocal)
    check_updatable = staticmethod(stored.check_updatable)
    running_statistics = staticmethod(stored.running_statistics)

    def __init__(self, weighting: Weighting) -> None:
        self.weighting = weighting

    def as_float_array(self, name: str, value: Any) -> Any:
        """Return the value as it is: `backend_for` has converted it."""
        return value

    def repeated(
        self, function: Any, arguments: Any, x: Any, arrays: tuple[Any, ...], options: Any
    ) -> Any:
        """Return what `ArrayBackend.repeated` returns."""
        return repeated(function, arguments, x, (*arrays, *self.weighting), options)

    def row_forward(self, norm: Any, x: Any, *arguments: Any) -> tuple[Any, Any, Any]:
        """Return what `RowBackend.row_forward` returns."""
        if 0 in x.shape:
            plain: tuple[Any, Any, Any] = row_forward(norm, x, *arguments)
            return plain
        return rows.weighted_row_forward(self.weighting, norm, x, *arguments)

    def row_backward(self, norm: Any, dy: Any, x: Any, *arguments: Any) -> tuple[Any, Any, Any]:
        """Return what `RowBackend.row_backward` returns."""
        if 0 in x.shape:
            plain: tuple[Any, Any, Any] = row_backward(norm, dy, x, *arguments)
            return plain
        return rows.weighted_row_backward(self.weighting, norm, dy, x, *arguments)

    def column_moments(self, x: Any, layout: ColumnLayout) -> tuple[int, Any, Any, float]:
        """Return a count of 1, the mean, the variance and a unit of 1.

        Channels have different counts, so the division is done here; the caller divides by 1.
        """
        if 0 in x.shape:
            empty: tuple[int, Any, Any, float] = column_moments(x, layout)
            return empty
        moments = columns.weighted_moments(self.weighting, x, layout)
        self._total = moments.total
        return 1, *columns.mean_and_variance(moments), 1.0

    def update_running(
        self, running: tuple[Any, Any], mean: Any, variance: Any, divisor: float, momentum: float
    ) -> None:
        """Move the mean of each channel that has weight, and the variance that can be corrected.

        The correction of the variance is ``1 - divisor``. `column_moments` was called before and
        left the sums of weights in ``_total``.
        """
        correction = 1.0 - divisor
        columns.update_counted(running, mean, variance, self._total, correction, momentum)

    def column_forward(self, x: Any, *arguments: Any) -> tuple[Any, Any]:
        """Return what `ColumnBackend.column_forward` returns."""
        if 0 in x.shape:
            plain: tuple[Any, Any] = column_forward(x, *arguments)
            return plain
        return columns.weighted_column_forward(self.weighting, x, *arguments)

    def column_backward(self, dy: Any, x: Any, *arguments: Any) -> tuple[Any, Any, Any]:
        """Return what `ColumnBackend.column_backward` returns; there are no `ChannelSums`."""
        if 0 in x.shape:
            plain: tuple[Any, Any, Any] = column_backward(dy, x, *arguments)
            return plain
        return columns.weighted_column_backward(self.weighting, dy, x, *arguments)

    def streamed_moments(
        self, x: Any, layout: ColumnLayout, after: Any
    ) -> tuple[Any, Any, Any, Any]:
        """Return what `ColumnBackend.streamed_moments` returns, with a count for each channel."""
        moments = columns.weighted_moments(self.weighting, x, layout)
        if after is not None:
            moments = columns.merged_with_counts(x, layout.channels, after, moments)
        return columns.handed_out_moments(moments)

    def moving_forward(self, *arguments: Any) -> tuple[Any, Any, Any]:
        """Return what `MovingBackend.moving_forward` returns."""
        return windows.masked_moving_forward(self.weighting, *arguments)

    def moving_backward(self, *arguments: Any) -> Any:
        """Return what `MovingBackend.moving_backward` returns."""
        return windows.masked_moving_backward(self.weighting, *arguments)

    def moving_step(self, *arguments: Any) -> tuple[Any, Any]:
        """Return what `MovingBackend.moving_step` returns."""
        return windows.masked_moving_step(self.weighting, *arguments)

    def exponential_forward(self, *arguments: Any) -> tuple[Any, Any, Any]:
        """Return what `MovingBackend.exponential_forward` returns."""
        return exponential.masked_exponential_forward(self.weighting, *arguments)

    def exponential_backward(self, *arguments: Any) -> Any:
        """Return what `MovingBackend.exponential_backward` returns."""
        return exponential.masked_exponential_backward(self.weighting, *arguments)

    def exponential_step(self, *arguments: Any) -> tuple[tuple[Any, Any, Any], Any]:
        """Return what `MovingBackend.exponential_step` returns."""
        return exponential.masked_exponential_step(self.weighting, *arguments)


def with_weighting(weighting: Weighting) -> DeviceWeightedBackend:
    """Return the backend of device arrays with a weighting."""
    return DeviceWeightedBackend(weighting)
