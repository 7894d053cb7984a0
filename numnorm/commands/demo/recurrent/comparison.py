"""Trains each cell on each task, from the same weights and with the same order of samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.commands.demo.layers import Array
from numnorm.commands.demo.recurrent import corners
from numnorm.commands.demo.recurrent.cells import NORMS
from numnorm.commands.demo.recurrent.corners import Walker
from numnorm.commands.demo.recurrent.digits import ROWS, Reader, shortened
from numnorm.commands.demo.training import Network, Samples, one_thread, train, watched

DIGITS_HIDDEN = 64
CORNERS_WIDTH = CORNERS_HIDDEN = 32


class Task(NamedTuple):
    """A task to learn.

    Attributes
    ----------
    data : {"digits", "corners"}
        The kind of samples.
    samples : str
        A description of the batches, for tables and pictures.
    training, validation : tuple of ndarray
        The samples.
    batch_size, epochs : int
        The samples in a batch, and the number of passes over all samples.
    network : callable
        Makes a network from the name of a norm and a random generator.
    """

    data: str
    samples: str
    training: Samples
    validation: Samples
    batch_size: int
    epochs: int
    network: Callable[[str, np.random.Generator], Any]


class Result(NamedTuple):
    """The result of one cell on one task.

    Attributes
    ----------
    errors : ndarray (epochs, samples)
        The validation error of each sample after each epoch.
    own : float
        The mean error in the end if batch norm uses the statistics of the validation samples.
    network : object
        The network in the end, except for these statistics.
    """

    errors: Array
    own: float
    network: Any


Results = list[tuple[Task, dict[str, Result]]]


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

    walks = [(corners.walks(*made),) for made in (corners.TRAINING, corners.VALIDATION)]
    half, quarter = -(-epochs // 2), -(-epochs // 4)
    images = whole(validation)
    return [
        Task("digits", "32 at a time", whole(training), images, 32, epochs, reader),
        Task("digits", "4 at a time", whole(few), images, 4, half, reader),
        Task("digits", "4 at a time, cut short", short(few), short(validation), 4, half, reader),
        Task("digits", "1 at a time", whole(few), images, 1, quarter, reader),
        Task("corners", "16 at a time", walks[0], walks[1], 16, 3 * epochs, walker),
    ]


def compare(tasks: list[Task], seed: int) -> Results:
    """Train each cell on each task.

    Parameters
    ----------
    tasks : list of Task
        The tasks.
    seed : int
        The seed of the weights and of the order of the samples, the same for all cells.

    Returns
    -------
    list of tuple
        Each task with the result of each cell.
    """
    with one_thread():
        return [(task, {name: _learned(task, name, seed) for name in NORMS}) for task in tasks]


def first_step(name: str) -> None:
    """Train tiny networks for an epoch, so that the kernels of their cell are compiled."""
    rng = np.random.default_rng(0)
    pixels = rng.standard_normal((2, ROWS * ROWS), np.float32)
    images = pixels, np.zeros(2, int), np.full(2, ROWS)
    walks = (corners.walks(2, 0),)
    for batch_size in (2, 1):
        next(train(Reader(name, 4, rng), images, images, batch_size, rng))
    next(train(Walker(name, 4, 4, rng), walks, walks, 2, rng))


def _learned(task: Task, name: str, seed: int) -> Result:
    network = task.network(name, np.random.default_rng(seed))
    order = np.random.default_rng([seed, task.batch_size])
    errors = train(network, task.training, task.validation, task.batch_size, order)
    per_epoch = watched(f"{task.data}, {task.samples:<22}, {name:<5}", errors, task.epochs)
    own = network.error(*task.validation, training=True).mean()
    return Result(np.array(per_epoch), float(own), network)
