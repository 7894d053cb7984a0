"""What a recurrent cell hands to a backend: its form, and the layout of its sequences."""

import dataclasses
from contextvars import ContextVar
from typing import Any, NamedTuple

from numnorm.backends.contract.norms import Norm

# Whether the caller asks a device to take all steps of a cell in one kernel.
wants_persistent_kernels: ContextVar[bool] = ContextVar("wants_persistent_kernels", default=False)


class LSTMSpec(NamedTuple):
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
    norm_each_product: bool
    separate: bool
    cell: Norm | None
    carries_normalized: bool
    zoneout: bool = False

    def sites(self, hidden: int) -> dict[str, int]:
        """Return where there is a norm, as the parameters are named, and of how many features."""
        found = {"x": 4 * hidden} if self.norm_each_product else {}
        if self.gates is not None:
            found["h"] = 4 * hidden
        return found | {"c": hidden}

    @property
    def name(self) -> str:
        """Names the compiled kernels in the cache."""
        choices = self.norm_each_product, self.separate, self.carries_normalized, self.zoneout
        return f"{_name(self.gates)}.{_name(self.cell)}.{_digits(choices)}"


class GRUSpec(NamedTuple):
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


class RNNSpec(NamedTuple):
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


CellSpec = LSTMSpec | GRUSpec | RNNSpec


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


class PackedSteps(NamedTuple):
    """Which rows belong to which step of a batch of sequences, the longer ones first.

    Attributes
    ----------
    starts, counts : array of int64
        Where each step's rows begin, and how many they are: the first of the step before.
    """

    offsets: Any
    batch_sizes: Any


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
    indices: Any
    steps: PackedSteps
    last: Any

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.time * self.batch if self.indices is None else len(self.indices)

    def rows(self, array: Any) -> Any:
        """Return the rows of a NumPy array (time, batch, width)."""
        flat = array.reshape(self.time * self.batch, array.shape[-1])
        return flat if self.indices is None else flat[self.indices]
