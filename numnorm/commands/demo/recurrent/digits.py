"""A classifier that reads handwritten digits row by row: 8 steps of 8 pixels."""

from __future__ import annotations

from typing import Any

import numpy as np

from numnorm.commands.demo.layers import Array, Parameters
from numnorm.commands.demo.losses import cross_entropy
from numnorm.commands.demo.recurrent.cells import Lstm
from numnorm.commands.demo.recurrent.linear import Linear

ROWS = 8
SHORTEST = 3
"""The smallest number of rows of a shortened image."""


def shortened(count: int, rng: np.random.Generator) -> Array:
    """Return the number of remaining rows of `count` images, from `SHORTEST` to all."""
    return rng.integers(SHORTEST, ROWS + 1, count)


class Reader:
    """An LSTM over the rows of an image, and a linear classifier of its last state.

    Parameters
    ----------
    norm : str
        The norm of the LSTM, a row of the tables.
    hidden : int
        The number of its units.
    rng : numpy.random.Generator
        The source of the initial weights.
    dtype : dtype
        The dtype of weights and states.
    """

    def __init__(
        self, norm: str, hidden: int, rng: np.random.Generator, dtype: Any = np.float32
    ) -> None:
        self.parameters = Parameters(Lstm.room(ROWS, hidden) + Linear.room(hidden, 10), dtype)
        self.cell = Lstm(norm, ROWS, hidden, ROWS, self.parameters, rng)
        self.classifier = Linear(hidden, 10, self.parameters, rng)

    def scores(self, images: Array, lengths: Array, training: bool = False) -> Array:
        """Return the scores of all classes for each image, reading its first `lengths` rows."""
        x = images.reshape(-1, ROWS, ROWS).swapaxes(0, 1)
        self._y, h, _ = self.cell.forward(x, lengths=lengths, training=training)
        return self.classifier.forward(h)

    def gradients(self, images: Array, labels: Array, lengths: Array) -> float:
        """Store the gradients of the mean cross-entropy over a batch, and return it."""
        loss, dscores = cross_entropy(self.scores(images, lengths, training=True), labels)
        self.cell.backward(np.zeros_like(self._y), self.classifier.backward(dscores))
        return loss

    def error(self, images: Array, labels: Array, lengths: Array, **options: Any) -> Array:
        """Return 100 for each image that is classified wrongly, so that the mean is in percent."""
        wrong = self.scores(images, lengths, **options).argmax(axis=1) != labels
        return np.where(wrong, 100.0, 0.0)
