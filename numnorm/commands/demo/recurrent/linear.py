"""A linear layer with its gradient."""

from __future__ import annotations

import numpy as np

from numnorm.commands.demo.layers import Array, Parameters


class Linear:
    """A linear layer with bias, over the last axis.

    Parameters
    ----------
    inputs, outputs : int
        The sizes of that axis.
    parameters : Parameters
        The vector that the trained numbers are part of: `room` of them.
    rng : numpy.random.Generator
        The source of the initial weights.
    """

    def __init__(
        self, inputs: int, outputs: int, parameters: Parameters, rng: np.random.Generator
    ) -> None:
        self.weight, self.dweight = parameters.take(inputs, outputs)
        self.bias, self.dbias = parameters.take(outputs)
        self.weight[:] = rng.normal(0, np.sqrt(2 / (inputs + outputs)), self.weight.shape)

    @staticmethod
    def room(inputs: int, outputs: int) -> int:
        """Return the number of trained numbers."""
        return (inputs + 1) * outputs

    def forward(self, x: Array) -> Array:
        """Return the outputs, and save what `backward` needs."""
        self.x = x
        y: Array = np.matmul(x, self.weight) + self.bias
        return y

    def backward(self, dy: Array) -> Array:
        """Return the gradient of x; store those of the weights and the bias."""
        rows = dy.reshape(-1, dy.shape[-1])
        np.matmul(self.x.reshape(-1, self.x.shape[-1]).T, rows, out=self.dweight)
        rows.sum(axis=0, out=self.dbias)
        dx: Array = np.matmul(dy, self.weight.T)
        return dx
