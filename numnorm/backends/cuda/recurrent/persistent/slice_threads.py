"""Which unit of which row a thread has, from the first step to the last."""

from typing import Any

from numnorm.backends.cuda.compiler.target import cuda, device, load_index
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape


def make_place_of(shape: SliceShape) -> Any:
    """Return a device function ``place_of(slices, group, batch, width)``.

    The blocks have so many slices of groups of so many rows of the batch. It returns ``shard``,
    as `make_all_reduce` takes it; the thread's unit; the first row of the block's group; and the
    thread's row, negative if there is none.
    """
    units = shape.units

    @device
    def place_of(slices, group, batch, width):
        part, first = cuda.blockIdx.x % slices, cuda.blockIdx.x // slices * group
        unit, team = cuda.threadIdx.x % units, cuda.threadIdx.x // units
        last = width - (slices - 1) * units
        shard = slices, part, unit, units if part < slices - 1 else last, last
        mine = first + team if team < group and first + team < batch else -1
        return shard, part * units + unit, first, mine

    return place_of


@device
def count_of(batch_sizes: Any, step: Any, batch: Any) -> Any:
    """Return how many rows a step has: without an array of counts, those of the batch."""
    return load_index(batch_sizes, step) if batch_sizes != 0 else batch
