"""The unit and the row that a thread has in all steps, and the size of a step."""

from typing import Any

from numnorm.backends.cuda.compiler.target import cuda, device, load_index
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape


def make_locate(shape: SliceShape) -> Any:
    """Return a device function ``locate(slices, group, batch, width)`` for a thread.

    There are `slices` of the units, and groups of `group` rows of the batch. It returns ``shard,
    unit, first, row``: the first row of the block's group and the thread's row, -1 if it has none.
    The shard is ``(slices, slice, unit in the slice, units of the slice, units of the last)``.
    """
    units = shape.units

    @device
    def locate(slices, group, batch, width):
        part, first = cuda.blockIdx.x % slices, cuda.blockIdx.x // slices * group
        unit, team = cuda.threadIdx.x % units, cuda.threadIdx.x // units
        last = width - (slices - 1) * units
        shard = slices, part, unit, units if part < slices - 1 else last, last
        row = first + team if team < group and first + team < batch else -1
        return shard, part * units + unit, first, row

    return locate


@device
def batch_size_of(batch_sizes: Any, step: Any, batch: Any) -> Any:
    """Return the number of rows of a step: without an array of them, that of the batch."""
    return load_index(batch_sizes, step) if batch_sizes != 0 else batch
