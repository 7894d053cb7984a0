"""Training: the optimizer, batches in random order, and the validation errors of each norm."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

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

    def gradients(self, *batch: Any) -> float:
        """Store the gradients of the loss over a batch, and return the loss."""
        ...

    def error(self, *samples: Any, **options: Any) -> Array:
        """Return the error on each of some samples."""
        ...


class Task(NamedTuple):
    """A task to learn.

    Attributes
    ----------
    data : {"digits", "corners"}
        The kind of samples.
    batches : str
        A description of the batches, for tables and pictures.
    training, validation : tuple of ndarray
        The samples.
    batch_size, epochs : int
        The samples in a batch, and the number of passes over all samples.
    network : callable
        Makes a network from the name of a norm and a random generator.
    """

    data: str
    batches: str
    training: Samples
    validation: Samples
    batch_size: int
    epochs: int
    network: Callable[[str, np.random.Generator], Any]


class Result(NamedTuple):
    """The result of one norm on one task.

    Attributes
    ----------
    errors : ndarray (epochs, samples)
        The validation error of each sample after each epoch.
    network : object
        The network in the end.
    """

    errors: Array
    network: Any


Run = list[tuple[Task, dict[str, Result]]]
"""The results of one seed: each task with the result of each norm."""


def compare(tasks: Iterable[Task], norms: Iterable[str], seed: int) -> Run:
    """Train with each norm on each task.

    Parameters
    ----------
    tasks : iterable of Task
        The tasks.
    norms : iterable of str
        The names of the norms.
    seed : int
        The seed of the weights and of the order of the samples, the same for all norms.

    Returns
    -------
    list of tuple
        Each task with the result of each norm.
    """
    with one_thread():
        return [(task, {name: _learned(task, name, seed) for name in norms}) for task in tasks]


def _learned(task: Task, name: str, seed: int) -> Result:
    network = task.network(name, np.random.default_rng(seed))
    order = np.random.default_rng([seed, task.batch_size])
    epochs = train(network, task.training, task.validation, task.batch_size, order)
    description = f"seed {seed}, {task.data}, {task.batches:<22}, {name:<5}"
    with progress_bar(description, task.epochs) as done:
        errors = []
        for error in itertools.islice(epochs, task.epochs):
            done(1)
            errors.append(error)
    return Result(np.array(errors), network)


def train(
    network: Network,
    training: Samples,
    validation: Samples,
    batch_size: int,
    rng: np.random.Generator,
) -> Iterator[Array]:
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
    ndarray
        The validation error of each sample after each epoch.
    """
    adam = Adam(network.parameters)
    while True:
        order = rng.permutation(len(training[0]))
        for start in range(0, len(order) - batch_size + 1, batch_size):
            batch = order[start : start + batch_size]
            network.gradients(*(array[batch] for array in training))
            adam.step()
        yield network.error(*validation)


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
