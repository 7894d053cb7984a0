"""Vectors of eight sequences, which kernels take through time side by side.

A lane is a channel, or a channel from one of its anchors on. If at least eight channels are
adjacent in memory, the lanes are adjacent ("across"), or else each has its own address ("along").
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.functions import make_converted
from numnorm.backends.cpu.simd.vector import INDEX, Vector, compiled_as, make_load, store

LANES = 8


def _plain_gather(array: Any, starts: Any, offset: int) -> Any:
    return array[starts + offset]


def _plain_scatter(array: Any, starts: Any, offset: int, lanes: Any) -> None:
    array[starts + offset] = lanes


def _pointers(context: Any, builder: Any, kinds: Any, arguments: Any) -> list[Any]:
    """Return the address of each lane's element, for arguments (array, starts, offset, ...)."""
    data, first = (
        context.make_array(kind)(context, builder, value).data
        for kind, value in zip(kinds[:2], arguments[:2], strict=True)
    )
    starts = [builder.load(builder.gep(first, [INDEX(lane)])) for lane in range(LANES)]
    return [builder.gep(data, [builder.add(start, arguments[2])]) for start in starts]


@compiled_as(_plain_gather)
def _gather(typing_context, array, starts, offset):
    """Return the vector of ``array[starts[lane] + offset]``."""
    result = Vector(array.dtype, LANES)

    def generate(context, builder, signature, arguments):
        value = ir.Constant(context.get_value_type(result), ir.Undefined)
        for lane, pointer in enumerate(_pointers(context, builder, signature.args, arguments)):
            value = builder.insert_element(value, builder.load(pointer), INDEX(lane))
        return value

    return result(array, starts, types.intp), generate


@compiled_as(_plain_scatter)
def _scatter(typing_context, array, starts, offset, lanes):
    """Store the lanes to ``array[starts[lane] + offset]``."""

    def generate(context, builder, signature, arguments):
        for lane, pointer in enumerate(_pointers(context, builder, signature.args, arguments)):
            builder.store(builder.extract_element(arguments[3], INDEX(lane)), pointer)
        return context.get_dummy_value()

    return types.void(array, starts, types.intp, lanes), generate


_load = make_load(LANES)


@inlined
def _read_adjacent(array, starts, offset):
    return _load(array, starts[0] + offset)


@inlined
def _write_adjacent(array, starts, offset, lanes):
    store(array, starts[0] + offset, lanes)


class LaneAccess(NamedTuple):
    """Compiled functions for the elements of the lanes at an offset from their starts.

    Attributes
    ----------
    read : callable
        ``read(array, starts, offset)``: the elements as a vector of float64.
    write : callable
        ``write(array, starts, offset, lanes)``: stores a vector of float64, rounded.
    read_statistic, write_statistic : callable
        The same for arrays of float64.
    """

    read: Callable[..., Any]
    write: Callable[..., Any]
    read_statistic: Callable[..., Any]
    write_statistic: Callable[..., Any]


@functools.cache
def lane_access(element_type: ElementType, across: bool) -> LaneAccess:
    """Return the access to elements of a type."""
    read_stored = _read_adjacent if across else _gather
    write_stored = _write_adjacent if across else _scatter
    to_compute, to_storage = element_type.to_compute, element_type.to_storage
    to_float64, to_real = make_converted(np.float64), make_converted(element_type.compute_type)

    @inlined
    def read(array, starts, offset):
        return to_float64(to_compute(read_stored(array, starts, offset)))

    @inlined
    def write(array, starts, offset, lanes):
        write_stored(array, starts, offset, to_storage(to_real(lanes)))

    return LaneAccess(read, write, read_stored, write_stored)


# Groups of lanes


def group_count(shape: tuple[int, int, int], blocks: int, special: int, across: bool) -> int:
    """Return the number of groups that `make_locate` numbers."""
    outer, _, inner = shape
    if across:
        return outer * -(-inner // LANES) * blocks
    special = min(blocks, special)
    each = -(-outer * inner // LANES)
    return each * special + -(-outer * inner * (blocks - special) // LANES)


@functools.cache
def make_locate(across: bool, heads: int, tails: int) -> Callable[..., Any]:
    """Return a compiled ``locate(group, shape, blocks, anchor, window, starts)``.

    It sets the flat indices `starts` of the group's lanes, each at an anchor: at the step
    ``anchor + block * window`` of its channel. It returns the block. The lanes of a group have one
    block among the first `heads` and the last `tails`; if lanes are not adjacent, other groups have
    lanes of any other blocks, and the first of those is returned.
    """

    @inlined
    def locate_across(group, shape, blocks, anchor, window, starts):
        _, steps, inner = shape
        block, rest = group % blocks, group // blocks
        each = (inner + LANES - 1) // LANES
        first = min(rest % each * LANES, inner - LANES)  # the last two groups may overlap
        starts[0] = (rest // each * steps + anchor + block * window) * inner + first
        return block

    @inlined
    def locate_along(group, shape, blocks, anchor, window, starts):
        outer, steps, inner = shape
        channels = outer * inner
        special = min(blocks, heads + tails)
        each = (channels + LANES - 1) // LANES
        others = blocks - special
        block = group // each
        if block >= heads:
            block += others
        alone = group < each * special
        for lane in range(LANES):
            # Lanes that are left over do the same as the last one.
            if alone:
                own = block
                channel = min(group % each * LANES + lane, channels - 1)
            else:
                number = (group - each * special) * LANES + lane
                number = min(number, channels * others - 1)
                own, channel = heads + number % others, number // others
            step = anchor + own * window
            starts[lane] = (channel // inner * steps + step) * inner + channel % inner
        return block if alone else heads

    return locate_across if across else locate_along
