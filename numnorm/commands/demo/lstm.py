"""The LSTMs that ``numnorm demo lstm`` compares, each with all norms.

One reads handwritten digits row by row: 8 steps of 8 pixels. Another one reads two points of a walk
around a square and predicts the next two.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import numnorm
from numnorm import rnn
from numnorm.array_types import LSTMNorm
from numnorm.commands.demo.layers import (
    Array,
    LayerNorm,
    Linear,
    Parameters,
    cross_entropy,
    squared_error,
    wrong,
)
from numnorm.commands.demo.training import Network, Samples, Task, train

NORMS: dict[str, LSTMNorm | None] = {"none": None, "batch": "batch", "layer": "layer"}
"""The rows of the tables, and the norm of `rnn.lstm` in each."""


ROWS = 8
SHORTEST = 3
"""The smallest number of rows of a shortened image."""

NOISE = 0.1
TRAINING_WALKS = (256, 13)
VALIDATION_WALKS = (128, 17)
"""The number of walks, and their seed."""

POINTS = 4
GIVEN = 2
"""The number of points of a walk, and of those that are read."""

_SQUARE = np.array([[-1, -1], [-1, 1], [1, 1], [1, -1]])

DIGITS_HIDDEN = 64
CORNERS_WIDTH = 32
CORNERS_HIDDEN = 32


class Lstm:
    """An LSTM with one of the norms.

    Parameters
    ----------
    norm : str
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
        norm: str,
        inputs: int,
        hidden: int,
        steps: int,
        parameters: Parameters,
        rng: np.random.Generator,
    ) -> None:
        self._norm = NORMS[norm]
        dtype = parameters.values.dtype
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
        """Return 100 for each image that is classified wrongly."""
        return wrong(self.scores(images, lengths, **options), labels)


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
    starts = random.randint(4, size=count)
    forwards = random.randint(2, size=count)
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


def tasks(digits: tuple[Samples, Samples], epochs: int, seed: int) -> list[Task]:
    """Return all tasks.

    Parameters
    ----------
    digits : tuple
        Images and labels for training; images and labels for validation.
    epochs : int
        The number of passes over the digits in batches of 32. As small batches take longer, a
        sixth of the digits gets half as many passes in batches of 4, and a quarter one by one.
        The walks, which are few, get three times as many.
    seed : int
        The seed of the lengths of the shortened images.

    Returns
    -------
    list of Task
        The tasks.
    """
    rng = np.random.default_rng([seed, 0])
    training, validation = digits
    few = tuple(array[: len(array) // 6] for array in training)

    def whole(samples: Samples) -> Samples:
        return *samples, np.full(len(samples[0]), ROWS)

    def short(samples: Samples) -> Samples:
        return *samples, shortened(len(samples[0]), rng)

    def reader(norm: str, rng: np.random.Generator) -> Network:
        return Reader(norm, DIGITS_HIDDEN, rng)

    def walker(norm: str, rng: np.random.Generator) -> Network:
        return Walker(norm, CORNERS_WIDTH, CORNERS_HIDDEN, rng)

    training_walks = (walks(*TRAINING_WALKS),)
    validation_walks = (walks(*VALIDATION_WALKS),)
    half = -(-epochs // 2)
    quarter = -(-epochs // 4)
    images = whole(validation)
    return [
        Task("digits", "32 at a time", whole(training), images, 32, epochs, reader),
        Task("digits", "4 at a time", whole(few), images, 4, half, reader),
        Task("digits", "4 at a time, cut short", short(few), short(validation), 4, half, reader),
        Task("digits", "1 at a time", whole(few), images, 1, quarter, reader),
        Task("corners", "16 at a time", training_walks, validation_walks, 16, 3 * epochs, walker),
    ]


def first_step(name: str) -> None:
    """Train tiny networks for an epoch, so that the kernels of their cell are compiled."""
    rng = np.random.default_rng(0)
    pixels = rng.standard_normal((2, ROWS * ROWS), np.float32)
    images = pixels, np.zeros(2, int), np.full(2, ROWS)
    few_walks = (walks(2, 0),)
    for batch_size in (2, 1):
        next(train(Reader(name, 4, rng), images, images, batch_size, rng))
    next(train(Walker(name, 4, 4, rng), few_walks, few_walks, 2, rng))
