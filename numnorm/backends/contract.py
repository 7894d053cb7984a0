"""What a norm hands to a backend, and what a backend must offer."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from numnorm.arguments import ColumnLayout, RowLayout, Shape


class Names(NamedTuple):
    """What a norm's arguments are called, for messages."""

    x: str = "x"
    dy: str = "dy"
    rstd: str = "rstd"
    gamma: str = "gamma"


_DEFAULT_NAMES = Names()


@dataclasses.dataclass(frozen=True, eq=False)
class Formula:
    """What a kernel is made from; norms with one formula share their kernels.

    The statistics are those of a row or column: mean and squared deviations or, if it is not
    centred, the squares alone. The gradients of gamma and beta are ``sum(dy * xhat)`` and
    ``sum(dy)``; a formula that needs others needs another kernel.

    Parameters
    ----------
    name : str
        Names the compiled kernels in the cache.
    centred : bool
        Whether the mean is subtracted.
    forward : callable
        ``forward(xhat, gamma, beta)``, the map of the normalized value, a plain scalar function.
    backward : callable
        ``backward(dy, xhat, gamma, beta)``, the gradient with respect to `xhat`.
    """

    name: str
    centred: bool
    forward: Callable[..., Any]
    backward: Callable[..., Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Norm:
    """A norm: a formula, and what its arguments are.

    Parameters
    ----------
    formula : Formula
        Which statistics it uses, and its map of the normalized value.
    parameters : int
        How many learned parameters it has: 1 (gamma), 2 (gamma and beta), or 0: then gamma and
        beta are numbers, the norm's own.
    names : Names
        What its arguments are called where they are not called that.
    """

    formula: Formula
    parameters: int
    names: Names = _DEFAULT_NAMES


@dataclasses.dataclass(frozen=True, eq=False)
class Scaling:
    """How a row's scale follows from its squares: the denominator and both places of epsilon."""

    eps: float
    eps_on_deviation: float = 0.0
    ddof: int = 0

    @property
    def of_nothing(self) -> float:
        """The statistics of a row without elements: sums of nothing, over 0 or over a number."""
        return 0.0 if self.ddof < 0 else math.nan


@functools.lru_cache(maxsize=1024)
def scaling_by(eps: float, eps_on_deviation: float = 0.0, ddof: int = 0) -> Scaling:
    """Return the one `Scaling` of these numbers, which is a fast key."""
    return Scaling(eps, eps_on_deviation, ddof)


class Detached(NamedTuple):
    """Which statistics are constants in the backward pass."""

    mean: bool = False
    scale: bool = False


class LSTMForm(NamedTuple):
    """Where an LSTM is normalized, and how.

    Attributes
    ----------
    gates : Norm or None
        The norm of what enters the gates.
    by_product : bool
        Whether it is taken of the product with x and of that with the state, each by itself;
        else of their sum.
    separate : bool
        Whether it is taken of each gate; else of all gates as one row.
    cell : Norm or None
        The norm of the cell, on its way to the state.
    carries_normalized : bool
        Whether the next step is handed the normalized cell.
    zoneout : bool
        Whether a step keeps a share of each element of the state and the cell before it.
    """

    gates: Norm | None
    by_product: bool
    separate: bool
    cell: Norm | None
    carries_normalized: bool
    zoneout: bool = False

    def places(self, hidden: int) -> dict[str, int]:
        """Return where there is a norm, as the parameters are named, and of how many features."""
        found = {"x": 4 * hidden} if self.by_product else {}
        if self.gates is not None:
            found["h"] = 4 * hidden
        return found | {"c": hidden}

    @property
    def name(self) -> str:
        """Names the compiled kernels in the cache."""
        choices = self.by_product, self.separate, self.carries_normalized, self.zoneout
        return f"{_name(self.gates)}.{_name(self.cell)}.{_digits(choices)}"


class GRUForm(NamedTuple):
    """How a gated recurrent unit is normalized.

    Attributes
    ----------
    norm : Norm or None
        That of the products with x and with the state, each by itself: of both gates as one row,
        and of the rest.
    zoneout : bool
        As for an LSTM.
    """

    norm: Norm | None
    zoneout: bool = False

    @property
    def name(self) -> str:
        """Names the compiled kernels in the cache."""
        return f"{_name(self.norm)}.{_digits((self.zoneout,))}"


class RNNForm(NamedTuple):
    """How a plain recurrent network is normalized.

    Attributes
    ----------
    norm : Norm or None
        That of the sum of both products.
    rectified : bool
        Whether the state is the positive part of what enters it, else its tanh.
    zoneout : bool
        As for an LSTM.
    """

    norm: Norm | None
    rectified: bool
    zoneout: bool = False

    @property
    def name(self) -> str:
        """Names the compiled kernels in the cache."""
        return f"{_name(self.norm)}.{_digits((self.rectified, self.zoneout))}"


CellForm = LSTMForm | GRUForm | RNNForm


def _name(norm: Norm | None) -> str:
    return "none" if norm is None else norm.formula.name


def _digits(choices: tuple[bool, ...]) -> str:
    return "".join(str(int(choice)) for choice in choices)


class CellGradients(NamedTuple):
    """What the backward pass of a recurrent cell returns.

    Attributes
    ----------
    dx : array (rows, I)
    states : tuple of array (batch, H)
        The gradients of the first states.
    parameters : dict
        Those of all parameters that the form may have, by name; float64 or the working dtype.
    """

    dx: Any
    states: tuple[Any, ...]
    parameters: dict[str, Any]


class Steps(NamedTuple):
    """Which rows belong to which step of a batch of sequences, the longer ones first.

    Attributes
    ----------
    starts, counts : array of int64
        Where each step's rows begin, and how many they are: the first of the step before.
    """

    starts: Any
    counts: Any


class RunningSteps(NamedTuple):
    """The running statistics of one place in a cell, a row a step, and what a call does with them.

    Attributes
    ----------
    mean, variance : array (S, features)
        As `step_statistics` returned them.
    training : bool
        Whether they are updated; else they are read, and beyond their last step those of the last.
    share : float
        What a new batch gets.
    ddof : int
        1 where the variance is unbiased.
    first : int
        The step that the first one of the call is.
    """

    mean: Any
    variance: Any
    training: bool
    share: float
    ddof: int
    first: int


@dataclasses.dataclass(frozen=True, eq=False)
class SequenceLayout:
    """Which rows a batch of sequences of any lengths is: step by step, the longer ones first.

    The arrays are NumPy's, for every backend.

    Attributes
    ----------
    time, batch : int
        The shape of the padded array.
    order : array of int or None
        The sequences that are not empty, longest first; None if that is all, in turn.
    places : array of int or None
        Each row's place in an array (time, batch), as one index; None if that is all, in turn.
    steps : Steps
    last : array of int
        The row of the last step of each sequence of the order.
    """

    time: int
    batch: int
    order: Any
    places: Any
    steps: Steps
    last: Any

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.time * self.batch if self.places is None else len(self.places)

    def rows(self, array: Any) -> Any:
        """Return the rows of a NumPy array (time, batch, width)."""
        flat = array.reshape(self.time * self.batch, array.shape[-1])
        return flat if self.places is None else flat[self.places]


class Backend(Protocol):
    """The functions of a backend's package; arrays are of that backend's own type.

    Every `x` has been through `as_float_array`. The norm of the column functions is centred, and
    its map is gamma * xhat + beta.
    """

    def as_float_array(self, name: str, value: Any) -> Any:
        """Return an array of a supported float dtype; integers and bool become float64."""

    def saved(self, statistic: Any, x: Any) -> Any:
        """Return a new array of the dtype in which the statistics of x are returned."""

    def reciprocal(self, name: str, value: Any, x: Any, layout: RowLayout) -> Any:
        """Return 1 over a saved statistic of each row of x, and 0 for 0, for `row_backward`."""

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

    def step_statistics(self, name: str, value: Any, x: Any, update: bool) -> Any:
        """Return running statistics of any shape for x: the caller's own if they are updated."""

    def share_memory(self, one: Any, other: Any) -> bool:
        """Return whether two arrays of `step_statistics` share memory."""

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

    def companion(self, name: str, value: Any, x: Any) -> Any:
        """Return an array of a supported float dtype that must lie where x does."""

    def sequence_rows(self, x: Any, layout: SequenceLayout, batch_first: bool, like: Any) -> Any:
        """Return the rows of padded sequences, in the dtype that x is computed in.

        That is the one of `like`, rows already, unless that is None. A single step may lack its
        axis of time.
        """

    def padded(
        self, rows: Any, start: int, layout: SequenceLayout, batch_first: bool, x: Any, dtype: Any
    ) -> Any:
        """Return the caller's array of all sequences, with zeros where there is no row.

        The rows, as wide as they may be but else like those of x, begin at one of an array.
        """

    def cell_state(self, name: str, value: Any, shape: Shape, x: Any) -> Any:
        """Return a new array of a state, checked, of the dtype of x; None stands for 0."""

    def ordered(self, states: Any, layout: SequenceLayout) -> Any:
        """Return the states of the order of a layout; they may be the very same."""

    def restored(
        self, states: Any, places: Any, given: Any, layout: SequenceLayout, dtype: Any
    ) -> Any:
        """Return the caller's array of the states of the whole batch.

        Those of the order are at so many `places` of an array, None if that is all of it; an empty
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

    def cell_keep(self, share: Any, layout: SequenceLayout, width: int, x: Any) -> Any:
        """Return what each step keeps of each element of a state, as `cell_forward` takes it.

        It is one share of all, or a NumPy array (time, batch, width) of them.
        """

    def parameter_gradient(self, name: str, gradient: Any, parameter: Any, x: Any) -> Any:
        """Return a gradient in the shape and dtype of the caller's parameter."""

    def time_first(self, x: Any, batch_first: bool) -> Any:
        """Return x as the caller's array, time and batch swapped if the batch comes first."""

    def side_by_side(self, arrays: Sequence[Any]) -> Any:
        """Return arrays, whose last axes alone differ, as one.

        This and what follows takes and returns arrays as the functions of cells return them.
        """

    def split(self, array: Any, widths: Sequence[int]) -> list[Any]:
        """Return the arrays of these widths that stand side by side in one."""

    def mask_beside(self, mask: Any, array: Any) -> Any:
        """Return a NumPy array of bool as `masked` takes it with arrays that lie where one does."""

    def masked(self, array: Any, mask: Any, factor: float) -> Any:
        """Return a new array: times the factor where the mask is true, times 0 elsewhere."""

    def added(self, one: Any, other: Any) -> Any:
        """Return the sum of two arrays, rounded once."""

    def working(self, x: Any) -> Any:
        """Return an array in the dtype that it is computed in, C-contiguous."""

    def cell_weights(
        self, form: CellForm, given: Any, ada_scale: float, ada_k: float, keep: bool
    ) -> Any:
        """Return the parameters of a recurrent cell, in the dtype of its x, for `cell_forward`.

        They have the fields of that cell's parameters in `numnorm.rnn`. If they will be kept for
        several calls, what follows from them alone is done now.
        """

    def cell_forward(
        self,
        form: CellForm,
        scaling: Scaling,
        x: Any,
        steps: Steps,
        weights: Any,
        states: tuple[Any, ...],
        keeps: tuple[Any, ...],
        save: bool,
    ) -> tuple[tuple[Any, ...], Any]:
        """Return the history of each state, those given first, and what the backward pass needs.

        x has the rows of all steps. With zoneout, so do the `keeps`: the share of each element
        of each state that a step keeps. If nothing is saved, only the history of h is whole;
        of the others there are the last ones.
        """

    def cell_backward(
        self,
        form: CellForm,
        scaling: Scaling,
        x: Any,
        steps: Steps,
        weights: Any,
        saved: Any,
        keeps: tuple[Any, ...],
        dy: Any,
        dstates: tuple[Any, ...],
    ) -> CellGradients:
        """Return all gradients, from those of every state h and of the last states.

        `dstates` become those of the first ones.
        """

    def batch_cell_forward(
        self,
        form: LSTMForm,
        eps: float,
        x: Any,
        steps: Steps,
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
