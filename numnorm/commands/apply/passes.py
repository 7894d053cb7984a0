"""Robust norms of rows that do not fit into memory: their statistics come first, in passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from numnorm.commands.apply.boxes import Box
from numnorm.commands.apply.formats.protocol import Array
from numnorm.commands.apply.methods import Job
from numnorm.commands.terminal import CommandError, one_line
from numnorm.norms.robust_passes import RobustStatistics, Task, robust_statistics

EXPECTED = 4
"""How many passes there usually are: two for the center, and two for the scale."""


@dataclass(frozen=True)
class JobInPasses(Job):
    """A robust norm of rows of which no one fits into memory.

    Parameters
    ----------
    statistics : RobustStatistics, optional
        Those of all rows, with as many axes as the array; `with_statistics` gives them.
    """

    statistics: RobustStatistics | None = None

    def cuttable_axes(self) -> list[tuple[int, int]]:
        """Return all axes: a part needs nothing but the statistics of its rows."""
        return [(axis, 1) for axis in range(len(self.shape))]

    def normalize(self, x: Array, box: Box, out: Array) -> None:
        """Normalize one part, as `Job.normalize`."""
        assert self.statistics is not None
        free = self._free_axes()
        own = tuple(part if axis in free else slice(None) for axis, part in enumerate(box))
        RobustStatistics(*(array[own] for array in self.statistics)).normalize(x, out)

    def found_in(self, x: Array, box: Box, task: Task) -> Any:
        """Return what a pass finds in a part of the array.

        Parameters
        ----------
        x : ndarray
            The part.
        box : Box
            Where it lies.
        task : Task
            What the pass looks for.
        """
        return task.found_in(*self._rows(x, box))

    def with_statistics(
        self,
        dtype: np.dtype[Any],
        sample: tuple[Array, Box],
        each_pass: Callable[[Task], Iterable[Any]],
        budget: int,
    ) -> JobInPasses:
        """Return the job with the statistics of all rows.

        Parameters
        ----------
        dtype : numpy.dtype
            That of the array.
        sample : tuple of ndarray and Box
            A part of the array.
        each_pass : callable
            It takes a `Task`, and returns what `found_in` gives for all parts.
        budget : int
            The bytes to keep, about.

        Raises
        ------
        CommandError
            If there is NaN although it may not be, or if the array changes meanwhile.
        """
        free = self._free_axes()
        shape = tuple(n if axis in free else 1 for axis, n in enumerate(self.shape))
        rows = int(np.prod(shape))
        samples = [self._rows(*sample)]
        try:
            found = robust_statistics(rows, dtype, self.options, each_pass, samples, budget)
        except (ValueError, RuntimeError) as error:
            raise CommandError(one_line(error)) from error
        wide = RobustStatistics(*(array.reshape(shape) for array in found))
        return JobInPasses(self.method, self.options, self.shape, wide)

    def _rows(self, x: Array, box: Box) -> tuple[Array, Array]:
        """Return a part of the array as parts of rows, and the numbers of these rows."""
        free = self._free_axes()
        names = np.arange(int(np.prod([self.shape[axis] for axis in free])))
        names = names.reshape([self.shape[axis] for axis in free])
        own = names[tuple(box[axis] for axis in free)].reshape(-1)
        return np.moveaxis(x, free, range(len(free))).reshape(len(own), -1), own
