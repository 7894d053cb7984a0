"""What the networks of the demo are made of: norms, linear layers and losses, with gradients."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

import numnorm

Array = np.ndarray[Any, np.dtype[Any]]


class Parameters:
    """All trained numbers in one vector, so that one update reaches them all.

    Parameters
    ----------
    size : int
        Their number.
    dtype : dtype
        Their dtype.
    """

    def __init__(self, size: int, dtype: Any) -> None:
        self.values: Array = np.zeros(size, dtype)
        self.gradients: Array = np.zeros(size, dtype)
        self._taken = 0

    def take(self, *shape: int) -> tuple[Array, Array]:
        """Return the next values and their gradients as views of the given shape."""
        part = slice(self._taken, self._taken + int(np.prod(shape)))
        self._taken = part.stop
        return self.values[part].reshape(shape), self.gradients[part].reshape(shape)


class Norm(Protocol):
    """A norm with the bias of the layer.

    Parameters
    ----------
    width : int
        The number of units.
    parameters : Parameters
        The vector that the trained numbers are part of.
    """

    def __init__(self, width: int, parameters: Parameters) -> None: ...

    def forward(self, x: Array, training: bool) -> Array:
        """Return the normalized x, and save what `backward` needs."""
        ...

    def backward(self, dy: Array) -> Array:
        """Return the gradient of x, and store those of the parameters."""
        ...


class NoNorm:
    """Only a bias; see `Norm`."""

    def __init__(self, width: int, parameters: Parameters) -> None:
        self.bias, self.dbias = parameters.take(width)

    def forward(self, x: Array, training: bool) -> Array:
        """Add the bias."""
        return x + self.bias

    def backward(self, dy: Array) -> Array:
        """Return dy; store the gradient of the bias."""
        dy.sum(axis=0, out=self.dbias)
        return dy


class AdaNorm(NoNorm):
    """AdaNorm, followed by the bias of the layer; it has no gain."""

    def forward(self, x: Array, training: bool) -> Array:
        """Normalize and add the bias."""
        self.x = x
        y, self.mean, self.rstd = numnorm.ada_norm_forward(x)
        return super().forward(y, training)

    def backward(self, dy: Array) -> Array:
        """Return the gradient of x; store that of the bias."""
        dx: Array = numnorm.ada_norm_backward(super().backward(dy), self.x, self.mean, self.rstd)
        return dx


class RmsNorm(NoNorm):
    """RMS norm with a gain, followed by the bias of the layer."""

    def __init__(self, width: int, parameters: Parameters) -> None:
        super().__init__(width, parameters)
        self.gain, self.dgain = parameters.take(width)
        self.gain[:] = 1

    def forward(self, x: Array, training: bool) -> Array:
        """Normalize, scale, and add the bias."""
        self.x = x
        y, self.rstd = numnorm.rms_norm_forward(x, self.gain)
        return super().forward(y, training)

    def backward(self, dy: Array) -> Array:
        """Return the gradient of x; store those of the gain and the bias."""
        dy = super().backward(dy)
        dx: Array
        dx, self.dgain[:] = numnorm.rms_norm_backward(dy, self.x, self.rstd, self.gain)
        return dx


class LayerNorm(RmsNorm):
    """Layer norm with gain and bias."""

    def forward(self, x: Array, training: bool) -> Array:
        """Normalize, scale and shift."""
        self.x = x
        y: Array
        y, self.mean, self.rstd = numnorm.layer_norm_forward(x, self.gain, self.bias)
        return y

    def backward(self, dy: Array) -> Array:
        """Return the gradient of x; store those of the gain and the bias."""
        gradients = numnorm.layer_norm_backward(dy, self.x, self.mean, self.rstd, self.gain)
        dx: Array
        dx, self.dgain[:], self.dbias[:] = gradients
        return dx


class BatchNorm(RmsNorm):
    """Batch norm with gain and bias, and with running statistics for validation."""

    def __init__(self, width: int, parameters: Parameters) -> None:
        super().__init__(width, parameters)
        self.running: dict[str, Any] = {
            "running_mean": np.zeros(width),
            "running_var": np.ones(width),
        }

    def forward(self, x: Array, training: bool) -> Array:
        """Normalize with the statistics of the batch in training, else with the running ones."""
        self.x = x
        y: Array
        y, self.mean, self.rstd = numnorm.batch_norm_forward(
            x, self.gain, self.bias, training=training, **self.running
        )
        return y

    def backward(self, dy: Array) -> Array:
        """Return the gradient of x; store those of the gain and the bias."""
        gradients = numnorm.batch_norm_backward(dy, self.x, self.mean, self.rstd, self.gain)
        dx: Array
        dx, self.dgain[:], self.dbias[:] = gradients
        return dx


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


def cross_entropy(scores: Array, labels: Array) -> tuple[float, Array]:
    """Return the mean cross-entropy of a softmax, and its gradient with respect to the scores.

    Parameters
    ----------
    scores : ndarray
        The scores of all classes, a row for each sample.
    labels : ndarray of int
        The classes of the samples.

    Returns
    -------
    tuple
        The loss and an array like `scores`.
    """
    scores = scores - scores.max(axis=1, keepdims=True)
    logarithms = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    rows = np.arange(len(labels))
    gradient = np.exp(logarithms)
    gradient[rows, labels] -= 1
    gradient /= gradient.dtype.type(len(labels))
    return float(-logarithms[rows, labels].mean()), gradient


def wrong(scores: Array, labels: Array) -> Array:
    """Return 100 for each sample that is classified wrongly, else 0: the mean is in percent."""
    return np.where(scores.argmax(axis=1) != labels, 100.0, 0.0)


def squared_error(actual: Array, expected: Array) -> tuple[float, Array]:
    """Return the mean squared difference of two arrays, and its gradient for `actual`.

    Parameters
    ----------
    actual, expected : ndarray
        Arrays of the same shape.

    Returns
    -------
    tuple
        The loss and an array of that shape.
    """
    difference = actual - expected
    return float((difference**2).mean()), difference * difference.dtype.type(2 / difference.size)
