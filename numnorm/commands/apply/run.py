"""Normalizes an array box by box, in this process or on a cluster."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from numnorm.commands.apply.blocks import Box, aligned, boxes, lengths, steps, whole
from numnorm.commands.apply.formats import format_of
from numnorm.commands.apply.formats.protocol import Array, Layout, Source, Target
from numnorm.commands.apply.methods import Job
from numnorm.commands.apply.statistics import (
    are_saved,
    cuttable,
    load_statistics,
    save_statistics,
    stream_statistics,
)
from numnorm.commands.apply.streams import Stream
from numnorm.commands.errors import CommandError
from numnorm.commands.progress import progress_bar

BLOCK_SIZE = 64
"""The usual size of a block in mebibytes."""

_LARGEST_BLOCK_MIB = 1024
"""The largest size, in mebibytes, to which chunks make a block grow if no size is given."""

_CHUNK = 4 << 20
"""The size of a new chunk in bytes."""

_LARGEST_CHUNK = 512 << 20
"""The largest size in bytes of a new chunk whose elements are normalized together; compressors take
less than 2 GiB."""

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
    size, saving = math.prod(source.shape), arguments.save_statistics
    if saving is not None and not size:
        raise CommandError(f"{arguments.input} is empty: it has no statistics")
    statistics = None
    channels = source.shape[job.channel_axis] if job.channel_axis is not None else 0
    if arguments.statistics is not None:
        statistics = load_statistics(arguments.statistics, channels)
    own = job.method == "batch_norm" and statistics is None and size > 0
    layout = _layout(job, source, arguments)
    module = format_of(arguments.output)
    output = module.created(arguments.output, layout, request, arguments.resume)
    with _runner(source, arguments) as runner, output as (target, journal):
        plan = _Plan(source, layout.dtype, arguments.block_size)
        where = job.cuttable()
        if job.streams and arguments.scheduler is not None:  # workers take parts in any order
            where = [each for each in where if each[0] != job.time_axis]
        ordered = boxes(whole(source.shape), plan.steps(where, target), job.time_axis)
        parts = list(enumerate(ordered))
        left = [(number, box) for number, box in parts if number not in journal.done]
        before = size - sum(math.prod(lengths(box)) for _, box in left)
        if own:
            statistics = journal.statistics(channels)
            before += size if statistics is not None else 0
        if saving is not None and not arguments.force:
            are_saved(saving, statistics)
        with progress_bar(job.method, (1 + own) * size, before) as done:
            if own and statistics is None:
                assert job.channel_axis is not None
                cut = plan.steps(cuttable(source.shape, job.channel_axis))
                parts_read = boxes(whole(source.shape), cut)
                policy = job.options.get("nan_policy", "propagate")
                statistics = runner.statistics(job.channel_axis, parts_read, done, policy)
                journal.save(*statistics)
            if statistics is not None:
                job = _with_statistics(job, *statistics)
            work: Job | Stream = job
            if job.streams and arguments.scheduler is None and left:
                work = Stream(job, journal, left[0][0])
            with closing(runner.normalize(work, target, left)) as results:
                for number, elements in results:
                    journal.add(number)
                    done(elements)
        if saving is None or statistics is None:
            return
        if arguments.force or not are_saved(saving, statistics):
            save_statistics(saving, *statistics)


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


@contextmanager
def _runner(source: Source, arguments: Namespace) -> Iterator[Any]:
    """Connect to the cluster, if there is one."""
    if arguments.scheduler is None:
        yield Here(source)
        return
    from numnorm.commands.apply.cluster import connected

    with connected(arguments.scheduler, arguments.input) as cluster:
        yield cluster


class _Plan:
    """The sizes of boxes: within the size of a block, and of whole chunks."""

    def __init__(self, source: Source, dtype: np.dtype[Any], block_size: float | None) -> None:
        self.source = source
        # Integers take more memory as floats than in the file.
        self.itemsize = max(source.dtype.itemsize, dtype.itemsize)
        self.budget = int((block_size or BLOCK_SIZE) * 2**20) // self.itemsize
        self.limit = (
            self.budget
            if block_size
            else max(self.budget, _LARGEST_BLOCK_MIB * 2**20 // self.itemsize)
        )

    def steps(self, cut: list[tuple[int, int]], target: Target | None = None) -> list[int]:
        """Return the lengths of boxes that cut no chunk of the target.

        They cut none of the source either, if that fits.
        """
        shape = self.source.shape
        cut = sorted(cut, reverse=self.source.fortran)
        finest = math.prod(steps(shape, cut, 1))  # what the norm needs at once
        needed = aligned(cut, None if target is None else target.chunks)
        both = steps(shape, aligned(needed, self.source.chunks), self.budget)
        if math.prod(both) <= self.budget:
            return both
        # For smaller boxes a chunk of the source would be decompressed again and again.
        row = math.prod(steps(shape, aligned(cut, self.source.chunks), 1))
        step = steps(shape, needed, max(self.budget, min(row, self.limit)))
        size = math.prod(step)
        if size > max(self.limit, finest):
            least = math.ceil(size * self.itemsize / 2**20)
            assert target is not None
            raise CommandError(
                f"chunks of {target.chunks} make blocks of {least} MiB: give --block-size {least}, "
                "or other --chunks"
            )
        return step


def _layout(job: Job, source: Source, arguments: Namespace) -> Layout:
    """Return what the output is to be like."""
    dtype = source.dtype.newbyteorder("=") if source.dtype.kind == "f" else np.dtype(np.float64)
    most = min(_CHUNK, int((arguments.block_size or BLOCK_SIZE) * 2**20))
    chunks = steps(source.shape, job.cuttable(), most // dtype.itemsize)
    every = [(axis, 1) for axis in range(len(chunks))]
    default = steps(chunks, every, _LARGEST_CHUNK // dtype.itemsize)
    return Layout(
        source,
        dtype,
        tuple(max(1, length) for length in default),
        tuple(arguments.chunks) if arguments.chunks else None,
        arguments.compression,
        arguments.zarr_format,
    )


def _with_statistics(job: Job, mean: Array, variance: Array) -> Job:
    """Return batch norm with statistics of the whole array, so that it can run in parts."""
    given = {"running_mean": mean, "running_var": variance, "training": False}
    return replace(job, options={**job.options, **given})
