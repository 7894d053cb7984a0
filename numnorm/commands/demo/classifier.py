"""A small version of the digits classifier of the layer-normalization paper.

It has linear layers, ReLU between them and softmax cross-entropy. A norm is applied to the summed
inputs of every hidden layer, not to the logits. The gradients are written out: those of the norms
are numnorm's.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from numnorm.commands.demo.layers import (
    AdaNorm,
    Array,
    BatchNorm,
    LayerNorm,
    NoNorm,
    Norm,
    Parameters,
    RmsNorm,
    cross_entropy,
    wrong,
)
from numnorm.commands.demo.training import Samples, Task, train

NORMS: dict[str, type[Norm]] = {
    "none": NoNorm,
    "batch": BatchNorm,
    "layer": LayerNorm,
    "RMS": RmsNorm,
    "Ada": AdaNorm,
}
BATCH_SIZES = (128, 4)
HIDDEN = (256, 256)


class Classifier:
    """A network of linear layers, normalized before each ReLU.

    Parameters
    ----------
    widths : sequence of int
        The number of inputs, of units in each hidden layer, and of classes.
    norm : type
        The class of the norms.
    rng : numpy.random.Generator
        The source of the initial weights; the same for every norm.
    dtype : dtype
        The dtype of weights and activations.
    """

    def __init__(
        self,
        widths: tuple[int, ...],
        norm: type[Norm],
        rng: np.random.Generator,
        dtype: Any = np.float32,
    ) -> None:
        pairs = list(itertools.pairwise(widths))
        # A weight for each pair of units, and a gain and a bias for each unit; those that a norm
        # does not use stay zero.
        size = sum(fan_in * fan_out for fan_in, fan_out in pairs) + 2 * sum(widths[1:])
        self.parameters = Parameters(size, dtype)
        self.weights = [self.parameters.take(*pair) for pair in pairs]
        for (fan_in, _), (weight, _) in zip(pairs, self.weights, strict=True):
            weight[:] = rng.normal(0, np.sqrt(2 / fan_in), weight.shape)
        # The logits get a bias; only the hidden layers are normalized.
        self.norms: list[Norm] = [norm(width, self.parameters) for width in widths[1:-1]]
        self.norms.append(NoNorm(widths[-1], self.parameters))
        self._inputs: list[Array] = []

    def logits(self, x: Array, training: bool = False) -> Array:
        """Return the scores of every class for every row of x."""
        self._inputs = []
        for (weight, _), norm in zip(self.weights, self.norms, strict=True):
            # The ReLU comes before every linear layer but the first.
            x = np.maximum(x, 0) if self._inputs else x
            self._inputs.append(x)
            x = norm.forward(np.matmul(x, weight), training)
        return x

    def gradients(self, x: Array, labels: Array) -> float:
        """Store the gradients of the mean cross-entropy over a batch.

        Parameters
        ----------
        x : ndarray
            The images, one a row.
        labels : ndarray of int
            Their classes.

        Returns
        -------
        float
            The mean cross-entropy.
        """
        loss, dy = cross_entropy(self.logits(x, training=True), labels)
        self._backward(dy)
        return loss

    def error(self, x: Array, labels: Array) -> Array:
        """Return 100 for each image that is classified wrongly."""
        return wrong(self.logits(x), labels)

    def _backward(self, dy: Array) -> None:
        for index in reversed(range(len(self.weights))):
            weight, dweight = self.weights[index]
            x = self._inputs[index]
            dy = self.norms[index].backward(dy)
            np.matmul(x.T, dy, out=dweight)
            if index:
                dy = np.matmul(dy, weight.T) * (x > 0)


def tasks(digits: tuple[Samples, Samples], epochs: int) -> list[Task]:
    """Return a task for each batch size.

    Parameters
    ----------
    digits : tuple
        Images and labels for training; images and labels for validation.
    epochs : int
        The number of passes over the training images.

    Returns
    -------
    list of Task
        The tasks.
    """

    def network(norm: str, rng: np.random.Generator) -> Classifier:
        return Classifier((images.shape[1], *HIDDEN, 10), NORMS[norm], rng)

    training, validation = digits
    images = training[0]
    return [
        Task("digits", f"batch size {size}", training, validation, size, epochs, network)
        for size in BATCH_SIZES
    ]


def first_step(name: str) -> None:
    """Train a tiny classifier for an epoch, so that the kernels of its norm are compiled."""
    rng = np.random.default_rng(0)
    samples = rng.standard_normal((2, 4), np.float32), np.zeros(2, int)
    next(train(Classifier((4, 4, 10), NORMS[name], rng), samples, samples, 2, rng))
