"""Normalizes boxes on a cluster of Dask, whose workers read and write the files themselves."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numnorm
from numnorm.backends.contract.backend import BlockMoments
from numnorm.commands.apply.blocks import Box, lengths
from numnorm.commands.apply.formats import format_of
from numnorm.commands.apply.formats.protocol import Array
from numnorm.commands.apply.methods import Job
from numnorm.commands.apply.statistics import merged_statistics, part_moments
from numnorm.commands.errors import CommandError, one_line, require
from numnorm.norms.batch import block_moments

_TIMEOUT = 8
"""Seconds to reach the scheduler."""

_ENDING = 60
"""Seconds that boxes in work may take after an interruption."""

_RETRIES = 2


class Cluster:
    """Works on the boxes as tasks of a cluster, a bounded number at a time.

    Parameters
    ----------
    client : distributed.Client
        The connection.
    source : str
        The path of the input.
    """

    def __init__(self, client: Any, source: str) -> None:
        self.client = client
        self.source = source

    def statistics(
        self,
        channel_axis: int,
        parts: Iterator[Box],
        done: Callable[[int], None],
        nan_policy: str,
    ) -> tuple[Array, Array]:
        """Return mean and variance of each channel, as `Here.statistics`.

        Parameters
        ----------
        channel_axis : int
            The channel axis, counted from the front.
        parts : iterator of Box
            What to take them of at a time.
        done : callable
            Called after each part with its number of elements.
        nan_policy : str
            As for `batch_moments`.

        Returns
        -------
        tuple of ndarray
            The mean and the biased variance.
        """
        task = functools.partial(_moments, self.source, channel_axis, nan_policy)
        return merged_statistics(
            channel_axis, _in_order(self._results(task, enumerate(parts))), done
        )

    def normalize(
        self, job: Job, target: Any, parts: Sequence[tuple[int, Box]]
    ) -> Iterator[tuple[int, int]]:
        """Normalize boxes, as `Here.normalize`, in any order.

        Parameters
        ----------
        job : Job
            The norm with its options.
        target : ZarrArray
            The output.
        parts : sequence of (int, Box)
            The boxes and their numbers.

        Yields
        ------
        tuple of (int, int)
            The number of a box that is written, and of its elements.
        """
        # A task, not a scattered object: it is made again if its worker dies.
        sent = self.client.submit(_same, job, pure=False)
        root = os.path.realpath(target.array.store.root)  # its address is of this process alone
        yield from self._results(functools.partial(_normalize, self.source, root), parts, sent)

    def _results(
        self, task: Callable[..., Any], calls: Iterable[tuple[int, Box]], *more: Any
    ) -> Iterator[tuple[int, Any]]:
        """Yield the numbers of calls and their results, as they complete."""
        from distributed import as_completed, wait

        calls, numbers = iter(calls), {}

        def submitted(count: int) -> list[Any]:
            futures = []
            for number, box in itertools.islice(calls, count):
                future = self.client.submit(task, box, *more, pure=False, retries=_RETRIES)
                numbers[future] = number
                futures.append(future)
            return futures

        threads = sum(self.client.nthreads().values())
        completed = as_completed(submitted(max(8, 2 * threads)))
        try:
            for future in completed:
                result = future.result()
                yield numbers.pop(future), result
                completed.update(submitted(1))
        except BaseException:
            # They would write to a directory that is about to be removed.
            wait(list(numbers), timeout=_ENDING)
            raise


@contextmanager
def connected(address: str, source: str) -> Iterator[Cluster]:
    """Connect to a scheduler.

    Parameters
    ----------
    address : str
        Its address, such as ``tcp://host:8786``.
    source : str
        The path of the input, which all workers can read.

    Yields
    ------
    Cluster
        The cluster.

    Raises
    ------
    CommandError
        If it cannot be reached, or is lost.
    """
    distributed = require("distributed", "dask")
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    file, inside, name = source.partition("::")
    try:
        client = distributed.Client(address, timeout=_TIMEOUT, set_as_default=False)
    except Exception as error:  # an address that is not valid raises more than ValueError
        raise CommandError(
            f"the scheduler {address} cannot be reached: {one_line(error)}"
        ) from error
    with client, client.as_current():
        try:
            yield Cluster(client, f"{os.path.realpath(file)}{inside}{name}")
        except (distributed.KilledWorker, distributed.CancelledError, TimeoutError) as error:
            raise CommandError(f"the cluster at {address} failed: {one_line(error)}") from error


def _in_order(results: Iterator[tuple[int, Any]]) -> Iterator[Any]:
    """Yield results in the order of their numbers 0, 1, ..."""
    early: dict[int, Any] = {}
    number = 0
    for place, result in results:
        early[place] = result
        while number in early:
            yield early.pop(number)
            number += 1


def _same(job: Job) -> Job:
    return job


def _moments(
    path: str, channel_axis: int, nan_policy: str, box: Box
) -> tuple[int, BlockMoments | numnorm.Moments]:
    """Return the number of elements of a box, and the moments of its blocks.

    If NaN is omitted, there is one `Moments` for the whole box. Where it is an error,
    `Job.normalize` raises.
    """
    with numnorm.num_threads(1), format_of(path).opened(path) as source:
        x = source.read(box)
        if nan_policy == "omit":
            return x.size, part_moments(x, channel_axis, nan_policy)
        # Only the first axis is cut: the box has all channels, or each of its channels whole.
        return x.size, block_moments(x, channel_axis, x.shape[channel_axis])


def _normalize(path: str, directory: str, box: Box, job: Job) -> int:
    """Write a box, and return its number of elements."""
    from numnorm.commands.apply.formats.zarr import writable

    target = writable(Path(directory), directory)
    opened = format_of(path).opened(path)
    with numnorm.num_threads(1), opened as source:
        out = target.empty(box)
        job.normalize(source.read(job.needed(box)), box, out)
        target.write(box, out)
    return math.prod(lengths(box))
