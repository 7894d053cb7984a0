"""Walks around a square: a network reads two points and predicts the next two."""

from __future__ import annotations

from typing import Any

import numpy as np

import numnorm
from numnorm.commands.demo.layers import Array, LayerNorm, Parameters
from numnorm.commands.demo.losses import squared_error
from numnorm.commands.demo.recurrent.cells import Lstm
from numnorm.commands.demo.recurrent.linear import Linear

NOISE = 0.1
TRAINING, VALIDATION = (256, 13), (128, 17)
"""The number of sequences, and their seed."""
POINTS, GIVEN = 4, 2

_SQUARE = np.array([[-1, -1], [-1, 1], [1, 1], [1, -1]])


def walks(count: int, seed: int) -> Array:
    """Return walks around the square, from any corner, in either direction, with noise.

    Parameters
    ----------
    count : int
        Their number.
    seed : int
        The seed of the random numbers.

    Returns
    -------
    ndarray (count, 4, 2)
        The points of each.
    """
    # The published sequences of these seeds come from this old generator, drawn in this order.
    random = np.random.RandomState(seed)
    starts, forwards = random.randint(4, size=count), random.randint(2, size=count)
    corners = _SQUARE[(starts[:, None] + np.arange(POINTS)) % 4]
    corners = np.where(forwards[:, None, None] == 1, corners, corners[:, ::-1])
    points: Array = corners + NOISE * random.standard_normal((count, POINTS, 2))
    return points.astype(np.float32)


class Walker:
    """An encoder and a decoder, both LSTMs.

    The points are projected to `width` numbers (a layer norm of two coordinates would only say
    which is larger), multiplied by the square root of the width, added to the positional encoding
    and layer-normalized, with every norm. The encoder reads the given points. The decoder starts
    from the encoder's last state and cell and reads the last given point; then it reads the point
    before the one to predict: the true one in training, its own prediction in validation.

    Parameters
    ----------
    norm : str
        The norm of the LSTMs, a row of the tables.
    width, hidden : int
        The size of a projected point, and the number of units of each LSTM.
    rng : numpy.random.Generator
        The source of the initial weights.
    dtype : dtype
        The dtype of weights and states.
    """

    def __init__(
        self, norm: str, width: int, hidden: int, rng: np.random.Generator, dtype: Any = np.float32
    ) -> None:
        size = Linear.room(2, width) + 2 * width + 2 * Lstm.room(width, hidden)
        self.parameters = Parameters(size + Linear.room(hidden, 2), dtype)
        self.projection = Linear(2, width, self.parameters, rng)
        self.layer_norm = LayerNorm(width, self.parameters)
        self.encoder = Lstm(norm, width, hidden, GIVEN, self.parameters, rng)
        self.decoder = Lstm(norm, width, hidden, POINTS - GIVEN, self.parameters, rng)
        self.readout = Linear(hidden, 2, self.parameters, rng)
        self._scale = self.parameters.values.dtype.type(np.sqrt(width))
        self._positions = numnorm.positional_encoding(POINTS, width, dtype=dtype)[:, None]

    def encoded(self, points: Array) -> Array:
        """Return the projected points (T, B, 2) with their positions, not yet normalized."""
        encoded: Array = self.projection.forward(points) * self._scale
        encoded += self._positions[: len(points)]
        return encoded

    def told(self, points: Array, training: bool = False) -> Array:
        """Return a predicted point for each point that the decoder reads.

        Parameters
        ----------
        points : ndarray (T, B, 2)
            The given points, and those that only the decoder reads.
        training : bool
            As for the cells.

        Returns
        -------
        ndarray (T - 1, B, 2)
            The points.
        """
        x = self.layer_norm.forward(self.encoded(points), training)
        _, h, c = self.encoder.forward(x[:GIVEN], training=training)
        y, _, _ = self.decoder.forward(x[GIVEN - 1 :], h, c, training=training)
        return self.readout.forward(y)

    def gradients(self, walks: Array) -> float:
        """Store the gradients of the mean squared error over a batch, and return it."""
        points = walks.swapaxes(0, 1)
        predicted = self.told(points[:-1], training=True)
        loss, dpredicted = squared_error(predicted, points[GIVEN:])
        dread, dh, dc = self.decoder.backward(self.readout.backward(dpredicted))
        # Only the last state of the encoder is used.
        dy = np.zeros((GIVEN, *dh.shape), dh.dtype)
        dgiven, _, _ = self.encoder.backward(dy, dh, dc)
        dx = np.zeros((len(points) - 1, *dread.shape[1:]), dread.dtype)
        dx[:GIVEN] += dgiven
        dx[GIVEN - 1 :] += dread
        self.projection.backward(self.layer_norm.backward(dx) * self._scale)
        return loss

    def error(self, walks: Array, **options: Any) -> Array:
        """Return the mean squared error of each walk, predicted without the true points."""
        points = walks.swapaxes(0, 1)
        known = points[:GIVEN]
        while len(known) < POINTS:
            known = np.concatenate([points[:GIVEN], self.told(known, **options)])
        error: Array = ((known[GIVEN:] - points[GIVEN:]) ** 2).mean(axis=(0, 2))
        return error
