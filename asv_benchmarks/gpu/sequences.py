"""The cases of recurrent cells: an LSTM with layer norms, over whole sequences."""

from __future__ import annotations

from typing import NamedTuple

from peers import cases as peers_cases

# Steps, sequences, and units, with as many inputs as units.
SEQUENCES = ((100, 32, 256), (60, 64, 512), (500, 8, 400), (256, 128, 1024))


class SequenceCase(NamedTuple):
    """One call.

    Attributes
    ----------
    cell, direction, dtype : str
        Such as "ln_lstm", "forward" or "forward and backward", "float32".
    steps, batch, units : int
        The shape of the states.
    """

    cell: str
    direction: str
    dtype: str
    steps: int
    batch: int
    units: int

    @property
    def launches(self) -> int:
        """The number of calls that are timed together."""
        return 3

    @property
    def name(self) -> str:
        """The name for tables and messages."""
        return f"{self.cell} {self.direction} {self.dtype} {self.shape}"

    @property
    def shape(self) -> str:
        """The shape of the states, in words."""
        return f"{self.steps}×{self.batch}×{self.units}"

    @property
    def as_peers_case(self) -> peers_cases.Case:
        """The case as one of the definition."""
        shape = (self.steps, self.batch, self.units, self.units)
        return peers_cases.Case(self.cell, self.direction, shape, self.dtype)


def all_sequences(quick: bool) -> list[SequenceCase]:
    """Return the cases of recurrent cells; a few of them if `quick`."""
    directions = ("forward", "forward and backward")
    shapes = SEQUENCES[:1] if quick else SEQUENCES
    return [
        SequenceCase("ln_lstm", way, "float32", *shape) for way in directions for shape in shapes
    ]
