"""The functions of a backend, in families: rows, columns, moving norms and recurrent cells.

A backend is a package with these functions on its own array type. It may leave out a whole family.
Where a docstring says "the caller's", an array has the type and dtype that the user passes or gets.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from numnorm.arguments import Shape
from numnorm.backends.contract.moving import MovingBackend
from numnorm.backends.contract.norms import ChannelSums, Detached, Norm, Scaling
from numnorm.backends.contract.recurrent import (
    CellGradients,
    CellSpec,
    LSTMSpec,
    PackedSteps,
    RunningSteps,
    SequenceLayout,
    Step,
)
from numnorm.layouts import ColumnLayout, RowLayout

# The caller's count, mean, m2 and mean_lo of channels; a mean_lo of None is 0.
GivenMoments = tuple[int, Any, Any, Any]


class BlockMoments(NamedTuple):
    """The moments of blocks of values, to be merged in order.

    Attributes
    ----------
    values : int
        The number of values in each channel.
    step : int
        The number of values of a channel in each block but the last.
    table : array
        Mean, mean_lo and m2 * unit, ``(3, blocks, *channels)``.
    unit : float
        A power of two that keeps m2 in range where the variance is.
    """

    values: int
    step: int
    table: Any
    unit: float


class ArrayBackend(Protocol):
    """What every family needs; all other functions take an `x` that `as_float_array` returned."""

    def as_float_array(self, name: str, value: Any) -> Any:
        """Return an array of a supported float dtype; integers and bool become float64."""

    def repeated(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        x: Any,
        arrays: tuple[Any, ...],
        options: Hashable,
    ) -> Any:
        """Return ``function(*arguments)``, or do what it did before with such arrays.

        The arguments are this backend, x, the caller's other `arrays`, of which some may be None,
        and what follows from the `options`. The function returns arrays, numbers and None, in any
        tuples.
        """


class RowBackend(ArrayBackend, Protocol):
    """The norms with statistics of each row: layer, RMS, AdaNorm, group, instance, weight."""

    def saved(self, statistic: Any, x: Any) -> Any:
        """Return a new array of the dtype in which the statistics of x are returned."""

    def reciprocal(self, name: str, value: Any, x: Any, layout: RowLayout) -> Any:
        """Return the reciprocals of a saved statistic of the rows of x, with 1 / 0 = 0.

        `row_backward` takes them.
        """

    def row_forward(
        self,
        norm: Norm,
        x: Any,
        gamma: Any,
        beta: Any,
        layout: RowLayout,
        scaling: Scaling,
        out: Any,
        save: bool,
    ) -> tuple[Any, Any, Any]:
        """Return y and, if `save` is true, mean and rstd of each row.

        A norm that is not centred returns the root mean square, 1 / rstd, as its mean.
        """

    def row_backward(
        self,
        norm: Norm,
        dy: Any,
        x: Any,
        mean: Any,
        rstd: Any,
        gamma: Any,
        beta: Any,
        layout: RowLayout,
        scaling: Scaling,
        detached: Detached,
        out: Any,
    ) -> tuple[Any, Any, Any]:
        """Return dx and, for a norm with parameters, dgamma and dbeta.

        `mean` is None if the norm is not centred.
        """

    def added_forward(
        self,
        norm: Norm,
        x: Any,
        residual: Any,
        gamma: Any,
        beta: Any,
        layout: RowLayout,
        scaling: Scaling,
        out: Any,
        total_out: Any,
        save: bool,
    ) -> tuple[Any, Any, Any, Any]:
        """Return y, the sum and, if `save` is true, mean and rstd of each row of the sum."""

    def added_backward(
        self,
        norm: Norm,
        dy: Any,
        dtotal: Any,
        x: Any,
        mean: Any,
        rstd: Any,
        gamma: Any,
        layout: RowLayout,
        scaling: Scaling,
        detached: Detached,
        out: Any,
    ) -> tuple[Any, Any, Any]:
        """Return dx and the gradients of the parameters, where x is the sum.

        `dtotal`, the gradient with respect to the sum, may be None for 0.
        """


class ColumnBackend(ArrayBackend, Protocol):
    """The norms with statistics of each channel: batch norm.

    They are centred, and their output is gamma * xhat + beta.
    """

    def saved(self, statistic: Any, x: Any) -> Any:
        """Return a new array of the dtype in which the statistics of x are returned."""

    def check_updatable(self, name: str, array: Any) -> None:
        """Raise unless running statistics can be updated in place."""

    def running_statistics(
        self, mean: Any, variance: Any, x: Any, layout: ColumnLayout, update: bool
    ) -> tuple[Any, Any]:
        """Return checked running statistics for x: the caller's own arrays if `update` is true."""

    def update_running(
        self, running: tuple[Any, Any], mean: Any, m2: Any, divisor: float, momentum: float
    ) -> None:
        """Move a running mean and variance towards a batch's, which have weight `momentum`.

        The variance of the batch is m2 / divisor.
        """

    def column_moments(self, x: Any, layout: ColumnLayout) -> tuple[int, Any, Any, float]:
        """Return (count, mean, m2 * unit, unit) of each channel; arrays may have a private format.

        The unit is a power of two that keeps m2 in range where the variance is.
        """

    def streamed_moments(
        self, x: Any, layout: ColumnLayout, after: GivenMoments | None
    ) -> tuple[int, Any, Any, Any]:
        """Return (count, mean, m2, mean_lo) for the caller, as float64 arrays of the library of x.

        They include `after`, the moments of the previous chunks, whose arrays are checked here.
        """

    def merged_moments(
        self, mean: Any, moments: GivenMoments, other: GivenMoments
    ) -> tuple[Any, Any, Any]:
        """Return mean, m2 and mean_lo of two sets of the caller's moments, neither empty, together.

        `mean` is the first set's mean as an array of this backend; the others are checked here.
        """

    def variance(self, m2: Any, divisor: int) -> Any:
        """Return the caller's m2 divided by `divisor`."""

    def deviation(self, m2: Any, divisor: int) -> Any:
        """Return the root of the caller's m2 divided by `divisor`."""

    def column_forward(
        self,
        x: Any,
        mean: Any,
        m2: Any,
        divisor: float,
        eps: float,
        gamma: Any,
        beta: Any,
        layout: ColumnLayout,
        out: Any,
    ) -> tuple[Any, Any]:
        """Return x normalized with the given statistics of each channel, and rstd.

        m2, the sum of squared deviations, divided by `divisor` is the variance. rstd is
        1 / sqrt(m2 / divisor + eps): 0 if the sum under the root is 0, NaN if it is negative,
        infinite, or so small that the squares in m2 have lost digits in float64. Where the values
        can be read at once, a negative m2 raises a ValueError.
        """

    def column_backward(
        self,
        dy: Any,
        x: Any,
        mean: Any,
        rstd: Any,
        gamma: Any,
        layout: ColumnLayout,
        detached: Detached,
        out: Any,
        sums: ChannelSums | None = None,
    ) -> tuple[Any, Any, Any]:
        """Return dx, dgamma, dbeta.

        If x is a part of the data, dx takes the `sums` of all data, and the rest has no meaning.
        """


class BlockBackend(ArrayBackend, Protocol):
    """Moments of channels whose values lie in several arrays of the host, such as Dask's chunks."""

    def block_moments(self, x: Any, layout: ColumnLayout) -> BlockMoments:
        """Return the moments of each block of x."""

    def folded_moments(
        self, parts: Sequence[BlockMoments | GivenMoments]
    ) -> tuple[int, Any, Any, Any]:
        """Return (count, mean, m2, mean_lo) of all parts, merged in order."""


class DenormalizeBackend(ArrayBackend, Protocol):
    """The way back from normalized arrays of the host."""

    def denormalized(self, y: Any, beta: Any, gain: Any, rstd: Any, mean: Any, out: Any) -> Any:
        """Return ``(y - beta) * gain / rstd + mean``, and the mean where rstd is 0.

        The arrays between y and out have as many axes as y, to broadcast against it; all but rstd
        may be None.
        """


class RecurrentBackend(ArrayBackend, Protocol):
    """Recurrent cells, and the array operations between the layers of a stack."""

    def step_statistics(self, name: str, value: Any, x: Any, update: bool) -> Any:
        """Return running statistics of any shape: the caller's own array if `update` is true."""

    def share_memory(self, one: Any, other: Any) -> bool:
        """Return whether two arrays of `step_statistics` share memory."""

    def as_like(self, name: str, value: Any, x: Any) -> Any:
        """Return an array in a supported float dtype; raise unless it is on the device of x."""

    def pack_padded(self, x: Any, layout: SequenceLayout, batch_first: bool, like: Any) -> Any:
        """Return the packed rows of padded sequences, in the dtype of `like`.

        If `like` is None, they are in the compute dtype of x. A single step may lack the time axis.
        """

    def pad_packed(
        self, rows: Any, start: int, layout: SequenceLayout, batch_first: bool, x: Any, dtype: Any
    ) -> Any:
        """Return the padded sequences as the caller's array, with zeros as padding.

        The packed rows are ``rows[start:]``. Their width may differ from that of x.
        """

    def cell_state(self, name: str, value: Any, shape: Shape, x: Any, batched: bool = True) -> Any:
        """Return a checked copy of a state in the dtype of x; None gives zeros.

        Unless `batched`, the value lacks the first axis of the shape.
        """

    def sort_states(self, states: Any, layout: SequenceLayout) -> Any:
        """Return the states in the order of a layout, maybe the same array."""

    def unsort_states(
        self, states: Any, indices: Any, given: Any, layout: SequenceLayout, dtype: Any
    ) -> Any:
        """Return the states in the order of the batch, as the caller's array.

        ``states[indices]`` (`states` itself if `indices` is None) has one row for each nonempty
        sequence, in the order of the layout. Empty sequences are filled from `given`.
        """

    def cell_parameter(self, name: str, value: Any, x: Any, check: Callable[[Shape], None]) -> Any:
        """Return a parameter in the dtype of x, C-contiguous; `check` raises for a wrong shape."""

    def packed_like(self, beside: Any, dtype: Any) -> Any:
        """Return an uninitialized array that stands for x when parameters are packed in advance.

        It has the compute dtype of the NumPy `dtype`, and is on the device of `beside`.
        """

    def copied_parameter(self, name: str, value: Any, x: Any) -> Any:
        """Return a copy of a parameter, with its own dtype, on the device of x."""

    def check_packed(self, parameter: Any, x: Any) -> None:
        """Raise unless a parameter that this backend has packed is on the device of x."""

    def zoneout_mask(self, probability: Any, layout: SequenceLayout, width: int, x: Any) -> Any:
        """Return the zoneout mask of a state for `cell_forward`.

        `probability` is the fraction of the previous state that a step keeps: a number, or a NumPy
        array (time, batch, width).
        """

    def dropped(self, rows: Any, kept: Any, factor: float, layout: SequenceLayout) -> Any:
        """Return packed rows with dropout: times the factor where an element is kept, else 0.

        `kept` is a NumPy array of bool (batch, width), the mask of all steps. The rows, given
        and returned, are packed as by `pack_padded` or as a result of `cell_backward` is.
        """

    def dropout_mask(self, kept: Any, factor: float, layout: SequenceLayout, x: Any) -> Any:
        """Return the dropout mask of the product with the state, for `cell_forward`."""

    def parameter_gradient(self, name: str, gradient: Any, parameter: Any, x: Any) -> Any:
        """Return a gradient in the shape and dtype of the caller's parameter."""

    def to_time_major(self, x: Any, batch_first: bool) -> Any:
        """Return x as the caller's array, time and batch swapped if the batch comes first."""

    def concatenate(self, arrays: Sequence[Any]) -> Any:
        """Concatenate arrays along the last axis.

        This and the following methods take and return arrays as the cell functions return them.
        """

    def split(self, array: Any, widths: Sequence[int]) -> list[Any]:
        """Split an array along the last axis into arrays of these widths."""

    def as_mask(self, mask: Any, array: Any) -> Any:
        """Return a NumPy array of bool as `apply_mask` takes it, on the device of an array."""

    def apply_mask(self, array: Any, mask: Any, factor: float) -> Any:
        """Return a new array: ``array * factor`` where the mask is true, 0 elsewhere."""

    def add(self, one: Any, other: Any) -> Any:
        """Return the sum of two arrays, rounded once."""

    def cell_weights(
        self, spec: CellSpec, given: Any, ada_scale: float, ada_k: float, keep: bool
    ) -> Any:
        """Return the parameters of a recurrent cell for `cell_forward`.

        `given` has the fields of the cell's parameters in `numnorm.rnn`, in the dtype of x. `keep`
        says that several calls will use the result: then all preparation is done now.
        """

    def cell_forward(
        self,
        spec: CellSpec,
        scaling: Scaling,
        x: Any,
        steps: PackedSteps,
        weights: Any,
        states: tuple[Any, ...],
        zoneout_masks: tuple[Any, ...],
        save: bool,
        dropout_mask: Any = None,
    ) -> tuple[tuple[Any, ...], Any]:
        """Return the history of each state, initial state first, and data for the backward pass.

        x and each of the `zoneout_masks` (one per state) have the rows of all steps. If `save` is
        false, the history of h is complete, and the other states have only their last values.
        """

    def prepared_step(
        self,
        spec: CellSpec,
        scaling: Scaling,
        x: Any,
        steps: PackedSteps,
        weights: Any,
        states: tuple[Any, ...],
    ) -> Step | None:
        """Return a function of one step for later calls with an x and states like these.

        It takes x and states of the same shapes and dtype, or None for a state of 0, and checks
        nothing. The result is None if there is no faster way than `cell_forward`.
        """

    def cell_backward(
        self,
        spec: CellSpec,
        scaling: Scaling,
        x: Any,
        steps: PackedSteps,
        weights: Any,
        saved: Any,
        zoneout_masks: tuple[Any, ...],
        dy: Any,
        dstates: tuple[Any, ...],
        dropout_mask: Any = None,
    ) -> CellGradients:
        """Return all gradients, from `dy`, the gradient of every h, and the last states' gradients.

        The gradients of the initial states are written into `dstates`.
        """

    def batch_cell_forward(
        self,
        spec: LSTMSpec,
        eps: float,
        x: Any,
        steps: PackedSteps,
        given: Any,
        states: tuple[Any, ...],
        running: dict[str, RunningSteps],
    ) -> tuple[tuple[Any, ...], Any]:
        """Return what `cell_forward` returns, for batch norm; both histories are complete.

        A step normalizes all its sequences together. The parameters are in the dtype of x.
        `running` has the running statistics of every site of `LSTMSpec.sites`, or is empty.
        """

    def batch_cell_backward(self, saved: Any, dy: Any, dstates: tuple[Any, ...]) -> CellGradients:
        """Return the gradients as `cell_backward` does, from the data of `batch_cell_forward`."""


class Backend(RowBackend, ColumnBackend, MovingBackend, RecurrentBackend, Protocol):
    """A backend with all families."""
