"""Training: batches in random order, epoch after epoch, and what validation says after each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from numnorm.commands.demo.adam import Adam
from numnorm.commands.demo.layers import Array, Parameters
from numnorm.commands.errors import require
from numnorm.commands.progress import progress_bar

Samples = tuple[Array, ...]
"""Arrays with a row for each sample: inputs, what is to come out, and what else there is."""


class Network(Protocol):
    """What can be trained."""

    parameters: Parameters

    def gradients(self, *batch: Any, **options: Any) -> float:
        """Store the gradients of the loss over a batch, and return the loss."""
        ...

    def error(self, *samples: Any, **options: Any) -> Any:
        """Return how wrong it is."""
        ...


def train(
    network: Network,
    training: Samples,
    validation: Samples,
    batch_size: int,
    rng: np.random.Generator,
) -> Iterator[Any]:
    """Train a network, epoch after epoch without end.

    Parameters
    ----------
    network : Network
        The network; it is changed.
    training, validation : tuple of ndarray
        What its methods take.
    batch_size : int
        The samples in a batch. What is left over at the end of an epoch is not used in it: batch
        norm has no variance to estimate from a single sample.
    rng : numpy.random.Generator
        The source of the order of the samples.

    Yields
    ------
    object
        The validation error after another epoch.
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
        What stands before the bar.
    errors : iterator
        From `train`.
    epochs : int
        How many.

    Returns
    -------
    list
        The errors.
    """
    found = []
    with progress_bar(description, epochs) as done:
        for error in itertools.islice(errors, epochs):
            done(1)
            found.append(error)
    return found


@contextmanager
def one_thread() -> Iterator[None]:
    """Let BLAS and Numba use one thread: these arrays are small, and their threads would wait."""
    import numba

    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        with require("threadpoolctl").threadpool_limits(1, "blas"):
            yield
    finally:
        numba.set_num_threads(before)
