"""The recurrent cell to compare, with each norm: a row of the tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from numnorm import rnn
from numnorm.commands.demo.layers import Array, Parameters

NORMS: dict[str, str | None] = {"none": None, "batch": "batch", "layer": "layer"}
"""The rows of the tables, and the norm of `rnn.lstm` in each."""


class Lstm:
    """An LSTM with the norm of a row.

    Parameters
    ----------
    row : str
        Of `NORMS`.
    inputs, hidden : int
        The number of inputs and of units.
    steps : int
        How many steps the longest sequence has: batch norm has statistics of each.
    parameters : Parameters
        Where the trained numbers are taken from: `room` of them.
    rng : numpy.random.Generator
        The source of the initial weights; they are the same with every norm.
    """

    def __init__(
        self,
        row: str,
        inputs: int,
        hidden: int,
        steps: int,
        parameters: Parameters,
        rng: np.random.Generator,
    ) -> None:
        self._norm, dtype = NORMS[row], parameters.values.dtype
        first = rnn.lstm_init(inputs, hidden, rng=rng, norm=self._norm, dtype=dtype)
        values: dict[str, Array] = {}
        self._gradients: dict[str, Array] = {}
        for name, value in first._asdict().items():
            if value is not None:
                values[name], self._gradients[name] = parameters.take(*value.shape)
                values[name][:] = value
        self.parameters = rnn.LSTMParameters(**values)
        self.statistics = rnn.lstm_statistics_init(steps, hidden)

    @staticmethod
    def room(inputs: int, hidden: int) -> int:
        """Return the largest number of trained numbers of a cell; those not taken stay zero."""
        return 4 * hidden * (inputs + hidden + 5) + 2 * hidden

    def forward(
        self, x: Array, h: Any = None, c: Any = None, lengths: Any = None, training: bool = False
    ) -> tuple[Array, Array, Array]:
        """Return the states of all steps and the last state and cell, as `rnn.lstm` does.

        Parameters
        ----------
        x : ndarray (T, B, I)
            The inputs.
        h, c : ndarray (B, H), optional
            The first state and cell.
        lengths : ndarray of int (B,), optional
            How many steps each sequence has.
        training : bool
            Whether batch norm takes the statistics of the batch and has the running ones follow.

        Returns
        -------
        tuple of ndarray
            ``(y, h, c)``.
        """
        norm: Any = self._norm
        # With one sequence there is no variance that the running ones could follow.
        if norm == "batch" and not (training and x.shape[1] == 1):
            norm = rnn.RecurrentBatchNorm(self.statistics, training=training)
        y, h, c, self._saved = rnn.lstm_forward(
            x, self.parameters, h, c, norm=norm, lengths=lengths
        )
        return y, h, c

    def backward(self, dy: Array, dh: Any = None, dc: Any = None) -> tuple[Array, Array, Array]:
        """Return the gradients for x, h and c; store those of the parameters."""
        found = rnn.lstm_backward(dy, self._saved, dh, dc)
        for name, gradient in self._gradients.items():
            gradient[:] = getattr(found.parameters, name)
        return found.dx, found.dh, found.dc
