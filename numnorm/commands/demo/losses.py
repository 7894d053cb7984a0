"""Loss functions with their gradients."""

from __future__ import annotations

import numpy as np

from numnorm.commands.demo.layers import Array


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
