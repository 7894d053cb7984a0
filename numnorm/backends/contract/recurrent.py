"""The description of a recurrent cell for a backend: its spec and the layout of its sequences."""

import dataclasses
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

from numnorm.backends.contract.norms import Norm

# Whether one persistent kernel may take all steps of a cell.
may_persist: ContextVar[bool] = ContextVar("may_persist", default=True)


class LSTMSpec(NamedTuple):
    """The normalization and zoneout of an LSTM.

    Attributes
    ----------
    gates : Norm or None
        The norm of the gates before their activations.
    norm_each_product : bool
        Whether it normalizes the products with x and with the state separately, else their sum.
    separate : bool
        Whether it normalizes each gate separately, else all gates as one row.
    cell : Norm or None
        The norm of the cell before the tanh that gives the state.
    carries_normalized : bool
        Whether the next step gets the normalized cell.
    zoneout : bool
        Whether a step keeps a part of each element of the previous state and cell.
    recurrent_dropout : bool
        Whether the product with the state has a dropout mask.
    projected : bool
        Whether the state is a projection of the H units' outputs.
    """

    gates: Norm | None
    norm_each_product: bool
    separate: bool
    cell: Norm | None
    carries_normalized: bool
    zoneout: bool = False
    recurrent_dropout: bool = False
    projected: bool = False

    def sites(self, hidden: int) -> dict[str, int]:
        """Return the number of features of each norm, by the letter in its parameters' names."""
        sizes = {"x": 4 * hidden} if self.norm_each_product else {}
        if self.gates is not None:
            sizes["h"] = 4 * hidden
        return sizes | {"c": hidden}

    @property
    def name(self) -> str:
        """Part of the names of compiled kernels in the cache."""
        form = _digits((self.norm_each_product, self.separate, self.carries_normalized))
        others = _digits((self.zoneout, self.recurrent_dropout, self.projected))
        return f"{_name(self.gates)}.{_name(self.cell)}.{form}{others}"


class GRUSpec(NamedTuple):
    """The normalization, reset gate and zoneout of a gated recurrent unit.

    Attributes
    ----------
    norm : Norm or None
        The norm of the products with x and with the state, separately. In each of them, both gates
        are one row and the candidate is another.
    zoneout : bool
        As for an LSTM.
    reset_after : bool
        Whether the reset gate scales the candidate's product with the state, else the state itself.
    recurrent_dropout : bool
        As for an LSTM.
    """

    norm: Norm | None
    zoneout: bool = False
    reset_after: bool = True
    recurrent_dropout: bool = False

    @property
    def name(self) -> str:
        """Part of the names of compiled kernels in the cache."""
        choices = self.zoneout, self.reset_after, self.recurrent_dropout
        return f"{_name(self.norm)}.{_digits(choices)}"


class RNNSpec(NamedTuple):
    """The normalization, activation and zoneout of a plain recurrent network.

    Attributes
    ----------
    norm : Norm or None
        The norm of the sum of both products.
    rectified : bool
        Whether the activation is ReLU, else tanh.
    zoneout, recurrent_dropout : bool
        As for an LSTM.
    """

    norm: Norm | None
    rectified: bool
    zoneout: bool = False
    recurrent_dropout: bool = False

    @property
    def name(self) -> str:
        """Part of the names of compiled kernels in the cache."""
        return (
            f"{_name(self.norm)}.{_digits((self.rectified, self.zoneout, self.recurrent_dropout))}"
        )


CellSpec = LSTMSpec | GRUSpec | RNNSpec


def _name(norm: Norm | None) -> str:
    return "none" if norm is None else norm.formula.name


def _digits(choices: tuple[bool, ...]) -> str:
    return "".join(str(int(choice)) for choice in choices)


# A function of a step ``step(x, states)``: the new states, or None if it is busy.
Step = Callable[[Any, tuple[Any, ...]], tuple[Any, ...] | None]


class CellGradients(NamedTuple):
    """The result of the backward pass of a recurrent cell.

    Attributes
    ----------
    dx : array (rows, I)
    states : tuple of array (batch, H)
        The gradients of the initial states.
    parameters : dict
        The gradients of all parameters that the spec may have, by name; float64 or compute dtype.
    """

    dx: Any
    states: tuple[Any, ...]
    parameters: dict[str, Any]


class PackedSteps(NamedTuple):
    """The packed rows of each step of a batch of sequences, longest sequence first.

    Attributes
    ----------
    offsets : array of int64
        The first row of each step.
    batch_sizes : array of int64
        The number of rows of each step: a prefix of the sequences of the previous step.
    """

    offsets: Any
    batch_sizes: Any


class RunningSteps(NamedTuple):
    """The running statistics of one site of a cell, with one row per step.

    Attributes
    ----------
    mean, variance : array (S, features)
        As `step_statistics` returned them.
    training : bool
        Whether a call updates them, else reads them. Steps after the last row read the last row.
    share : float
        The weight of a new batch in an update.
    ddof : int
        1 if the variance is unbiased, else 0.
    first : int
        The row of the call's first step.
    """

    mean: Any
    variance: Any
    training: bool
    momentum: float
    ddof: int
    first: int


@dataclasses.dataclass(frozen=True, eq=False)
class SequenceLayout:
    """The packed rows of a batch of sequences: step by step, longest sequence first.

    The arrays are NumPy arrays for every backend.

    Attributes
    ----------
    time, batch : int
        The shape of the padded array.
    order : array of int or None
        The nonempty sequences, longest first; None if these are all sequences as they stand.
    indices : array of int or None
        The flat index of each row in a padded array (time, batch); None for an identity.
    steps : PackedSteps
    last : array of int
        The row of the last step of each sequence, in this order.
    """

    time: int
    batch: int
    order: Any
    indices: Any
    steps: PackedSteps
    last: Any

    @property
    def count(self) -> int:
        """The number of rows."""
        return self.time * self.batch if self.indices is None else len(self.indices)

    def rows(self, array: Any) -> Any:
        """Return the packed rows of a NumPy array (time, batch, width)."""
        flat = array.reshape(self.time * self.batch, array.shape[-1])
        return flat if self.indices is None else flat[self.indices]
