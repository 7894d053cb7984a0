"""Training: the optimizer, batches in random order, and the validation error after each epoch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from numnorm.commands.demo.layers import Array, Parameters
from numnorm.commands.terminal import progress_bar, require


class Adam:
    """The Adam optimizer with its usual settings.

    Parameters
    ----------
    parameters : Parameters
        The parameters that it updates.
    rate : float
        The learning rate.
    """

    def __init__(self, parameters: Parameters, rate: float = 1e-3) -> None:
        self.parameters = parameters
        self.rate = rate
        self.first = np.zeros_like(parameters.values)
        self.second = np.zeros_like(parameters.values)
        self.count = 0

    def step(self) -> None:
        """Move the parameters by their gradients."""
        self.count += 1
        gradient = self.parameters.gradients
        self.first += 0.1 * (gradient - self.first)
        self.second += 0.001 * (gradient * gradient - self.second)
        size = self.rate * np.sqrt(1 - 0.999**self.count) / (1 - 0.9**self.count)
        self.parameters.values -= float(size) * self.first / (np.sqrt(self.second) + 1e-8)


Samples = tuple[Array, ...]
"""Arrays with a row for each sample: inputs, labels if any, and other arguments."""


class Network(Protocol):
    """A network that can be trained."""

    parameters: Parameters

    def gradients(self, *batch: Any, **options: Any) -> float:
        """Store the gradients of the loss over a batch, and return the loss."""
        ...

    def error(self, *samples: Any, **options: Any) -> Any:
        """Return the error on some samples."""
        ...


def train(
    network: Network,
    training: Samples,
    validation: Samples,
    batch_size: int,
    rng: np.random.Generator,
) -> Iterator[Any]:
    """Train a network, without end.

    Parameters
    ----------
    network : Network
        The network; its parameters are updated.
    training, validation : tuple of ndarray
        The arguments of its methods.
    batch_size : int
        The samples in a batch. An incomplete batch at the end of an epoch is dropped, because
        batch norm cannot estimate a variance from a single sample.
    rng : numpy.random.Generator
        The source of the order of the samples.

    Yields
    ------
    object
        The validation error after each epoch.
    """
    adam = Adam(network.parameters)
    while True:
        order = rng.permutation(len(training[0]))
        for start in range(0, len(order) - batch_size + 1, batch_size):
            batch = order[start : start + batch_size]
            network.gradients(*(array[batch] for array in training))
            adam.step()
        yield network.error(*validation)


def watched(description: str, errors: Iterator[Any], epochs: int) -> list[Any]:
    """Return the first errors of `train`, with a progress bar of the epochs.

    Parameters
    ----------
    description : str
        The text before the bar.
    errors : iterator
        From `train`.
    epochs : int
        The number of epochs.

    Returns
    -------
    list
        The errors.
    """
    first = []
    with progress_bar(description, epochs) as done:
        for error in itertools.islice(errors, epochs):
            done(1)
            first.append(error)
    return first


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit BLAS and Numba to one thread: these arrays are too small for more."""
    import numba

    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        with require("threadpoolctl").threadpool_limits(1, "blas"):
            yield
    finally:
        numba.set_num_threads(before)
