"""What a backend offers: three families of functions, of which it may leave out whole ones.

A backend is a package with these functions; arrays are of that backend's own type.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from numnorm.arguments import Shape
from numnorm.backends.contract.norms import Detached, Norm, Scaling
from numnorm.backends.contract.recurrent import (
    CellGradients,
    CellSpec,
    LSTMSpec,
    PackedSteps,
    RunningSteps,
    SequenceLayout,
)
from numnorm.layouts import ColumnLayout, RowLayout


class ArrayBackend(Protocol):
    """What every family of functions needs of a backend; `x` of all others has been through it."""

    def as_float_array(self, name: str, value: Any) -> Any:
        """Return an array of a supported float dtype; integers and bool become float64."""


class RowBackend(ArrayBackend, Protocol):
    """The norms whose statistics are a row's: layer, RMS, AdaNorm, group, instance, weight."""

    def saved(self, statistic: Any, x: Any) -> Any:
        """Return a new array of the dtype in which the statistics of x are returned."""

    def reciprocal(self, name: str, value: Any, x: Any, layout: RowLayout) -> Any:
        """Return 1 over a saved statistic of each row of x, and 0 for 0, for `row_backward`."""

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
        """Return y and, where `save` is true, mean and rstd of each row.

        An uncentred row's root mean square, 1 / rstd, takes the place of its mean.
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

        `mean` is None where the norm is not centred.
        """


class ColumnBackend(ArrayBackend, Protocol):
    """The norms whose statistics are those of a channel: batch norm.

    They are centred, and their map is gamma * xhat + beta.
    """

    def saved(self, statistic: Any, x: Any) -> Any:
        """Return a new array of the dtype in which the statistics of x are returned."""

    def check_updatable(self, name: str, array: Any) -> None:
        """Raise unless running statistics can be updated in place."""

    def running_statistics(
        self, mean: Any, variance: Any, x: Any, layout: ColumnLayout, update: bool
    ) -> tuple[Any, Any]:
        """Return the running statistics for x, checked: the caller's own if they are updated."""

    def update_running(
        self, running: tuple[Any, Any], mean: Any, m2: Any, divisor: float, share: float
    ) -> None:
        """Move a running mean and variance towards the mean and m2 / divisor of a new batch."""

    def column_moments(self, x: Any, layout: ColumnLayout) -> tuple[int, Any, Any]:
        """Return (count, mean, m2) of each channel.

        Nobody but this backend looks into mean and m2.
        """

    def streamed_moments(
        self, x: Any, layout: ColumnLayout, after: tuple[int, Any, Any] | None
    ) -> tuple[int, Any, Any]:
        """Return `column_moments` for the caller, in arrays of the library of x, of float64.

        They go on from those of the chunks before, `after`, whose arrays are checked here.
        """

    def merged_moments(
        self, mean: Any, moments: tuple[int, Any, Any], other: tuple[int, Any, Any]
    ) -> tuple[Any, Any]:
        """Return mean and m2 of two sets of the caller's moments, of which none is empty.

        `mean` is that of the first as this backend's own kind of array; the rest is checked here.
        """

    def variance(self, m2: Any, divisor: int) -> Any:
        """Return the caller's m2 over a number."""

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
        """Return x normalized by the given statistics of each channel, and rstd.

        That is 1 / sqrt(m2 / divisor + eps): 0 for a division by 0, NaN outside float64's range.
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
    ) -> tuple[Any, Any, Any]:
        """Return dx, dgamma, dbeta."""


class RecurrentBackend(ArrayBackend, Protocol):
    """Recurrent cells, and what a stack of them does between its layers."""

    def step_statistics(self, name: str, value: Any, x: Any, update: bool) -> Any:
        """Return running statistics of any shape for x: the caller's own if they are updated."""

    def share_memory(self, one: Any, other: Any) -> bool:
        """Return whether two arrays of `step_statistics` share memory."""

    def as_like(self, name: str, value: Any, x: Any) -> Any:
        """Return an array of a supported float dtype that must lie where x does."""

    def pack_padded(self, x: Any, layout: SequenceLayout, batch_first: bool, like: Any) -> Any:
        """Return the rows of padded sequences, in the dtype that x is computed in.

        That is the one of `like`, rows already, unless that is None. A single step may lack its
        axis of time.
        """

    def pad_packed(
        self, rows: Any, start: int, layout: SequenceLayout, batch_first: bool, x: Any, dtype: Any
    ) -> Any:
        """Return the caller's array of all sequences, with zeros where there is no row.

        The rows, as wide as they may be but else like those of x, begin at one of an array.
        """

    def cell_state(self, name: str, value: Any, shape: Shape, x: Any) -> Any:
        """Return a new array of a state, checked, of the dtype of x; None stands for 0."""

    def sort_states(self, states: Any, layout: SequenceLayout) -> Any:
        """Return the states of the order of a layout; they may be the very same."""

    def unsort_states(
        self, states: Any, indices: Any, given: Any, layout: SequenceLayout, dtype: Any
    ) -> Any:
        """Return the caller's array of the states of the whole batch.

        Those of the order are at so many `indices` of an array, None if that is all of it; an empty
        sequence's is the one it was given.
        """

    def cell_parameter(self, name: str, value: Any, x: Any, check: Callable[[Shape], None]) -> Any:
        """Return a parameter in the dtype of x, C-contiguous, its shape checked."""

    def packed_like(self, beside: Any, dtype: Any) -> Any:
        """Return an array, of any content, like the rows of the x that parameters are packed for.

        It lies where another one does; `dtype` is NumPy's, that of x before it is `working`.
        """

    def copied_parameter(self, name: str, value: Any, x: Any) -> Any:
        """Return a copy of a parameter, the caller's array of its own dtype, where x lies."""

    def check_packed(self, parameter: Any, x: Any) -> None:
        """Raise unless a parameter, packed by this backend, lies where x does."""

    def zoneout_mask(self, share: Any, layout: SequenceLayout, width: int, x: Any) -> Any:
        """Return what each step keeps of each element of a state, as `cell_forward` takes it.

        It is one share of all, or a NumPy array (time, batch, width) of them.
        """

    def parameter_gradient(self, name: str, gradient: Any, parameter: Any, x: Any) -> Any:
        """Return a gradient in the shape and dtype of the caller's parameter."""

    def to_time_major(self, x: Any, batch_first: bool) -> Any:
        """Return x as the caller's array, time and batch swapped if the batch comes first."""

    def concatenate(self, arrays: Sequence[Any]) -> Any:
        """Return arrays, whose last axes alone differ, as one.

        This and what follows takes and returns arrays as the functions of cells return them.
        """

    def split(self, array: Any, widths: Sequence[int]) -> list[Any]:
        """Return the arrays of these widths that stand side by side in one."""

    def as_mask(self, mask: Any, array: Any) -> Any:
        """Return a NumPy array of bool as `apply_mask` takes it with arrays that lie where one does."""

    def apply_mask(self, array: Any, mask: Any, factor: float) -> Any:
        """Return a new array: times the factor where the mask is true, times 0 elsewhere."""

    def add(self, one: Any, other: Any) -> Any:
        """Return the sum of two arrays, rounded once."""

    def working(self, x: Any) -> Any:
        """Return an array in the dtype that it is computed in, C-contiguous."""

    def cell_weights(
        self, spec: CellSpec, given: Any, ada_scale: float, ada_k: float, keep: bool
    ) -> Any:
        """Return the parameters of a recurrent cell, in the dtype of its x, for `cell_forward`.

        They have the fields of that cell's parameters in `numnorm.rnn`. If they will be kept for
        several calls, what follows from them alone is done now.
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
    ) -> tuple[tuple[Any, ...], Any]:
        """Return the history of each state, those given first, and what the backward pass needs.

        x has the rows of all steps. With zoneout, so do the `zoneout_masks`: the share of each element
        of each state that a step keeps. If nothing is saved, only the history of h is whole;
        of the others there are the last ones.
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
    ) -> CellGradients:
        """Return all gradients, from those of every state h and of the last states.

        `dstates` become those of the first ones.
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
        """Return what `cell_forward` does, the history of both states whole, with batch norm.

        All sequences that have a step are normalized together. The parameters are in the dtype of
        x; of running statistics there are those of every place of the form, or none.
        """

    def batch_cell_backward(self, saved: Any, dy: Any, dstates: tuple[Any, ...]) -> CellGradients:
        """Return what `cell_backward` does, from what `batch_cell_forward` has saved."""


class Backend(RowBackend, ColumnBackend, RecurrentBackend, Protocol):
    """A backend that offers all three."""
