"""What the passes know about a kind of recurrent cell, and the arrays that they use."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.norms import Norm
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.recurrent.pass_arrays import Table
from numnorm.backends.cuda.recurrent.step_kernels import ReadBack, Results, StepKind


class Saved(NamedTuple):
    """The arrays that the forward pass writes and the backward pass reads, rows ordered by step.

    Attributes
    ----------
    z, xp : array (rows, gates * H)
        The products W_h h with the state and W_x x; their sum and None unless each has its norm.
    cell : array (rows, H) or None
        An LSTM's cell before its norm.
    history : tuple of array (batch + rows, H)
        For each state, the first states and then the states after every step.
    table : Table
        The statistics.
    outputs : array (rows, H) or None
        What an LSTM with projections projects. The history of h is then less wide.
    """

    z: Any
    xp: Any
    cell: Any
    history: tuple[Any, ...]
    table: Table
    outputs: Any = None


class ForwardArrays(NamedTuple):
    """The arrays of all forward steps besides weights, states and statistics.

    Attributes
    ----------
    xp : array (rows, gates * H)
        The products with x. Read, then overwritten with the sums of both products if these are
        saved.
    masks : tuple of array (rows, H) or None
        The zoneout masks, one for each state. Read.
    cell : array (rows, H) or None
        Written: an LSTM's cell before its norm.
    dropout : array (batch, H) or None
        The dropout mask of the states in their product. Read.
    outputs : array (rows, H) or None
        Written: what an LSTM with projections projects. If nothing is saved it holds one step,
        which the next overwrites.
    """

    xp: Any
    masks: tuple[Any, ...]
    cell: Any
    dropout: Any
    outputs: Any


class BackwardArrays(NamedTuple):
    """The arrays of all backward steps besides weights and the gradients of states.

    Attributes
    ----------
    saved : ReadBack
        The arrays of the forward pass. Read.
    masks : tuple of array (rows, H) or None
        The zoneout masks, one for each state. Read.
    dy : array (rows, H)
        The gradients of all outputs. Read.
    results : Results
        The gradients that the steps write.
    dropout : array (batch, H) or None
        The dropout mask of the states in their product. Read.
    projected : array (rows, P) or None
        Written: the gradients of the states of an LSTM with projections, over all their ways.
    """

    saved: ReadBack
    masks: tuple[Any, ...]
    dy: Any
    results: Results
    dropout: Any
    projected: Any


class SpecFacts(NamedTuple):
    """The facts about a cell's spec that the passes need, for any kind of cell.

    Attributes
    ----------
    norms : tuple of Norm or None
        The norm of the gates, and the other norm, as in `OfNorms`.
    norm_each_product : bool
        Whether the norm of the gates normalizes each product, else their sum.
    normalized : int
        The number of gates that it normalizes as one row.
    sites : int
        The number of sites in a row of the table of statistics.
    is_cell_apart : bool
        Whether the next step gets another cell than the one before the norm.
    other_sections : int
        The numbers for each unit in `Results.other`.
    """

    norms: tuple[Norm | None, Norm | None]
    norm_each_product: bool
    normalized: int
    sites: int
    is_cell_apart: bool = False
    other_sections: int = 0


@dataclasses.dataclass(frozen=True)
class CellKind:
    """A kind of cell.

    Parameters
    ----------
    step : StepKind
        Its device functions for a step.
    gates : int
        The number of gates of a unit.
    sizes : dict of int
        By name, the numbers for each unit of the parameters other than the weight matrices.
    facts_of : callable
        Returns `SpecFacts` of a spec.
    parameter_sums : callable
        Takes ``spec, x, saved, results`` and returns the gradients of biases and norms by name.
    past_every_step : bool
        Whether the new state depends on the old one also directly, not only through the product
        (and zoneout).
    """

    step: StepKind
    gates: int
    sizes: dict[str, int]
    facts_of: Callable[[Any], SpecFacts]
    parameter_sums: Callable[[Any, DeviceArray, Saved, Results], dict[str, Any]]
    past_every_step: bool = False
