"""The LSTM that the demo compares, with each norm: a row of the tables."""

from __future__ import annotations

from typing import Any

import numpy as np

from numnorm import rnn
from numnorm.array_types import LSTMNorm
from numnorm.commands.demo.layers import Array, Parameters

NORMS: dict[str, LSTMNorm | None] = {"none": None, "batch": "batch", "layer": "layer"}
"""The rows of the tables, and the norm of `rnn.lstm` in each."""


class Lstm:
    """An LSTM with the norm of a row.

    Parameters
    ----------
    row : str
        One of `NORMS`.
    inputs, hidden : int
        The number of inputs and of units.
    steps : int
        The number of steps of the longest sequence, each with its own statistics of batch norm.
    parameters : Parameters
        The vector that the trained numbers are part of: `room` of them.
    rng : numpy.random.Generator
        The source of the initial weights, which are the same for every norm.
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
        """Return the largest number of trained numbers of a cell; unused ones stay zero."""
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
            The number of steps of each sequence.
        training : bool
            Whether batch norm uses the statistics of the batch and updates the running ones.

        Returns
        -------
        tuple of ndarray
            ``(y, h, c)``.
        """
        norm: Any = self._norm
        # One sequence has no variance to update the running statistics with.
        if norm == "batch" and not (training and x.shape[1] == 1):
            norm = rnn.RecurrentBatchNorm(self.statistics, training=training)
        y, h, c, self._saved = rnn.lstm_forward(
            x, self.parameters, h, c, norm=norm, lengths=lengths
        )
        return y, h, c

    def backward(self, dy: Array, dh: Any = None, dc: Any = None) -> tuple[Array, Array, Array]:
        """Return the gradients of x, h and c; store those of the parameters."""
        gradients = rnn.lstm_backward(dy, self._saved, dh, dc)
        for name, gradient in self._gradients.items():
            gradient[:] = getattr(gradients.parameters, name)
        return gradients.dx, gradients.dh, gradients.dc
