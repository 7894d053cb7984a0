"""A small version of the digits classifier of the layer-normalization paper.

It has linear layers, ReLU between them and softmax cross-entropy. A norm is applied to the summed
inputs of every hidden layer, not to the logits. The gradients are written out: those of the norms
are numnorm's.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from numnorm.commands.demo.layers import Array, NoNorm, Norm, Parameters
from numnorm.commands.demo.losses import cross_entropy


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

    def error(self, x: Array, labels: Array) -> float:
        """Return the percentage of images that are classified wrongly."""
        return float(100 * np.mean(self.logits(x).argmax(axis=1) != labels))

    def _backward(self, dy: Array) -> None:
        for index in reversed(range(len(self.weights))):
            (weight, dweight), x = self.weights[index], self._inputs[index]
            dy = self.norms[index].backward(dy)
            np.matmul(x.T, dy, out=dweight)
            if index:
                dy = np.matmul(dy, weight.T) * (x > 0)
