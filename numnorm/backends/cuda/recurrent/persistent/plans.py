"""How the blocks of a cooperative kernel share all steps of a cell, if they fit a device.

The units are split into slices and the batch into groups of rows. A block has one slice of one
group for all steps, and the slice's part of the weights in shared memory. A thread has one unit of
one row. All blocks must run at the same time, because they wait for each other.
"""

import dataclasses
from typing import NamedTuple

from numnorm.backends.cuda.compiler.device_limits import DeviceLimits
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.threads.reductions import WARP
from numnorm.backends.cuda.threads.row_shape import RowShape

# The units of a slice, and the warps of a block. The order of a row's sums depends only on these.
_UNITS, _WARPS = 8, 8
# The columns of the weights that a thread multiplies at a time if each unit has only one.
COLUMNS = 4
# The rows for which a thread uses each weight that it loads from shared memory.
_ROWS = (1, 2, 4)
# The registers of a thread, so many that a block is alone on its multiprocessor.
_REGISTERS = 256


@dataclasses.dataclass(frozen=True)
class SliceShape:
    """How the threads of a block share its part of a step.

    Parameters
    ----------
    units : int
        The number of units of a slice, a power of two; the last slice may have fewer.
    warps : int
        The number of warps, which share the terms of each product's sums.
    rows : int
        The number of rows that a thread multiplies at a time. No result depends on it.
    whole : bool
        Whether rows of states fill and begin at multiples of 16 bytes. No result depends on it.
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
        """The most rows of a block: each thread has one unit of one row."""
        return self.threads // self.units

    @property
    def tile(self) -> int:
        """The number of rows that a block multiplies at a time."""
        return WARP // self.units * self.rows

    @property
    def transposed(self) -> "SliceShape":
        """The shape for products of one column of each unit: a thread has `COLUMNS` units."""
        return SliceShape(self.units // COLUMNS, self.warps, self.rows, self.whole)

    @property
    def of_units(self) -> RowShape:
        """How the threads share the units of the slice."""
        return RowShape(self.units, self.teams, 1, False, single=True)


def padded_width(width: int, element: ElementType) -> int:
    """Return the length of a row that is padded with zeros to a multiple of 16 bytes."""
    return -(-width // element.vector) * element.vector


def shared_numbers(width: int, columns: int, element: ElementType, shape: SliceShape) -> int:
    """Return the numbers in shared memory: weights, a tile of states, partial sums of warps.

    `width` is the number of terms of a product's sums, `columns` that of the weights' columns.
    """
    padded = padded_width(width, element)
    states = shape.tile * (padded + element.vector)
    return columns * padded + states + shape.warps * shape.tile * columns


class Plan(NamedTuple):
    """The launch configuration.

    Attributes
    ----------
    shape : SliceShape
        How the threads of a block share its work.
    slices, groups : int
        The numbers of slices of the units and of groups of the batch.
    rows : int
        The number of rows of a group; the last group may have fewer.
    memory : int
        The bytes of shared memory of a block.
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
    """Return the plan of the forward kernel, or None if it does not fit the device.

    The groups and the rows of a thread depend on the device, but no result does: rows are
    independent, and the slices depend only on the width.
    """
    return _first_plan(batch, width, (width, gates), element, limits, whole=whole)


def backward_plan(
    batch: int, width: int, gates: int, element: ElementType, limits: DeviceLimits
) -> Plan | None:
    """Return the plan of the backward kernel, or None if it does not fit the device."""
    whole = gates * width % element.vector == 0
    return _first_plan(batch, width, (gates * width, 1), element, limits, whole=whole)


def _first_plan(
    batch: int, width: int, product: tuple[int, int], element: ElementType, limits: DeviceLimits,
    *, whole: bool,
) -> Plan | None:  # fmt: skip
    """Return the plan that fits with the most rows of a thread.

    `product` is the number of terms of a product's sums, and of the weights' columns of a unit.
    """
    terms, columns = product
    for rows in reversed(_ROWS):
        shape = SliceShape(_UNITS, _WARPS, rows, whole)
        of_product = shape.transposed if columns == 1 else shape
        numbers = shared_numbers(terms, shape.units * columns, element, of_product)
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
    # A block for each multiprocessor, but no group with fewer rows than a warp has at a time.
    groups = max(fewest, min(limits.multiprocessors // slices, widest))
    if slices * groups > most:
        return None
    rows = -(-batch // groups)
    # A smaller tile also has all rows, and needs less memory and fewer registers.
    if shape.rows > 1 and rows <= tile // 2:
        return None
    return Plan(shape, slices, -(-batch // rows), rows, memory)
