"""The recurrent cells to compare: one class a row of the tables."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

import numnorm
from numnorm import rnn
from numnorm.commands.demo.layers import Array, Parameters


class PlainLstm:
    """An LSTM without normalization.

    Parameters
    ----------
    inputs, hidden : int
        The number of inputs and of units.
    parameters : Parameters
        Where the trained numbers are taken from: `room` of them.
    rng : numpy.random.Generator
        The source of the initial weights; they are the same for every cell.
    """

    norm: ClassVar[str | None] = None

    def __init__(
        self, inputs: int, hidden: int, parameters: Parameters, rng: np.random.Generator
    ) -> None:
        dtype = parameters.values.dtype
        first = rnn.lstm_init(inputs, hidden, rng=rng, norm=self.norm, dtype=dtype)
        values: dict[str, Array] = {}
        self._gradients: dict[str, Array] = {}
        for name, value in first._asdict().items():
            if value is not None:
                values[name], self._gradients[name] = parameters.take(*value.shape)
                values[name][:] = value
        self.parameters = rnn.LSTMParameters(**values)

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
            Whether statistics of batches are taken and followed, if the cell has any.

        Returns
        -------
        tuple of ndarray
            ``(y, h, c)``.
        """
        y, h, c, self.saved = rnn.lstm_forward(
            x, self.parameters, h, c, norm=self.norm, lengths=lengths
        )
        return y, h, c

    def backward(self, dy: Array, dh: Any = None, dc: Any = None) -> tuple[Array, Array, Array]:
        """Return the gradients for x, h and c; store those of the parameters."""
        found = rnn.lstm_backward(dy, self.saved, dh, dc)
        self._store(found.parameters)
        return found.dx, found.dh, found.dc

    def _store(self, gradients: rnn.LSTMParameters) -> None:
        for name, gradient in self._gradients.items():
            gradient[:] = getattr(gradients, name)


class LayerLstm(PlainLstm):
    """The LSTM of the layer-normalization paper."""

    norm = "layer"


class BatchLstm(PlainLstm):
    """An LSTM whose products W_x x are batch-normalized.

    As in the recurrent batch normalization of Cooijmans et al. 2017, but for the other products
    and the cell, which stay as they are: each step has statistics of its own, over the sequences
    that reach it, and all share a gain. There is no bias beside that of the gates.
    """

    def __init__(
        self, inputs: int, hidden: int, parameters: Parameters, rng: np.random.Generator
    ) -> None:
        super().__init__(inputs, hidden, parameters, rng)
        self.gain, self.dgain = parameters.take(4 * hidden)
        self.gain[:] = 1
        # The cell gets the normalized products themselves.
        self._through = np.eye(4 * hidden, dtype=self.gain.dtype)
        self._running: list[dict[str, Any]] = []

    def forward(
        self, x: Array, h: Any = None, c: Any = None, lengths: Any = None, training: bool = False
    ) -> tuple[Array, Array, Array]:
        """Return what the parent does, with the statistics of the batch or the running ones."""
        products = np.matmul(x, self.parameters.weight_x.T)
        normalized = np.zeros_like(products)
        self._steps = []
        for step, running in enumerate(self._running_of(len(x))):
            there = slice(None) if lengths is None else lengths > step
            # A step that a single sequence reaches has no unbiased variance.
            y, mean, rstd = numnorm.batch_norm_forward(
                products[step, there], self.gain, training=training, unbiased=False, **running
            )
            normalized[step, there] = y
            self._steps.append((there, products[step, there], mean, rstd))
        self._x = x
        y, h, c, self.saved = rnn.lstm_forward(
            normalized,
            self.parameters._replace(weight_x=self._through),
            h,
            c,
            norm=None,
            lengths=lengths,
        )
        return y, h, c

    def backward(self, dy: Array, dh: Any = None, dc: Any = None) -> tuple[Array, Array, Array]:
        """Return the gradients for x, h and c; store those of the parameters."""
        found = rnn.lstm_backward(dy, self.saved, dh, dc)
        dproducts = found.dx
        self.dgain[:] = 0
        for step, (there, products, mean, rstd) in enumerate(self._steps):
            dproducts[step, there], dgain, _ = numnorm.batch_norm_backward(
                dproducts[step, there], products, mean, rstd, self.gain
            )
            self.dgain += dgain
        rows = dproducts.reshape(-1, dproducts.shape[-1])
        dweight = np.matmul(rows.T, self._x.reshape(-1, self._x.shape[-1]))
        self._store(found.parameters._replace(weight_x=dweight))
        return np.matmul(dproducts, self.parameters.weight_x), found.dh, found.dc

    def _running_of(self, steps: int) -> list[dict[str, Any]]:
        """Return the running statistics of the first steps, made when a step is first seen."""
        while len(self._running) < steps:
            size = len(self.gain)
            self._running.append({"running_mean": np.zeros(size), "running_var": np.ones(size)})
        return self._running[:steps]


CELLS: dict[str, type[PlainLstm]] = {"none": PlainLstm, "batch": BatchLstm, "layer": LayerLstm}
"""The rows of the tables. A cell of one of numnorm's own norms needs two lines, as `LayerLstm`."""
