"""The launches and the matrix products of steps, prepared once for all steps of a sequence.

A device takes less time for a small step than the host for its launches. So the addresses of all
steps are computed at once, and products go into memory that is there already.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.recurrent import PackedSteps
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.launch import check_loaded
from numnorm.backends.cuda.compiler.target import Kernel, synchronize
from numnorm.backends.cuda.recurrent.pass_arrays import addresses, dropped_kernel, new


class StepRows(NamedTuple):
    """The rows of the steps of a sequence, as NumPy arrays ``(steps,)``.

    Attributes
    ----------
    start, count : array
        The first row of a step, and its number of rows.
    before, after : array
        The first rows of the states before and after the step, in a history that begins with the
        first states of the batch.
    later : array
        The number of rows of the next step; 0 for the last step.
    """

    start: Any
    count: Any
    before: Any
    after: Any
    later: Any

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The first row of each step, and the row behind its last one."""
        return [*zip(self.start.tolist(), (self.start + self.count).tolist(), strict=True)]


def step_rows(steps: PackedSteps, batch: int) -> StepRows:
    """Return the rows of each step; there is at least one."""
    start, count = steps
    after = batch + start
    return StepRows(start, count, np.append(0, after[:-1]), after, np.append(count[1:], 0))


class StepLaunches:
    """The launches of one kernel in all steps.

    Parameters
    ----------
    kernel : Kernel
    x : DeviceArray
        The launches are on the stream of its library.
    blocks : array (steps,)
        The number of blocks of each launch.
    arguments : tuple
        The kernel's arguments, with addresses in the place of arrays. An array ``(steps,)`` of
        NumPy has the number of each step. -1 and -2 stand for the addresses of arrays that `run`
        takes.
    """

    def __init__(
        self, kernel: Kernel, x: DeviceArray, blocks: Any, arguments: tuple[Any, ...]
    ) -> None:
        check_loaded(kernel, x)
        self._kernel, self._library = kernel, x.lib
        self._stream, self._blocks = x.lib.stream(x.array), blocks.tolist()
        self._numbers = kernel.numbers(tuple(map(_of_first_step, arguments)))
        leaves = [*_leaves(arguments)]
        self._places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray)]
        self._values = np.stack([leaves[i] for i in self._places], axis=1).tolist()
        marks = [leaf if type(leaf) is int else 0 for leaf in leaves]
        self._given = [marks.index(mark) for mark in (-1, -2) if mark in marks]

    def run(self, step: int, *given: Any) -> None:
        """Launch the kernel of a step; `given` are the arrays of -1 and -2, None for no array."""
        numbers = self._numbers
        for place, value in zip(self._places, self._values[step], strict=True):
            numbers[place] = value
        for place, array in zip(self._given, given, strict=True):
            numbers[place] = 0 if array is None else self._library.address(array)
        self._kernel.launch_numbers(self._blocks[step], self._stream, numbers)
        if self._library.waits:
            synchronize(self._stream)


def _leaves(argument: Any) -> Iterator[Any]:
    """Yield what is in groups of arguments, one by one."""
    if isinstance(argument, tuple):
        for each in argument:
            yield from _leaves(each)
    else:
        yield argument


def _of_first_step(argument: Any) -> Any:
    """Return an argument of a launch, which may be a group, with the numbers of the first step."""
    if isinstance(argument, tuple):
        return type(argument)(*map(_of_first_step, argument))
    return argument[0] if isinstance(argument, np.ndarray) else argument


class StepProducts:
    """The products of rows with one matrix in all steps.

    Parameters
    ----------
    x : DeviceArray
    matrix : array (K, N)
    rows : StepRows
    keep : bool
        Whether the products of all steps are kept. Otherwise each step overwrites the one before.
    """

    def __init__(self, x: DeviceArray, matrix: Any, rows: StepRows, *, keep: bool) -> None:
        self._library, self._matrix, self._keep = x.lib, matrix, keep
        self._ranges = rows.ranges if keep else [(0, count) for count in rows.count.tolist()]
        shape = max(stop for _, stop in self._ranges), x.lib.shape(matrix)[1]
        self._target = new(x, shape) if x.lib.writable else None
        self._range: Any = None
        self._kept: list[Any] = []

    def of_step(self, step: int, rows: Any) -> Any:
        """Return the product of the rows of a step, an array ``(rows of the step, N)``."""
        if self._target is None:
            product = self._library.matmul(rows, self._matrix)
            if self._keep:
                self._kept.append(product)
            return product
        if self._ranges[step] != self._range:
            self._range = self._ranges[step]
            self._view = self._library.rows(self._target, *self._range)
        return self._library.matmul(rows, self._matrix, self._view)

    def of_all_steps(self) -> Any:
        """Return the products of all steps, which are kept."""
        return self._library.concatenated(self._kept) if self._target is None else self._target


class StepDropout:
    """The rows of steps times the first rows of a mask of dropout; without one, the rows.

    Parameters
    ----------
    x : DeviceArray
    mask : array (batch, width) or None
    rows : StepRows
    """

    def __init__(self, x: DeviceArray, mask: Any, rows: StepRows) -> None:
        self._library, self._mask = x.lib, mask
        if mask is None:
            return
        shape, kernel = x.lib.shape(mask), dropped_kernel(x.element)
        self._counts, self._result = rows.count.tolist(), new(x, shape)
        sizes = rows.count * shape[1]
        arrays = -1, *addresses(x, (mask, self._result))
        self._launches = StepLaunches(kernel, x, -(-sizes // kernel.threads), (*arrays, sizes))

    def of_step(self, step: int, rows: Any) -> Any:
        """Return the rows of a step times the mask; the next step may overwrite them."""
        if self._mask is None:
            return rows
        self._launches.run(step, rows)
        return self._library.rows(self._result, 0, self._counts[step])
