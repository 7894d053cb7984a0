"""Normalizes an array box by box, in this process or on a cluster of Dask."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import os
from argparse import Namespace
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import numnorm
from numnorm.backends.contract.backend import BlockMoments
from numnorm.commands.apply.boxes import Box, aligned, box_lengths, boxes, shape_of, whole
from numnorm.commands.apply.formats import format_of
from numnorm.commands.apply.formats.protocol import Array, Layout, Source, Target
from numnorm.commands.apply.methods import Job, Stream
from numnorm.commands.apply.passes import EXPECTED, JobInPasses
from numnorm.commands.apply.statistics import (
    check_statistics_file,
    cuttable_axes,
    load_statistics,
    merged_statistics,
    part_moments,
    save_statistics,
    stream_statistics,
)
from numnorm.commands.terminal import CommandError, one_line, progress_bar, require
from numnorm.norms.batch import block_moments
from numnorm.norms.robust_passes import Task

BLOCK_SIZE = 64
"""The usual size of a block in mebibytes."""

_LARGEST_BLOCK_MIB = 1024
"""The largest size, in mebibytes, to which chunks make a block grow if no size is given."""

_CHUNK = 4 << 20
"""The size of a new chunk in bytes."""

_LARGEST_CHUNK = 512 << 20
"""The largest size in bytes of a new chunk whose elements are normalized together; compressors take
less than 2 GiB."""

_TIMEOUT = 8
"""Seconds to reach the scheduler."""

_ENDING = 60
"""Seconds that boxes in work may take after an interruption."""

_RETRIES = 2  # of a box, after a worker has died

Done = Callable[[int], None]


def apply(job: Job, source: Source, arguments: Namespace, request: Mapping[str, Any]) -> None:
    """Write the result of a job.

    Parameters
    ----------
    job : Job
        The norm with its options.
    source : Source
        The array.
    arguments : Namespace
        The options of the command.
    request : mapping
        The arguments and the input: `--resume` continues only a run in which they were the same.
    """
    size = math.prod(source.shape)
    saving = arguments.save_statistics
    if saving is not None and not size:
        raise CommandError(f"{arguments.input} is empty: it has no statistics")
    statistics = None
    channels = source.shape[job.channel_axis] if job.channel_axis is not None else 0
    if arguments.statistics is not None:
        statistics = load_statistics(arguments.statistics, channels)
    own = job.method == "batch_norm" and statistics is None and size > 0
    plan = _Plan(source, arguments.block_size)
    if job.method == "robust_norm" and plan.is_too_large(job):
        job = JobInPasses(job.method, job.options, job.shape)
    layout = _layout(job, source, plan.dtype, arguments)
    module = format_of(arguments.output)
    output = module.created(arguments.output, layout, request, arguments.resume)
    with _runner(source, arguments) as runner, output as (target, journal):
        cuttable = job.cuttable_axes()
        if job.streams and arguments.scheduler is not None:  # workers take parts in any order
            cuttable = [each for each in cuttable if each[0] != job.time_axis]
        lengths = plan.box_lengths(cuttable, target)
        ordered = boxes(whole(source.shape), lengths, job.time_axis)
        parts = list(enumerate(ordered))
        left = [(number, box) for number, box in parts if number not in journal.written]
        before = size - sum(math.prod(shape_of(box)) for _, box in left)
        if own:
            statistics = journal.load_statistics(channels)
            before += size if statistics is not None else 0
        if saving is not None and not arguments.force:
            check_statistics_file(saving, statistics)
        passes = EXPECTED if isinstance(job, JobInPasses) and left else own
        with progress_bar(job.method, (1 + passes) * size, before) as done:
            if isinstance(job, JobInPasses) and left:
                job = _in_passes(job, plan, runner, done)
            if own and statistics is None:
                statistics = _own_statistics(job, plan, runner, done)
                journal.save_statistics(*statistics)
            if statistics is not None:
                job = _with_statistics(job, *statistics)
            work: Job | Stream = job
            if job.streams and arguments.scheduler is None and left:
                work = Stream(job, journal, left[0][0])
            with closing(runner.normalize(work, target, left)) as results:
                for number, elements in results:
                    journal.note_written(number)
                    done(elements)
        if saving is None or statistics is None:
            return
        if not arguments.force:
            check_statistics_file(saving, statistics)
        if arguments.force or not saving.exists():
            save_statistics(saving, *statistics)


class _Plan:
    """The sizes of boxes: within the size of a block, and of whole chunks."""

    def __init__(self, source: Source, block_size: float | None) -> None:
        self.source = source
        is_float = source.dtype.kind == "f"
        self.dtype = source.dtype.newbyteorder("=") if is_float else np.dtype(np.float64)
        # Integers take more memory as floats than in the file.
        self.itemsize = max(source.dtype.itemsize, self.dtype.itemsize)
        self.budget = int((block_size or BLOCK_SIZE) * 2**20) // self.itemsize
        self.limit = (
            self.budget
            if block_size
            else max(self.budget, _LARGEST_BLOCK_MIB * 2**20 // self.itemsize)
        )

    def is_too_large(self, job: Job) -> bool:
        """Return whether what is normalized together does not fit into the largest block."""
        finest = box_lengths(self.source.shape, job.cuttable_axes(), 1)
        return math.prod(finest) > self.limit

    def box_lengths(
        self, cuttable: list[tuple[int, int]], target: Target | None = None
    ) -> list[int]:
        """Return the lengths of boxes that cut no chunk of the target.

        They cut none of the source either, if that fits.
        """
        shape = self.source.shape
        cuttable = sorted(cuttable, reverse=self.source.fortran)
        finest = math.prod(box_lengths(shape, cuttable, 1))  # what the norm needs at once
        needed = aligned(cuttable, None if target is None else target.chunks)
        both = box_lengths(shape, aligned(needed, self.source.chunks), self.budget)
        if math.prod(both) <= self.budget:
            return both
        # For smaller boxes a chunk of the source would be decompressed again and again.
        row = math.prod(box_lengths(shape, aligned(cuttable, self.source.chunks), 1))
        lengths = box_lengths(shape, needed, max(self.budget, min(row, self.limit)))
        size = math.prod(lengths)
        if size > max(self.limit, finest):
            least = math.ceil(size * self.itemsize / 2**20)
            assert target is not None
            raise CommandError(
                f"chunks of {target.chunks} make blocks of {least} MiB: give --block-size {least}, "
                "or other --chunks"
            )
        return lengths


def _layout(job: Job, source: Source, dtype: np.dtype[Any], arguments: Namespace) -> Layout:
    """Return what the output is to be like."""
    most = min(_CHUNK, int((arguments.block_size or BLOCK_SIZE) * 2**20))
    chunks = box_lengths(source.shape, job.cuttable_axes(), most // dtype.itemsize)
    every = [(axis, 1) for axis in range(len(chunks))]
    default = box_lengths(chunks, every, _LARGEST_CHUNK // dtype.itemsize)
    return Layout(
        source,
        dtype,
        tuple(max(1, length) for length in default),
        tuple(arguments.chunks) if arguments.chunks else None,
        arguments.compression,
        arguments.zarr_format,
    )


def _own_statistics(job: Job, plan: _Plan, runner: Any, done: Done) -> tuple[Array, Array]:
    """Return mean and variance of each channel, taken in a pass over the array."""
    shape = plan.source.shape
    assert job.channel_axis is not None
    lengths = plan.box_lengths(cuttable_axes(shape, job.channel_axis))
    policy = job.options.get("nan_policy", "propagate")
    found: tuple[Array, Array] = runner.statistics(
        job.channel_axis, boxes(whole(shape), lengths), done, policy
    )
    return found


def _in_passes(job: JobInPasses, plan: _Plan, runner: Any, done: Done) -> JobInPasses:
    """Return a job with the statistics of all rows, taken in passes over the array."""
    source, lengths = plan.source, plan.box_lengths(job.cuttable_axes())
    parts = list(boxes(whole(source.shape), lengths))
    size = math.prod(source.shape)
    left = EXPECTED * size

    def each_pass(task: Task) -> Iterator[Any]:
        nonlocal left
        for box, found in zip(parts, runner.found(job, task, parts), strict=True):
            amount = min(left, math.prod(shape_of(box)))
            left -= amount
            done(amount)
            yield found

    sample = source.read(parts[0]).copy(), parts[0]
    with_all = job.with_statistics(plan.dtype, sample, each_pass, plan.budget * plan.itemsize)
    done(left)
    return with_all


def _with_statistics(job: Job, mean: Array, variance: Array) -> Job:
    """Return batch norm with statistics of the whole array, so that it can run in parts."""
    running = {"running_mean": mean, "running_var": variance, "training": False}
    return replace(job, options={**job.options, **running})


@contextmanager
def _runner(source: Source, arguments: Namespace) -> Iterator[Any]:
    """Connect to the cluster, if there is one."""
    if arguments.scheduler is None:
        yield Here(source)
        return
    with _connected(arguments.scheduler, arguments.input) as cluster:
        yield cluster


@contextmanager
def _connected(address: str, source: str) -> Iterator[Cluster]:
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


class Here:
    """Works on the boxes in this process, in order.

    Parameters
    ----------
    source : Source
        The input.
    """

    def __init__(self, source: Source) -> None:
        self.source = source

    def statistics(
        self, channel_axis: int, parts: Iterator[Box], done: Done, nan_policy: str
    ) -> tuple[Array, Array]:
        """Return mean and variance of each channel.

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
        with closing(self._read(parts)) as arrays:
            return stream_statistics(channel_axis, arrays, done, nan_policy)

    def found(self, job: JobInPasses, task: Task, parts: Sequence[Box]) -> Iterator[Any]:
        """Take a pass over the array.

        Parameters
        ----------
        job : JobInPasses
            The norm with its options.
        task : Task
            What the pass looks for.
        parts : sequence of Box
            The parts of the array.

        Yields
        ------
        object
            What `JobInPasses.found_in` returns for each part, in order.
        """
        with closing(self._read(parts)) as arrays:
            for box, x in zip(parts, arrays, strict=True):
                yield job.found_in(x, box, task)

    def normalize(
        self, job: Job | Stream, target: Target, parts: Sequence[tuple[int, Box]]
    ) -> Iterator[tuple[int, int]]:
        """Normalize boxes.

        Parameters
        ----------
        job : Job or Stream
            The norm with its options.
        target : Target
            The output.
        parts : sequence of (int, Box)
            The boxes and their numbers.

        Yields
        ------
        tuple of (int, int)
            The number of a box that is written, and of its elements.
        """
        # A box is written while the next one is normalized. After a signal, too, the pool waits.
        reading = closing(self._read(job.needed(box) for _, box in parts))
        with reading as arrays, ThreadPoolExecutor(1) as writer:
            writing: Future[tuple[int, int]] | None = None
            for (number, box), x in zip(parts, arrays, strict=True):
                out = target.empty(box)
                job.normalize(x, box, out)
                if writing is not None:
                    yield writing.result()
                writing = writer.submit(_write, target, number, box, out)
                del out, x  # unmaps them
            if writing is not None:
                yield writing.result()

    def _read(self, parts: Iterable[Box]) -> Generator[Array]:
        """Yield the elements of boxes; one is read while the caller works on the one before."""
        with ThreadPoolExecutor(1) as reader:
            reading: Future[Array] | None = None
            for box in parts:
                ahead = reader.submit(self.source.read, box)
                if reading is not None:
                    yield reading.result()
                reading = ahead
            if reading is not None:
                yield reading.result()


def _write(target: Target, number: int, box: Box, values: Array) -> tuple[int, int]:
    target.write(box, values)
    return number, values.size


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

    def found(self, job: JobInPasses, task: Task, parts: Sequence[Box]) -> Iterator[Any]:
        """Take a pass over the array, as `Here.found`.

        Parameters
        ----------
        job : JobInPasses
            The norm with its options.
        task : Task
            What the pass looks for.
        parts : sequence of Box
            The parts of the array.

        Yields
        ------
        object
            What `JobInPasses.found_in` returns for each part, in order.
        """
        sent = self.client.submit(_same, (job, task), pure=False)
        found = functools.partial(_found, self.source)
        yield from _in_order(self._results(found, enumerate(parts), sent))

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

        calls = iter(calls)
        numbers = {}

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


def _in_order(results: Iterator[tuple[int, Any]]) -> Iterator[Any]:
    """Yield results in the order of their numbers 0, 1, ..."""
    early: dict[int, Any] = {}
    number = 0
    for place, result in results:
        early[place] = result
        while number in early:
            yield early.pop(number)
            number += 1


def _same(value: Any) -> Any:
    return value


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


def _found(path: str, box: Box, sent: tuple[JobInPasses, Task]) -> Any:
    """Return what a pass finds in a box."""
    job, task = sent
    with numnorm.num_threads(1), format_of(path).opened(path) as source:
        return job.found_in(source.read(box), box, task)


def _normalize(path: str, directory: str, box: Box, job: Job) -> int:
    """Write a box, and return its number of elements."""
    from numnorm.commands.apply.formats.zarr import writable

    target = writable(Path(directory), directory)
    opened = format_of(path).opened(path)
    with numnorm.num_threads(1), opened as source:
        out = target.empty(box)
        job.normalize(source.read(job.needed(box)), box, out)
        target.write(box, out)
    return math.prod(shape_of(box))
