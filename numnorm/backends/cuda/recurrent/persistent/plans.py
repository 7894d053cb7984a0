"""How the blocks of one kernel share all steps of a recurrent cell, and whether a device has them.

The units are cut into slices and the batch into groups. A block has one slice of one group for all
steps, with the rows of the weights that belong to it in shared memory; a thread has one unit of
one row. All blocks must run at the same time, as they wait for each other.
"""

import dataclasses
from typing import NamedTuple

from numnorm.backends.cuda.compiler.device_limits import DeviceLimits
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.threads.group_reductions import WARP
from numnorm.backends.cuda.threads.row_shape import RowShape

# Of a slice, and of a block. The sums of a row follow from these two alone.
_UNITS, _WARPS = 8, 8
# How many of a block's columns of the weights a thread has at a time, if a unit has only one.
COLUMNS = 4
# For how many rows of a product a thread uses a weight that it has read from shared memory.
_ROWS = (1, 2, 4)
# What a thread is let have, of 32 bits each: such a block is alone on its multiprocessor.
_REGISTERS = 256


@dataclasses.dataclass(frozen=True)
class SliceShape:
    """How the threads of a block share its part of a step.

    Parameters
    ----------
    units : int
        How many units a slice has, a power of two; the last one may have fewer.
    warps : int
        How many warps share the elements of the state that a product is summed over.
    rows : int
        How many rows of a product a thread adds up at a time. No result depends on it.
    whole : bool
        Whether states are whole pieces of 16 bytes, and begin at multiples of it. No result
        depends on that either.
    """

    units: int
    warps: int
    rows: int
    whole: bool

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return WARP * self.warps

    @property
    def teams(self) -> int:
        """The number of rows that a block can have: each of its threads has one unit of one."""
        return self.threads // self.units

    @property
    def tile(self) -> int:
        """The number of rows that a block makes products for at a time."""
        return WARP // self.units * self.rows

    @property
    def turned(self) -> "SliceShape":
        """How a block shares products of one column of each unit, some of them at a time."""
        return SliceShape(self.units // COLUMNS, self.warps, self.rows, self.whole)

    @property
    def of_units(self) -> RowShape:
        """How its threads share the units of its slice."""
        return RowShape(self.units, self.teams, 1, False, single=True)


def padded_width(width: int, element: ElementType) -> int:
    """Return how many elements of a state a product is summed over, with zeros behind the last."""
    return -(-width // element.vector) * element.vector


def shared_numbers(width: int, columns: int, element: ElementType, shape: SliceShape) -> int:
    """Return how many numbers a block shares: weights, states, and the warps' sums of products.

    The width is that of the states, and there are so many columns of the weights.
    """
    pad_packed = padded_width(width, element)
    states = shape.tile * (pad_packed + element.vector)
    return columns * pad_packed + states + shape.warps * shape.tile * columns


class Plan(NamedTuple):
    """What each block does.

    Attributes
    ----------
    shape : SliceShape
        What its threads do.
    slices, groups : int
        How many slices there are, and groups of the batch.
    rows : int
        How many rows a group has; the last one may have fewer.
    memory : int
        How many bytes a block shares.
    """

    shape: SliceShape
    slices: int
    groups: int
    rows: int
    memory: int

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return self.slices * self.groups


def forward_plan(
    batch: int, width: int, gates: int, element: ElementType, limits: DeviceLimits, *, whole: bool
) -> Plan | None:
    """Return how the blocks share cells with so many gates of each unit, or None.

    None stands for what does not fit the device. How many groups there are, and how many rows a
    thread adds up, follow from the device, but no result does: rows know nothing of each other,
    and the slices follow from the width alone.
    """
    return _first_plan(batch, width, (width, gates), element, limits, whole=whole)


def backward_plan(
    batch: int, width: int, gates: int, element: ElementType, limits: DeviceLimits
) -> Plan | None:
    """Return how they share the way back: products of all gates with the columns of a slice."""
    whole = gates * width % element.vector == 0
    return _first_plan(batch, width, (gates * width, 1), element, limits, whole=whole)


def _first_plan(
    batch: int, width: int, product: tuple[int, int], element: ElementType, limits: DeviceLimits,
    *, whole: bool,
) -> Plan | None:  # fmt: skip
    """Return that with the most rows of a product of so many elements, and columns of a unit."""
    summed, columns = product
    for rows in reversed(_ROWS):
        shape = SliceShape(_UNITS, _WARPS, rows, whole)
        of_product = shape.turned if columns == 1 else shape
        numbers = shared_numbers(summed, shape.units * columns, element, of_product)
        plan = _plan(batch, width, limits, shape, of_product.tile, element.itemsize * numbers)
        if plan is not None:
            return plan
    return None


def _plan(
    batch: int, width: int, limits: DeviceLimits, shape: SliceShape, tile: int, memory: int
) -> Plan | None:
    most = limits.blocks(shape.threads, _REGISTERS, memory)
    slices = -(-width // shape.units)
    fewest, widest = -(-batch // shape.teams), -(-batch // (WARP // shape.units))
    # A block for every multiprocessor, but no group of fewer rows than a warp has at a time.
    groups = max(fewest, min(limits.multiprocessors // slices, widest))
    if slices * groups > most:
        return None
    rows = -(-batch // groups)
    # A smaller tile would do for all rows: it needs less of everything.
    if shape.rows > 1 and rows <= tile // 2:
        return None
    return Plan(shape, slices, -(-batch // rows), rows, memory)
