"""What is called for each block of an array: a function of numnorm on plain arrays.

These are functions of a module, and their arguments are plain, so that Dask gives the same block
the same name in every process.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from numnorm.array_likes import as_plain_array, is_on_device
from numnorm.host_libraries import results_like
from numnorm.threads import num_threads


class Placement(NamedTuple):
    """How a parameter lies along the dimensions of x.

    Attributes
    ----------
    name : str
        The keyword of the function.
    core : tuple of bool
        Whether it has each of the core dimensions.
    plain : bool
        Whether it has exactly the usual dimensions of this parameter; otherwise it broadcasts
        against x.
    """

    name: str
    core: tuple[bool, ...]
    plain: bool


class Plan(NamedTuple):
    """What is done with a block, whose axes are the loop dimensions and then the core dimensions.

    Attributes
    ----------
    function : callable
        A norm of numnorm.
    options : mapping
        Its other arguments.
    order : tuple of int
        The axes of the block in the order in which the function gets them.
    merged : int or None
        The number of first axes that the function gets as one axis; None leaves all as they are.
    own : tuple of int
        The axes of the function's array along which a parameter of the usual shape lies.
    placements : tuple of Placement
        Of each parameter.
    serial : bool
        Whether to use one thread, because others run at the same time.
    """

    function: Callable[..., Any]
    options: Mapping[str, Any]
    order: tuple[int, ...]
    merged: int | None
    own: tuple[int, ...]
    placements: tuple[Placement, ...]
    serial: bool


def normalized_block(x: Any, *parameters: Any, plan: Plan) -> Any:
    """Return the normalized block, of the shape of the block."""
    result = None if is_on_device(x) else results_like(x)
    ordered = _array("x", x).transpose(plan.order)
    given = _first_axes_as_one(ordered, ordered.shape, plan.merged)
    keywords = {}
    for array, placement in zip(parameters, plan.placements, strict=True):
        own = _array(placement.name, array)
        full = _with_axes_of_x(own, placement, ordered.ndim).transpose(plan.order)
        placed = _first_axes_as_one(full, ordered.shape, plan.merged)
        if placement.plain:
            placed = placed.reshape([placed.shape[axis] for axis in plan.own])
        elif len(plan.own) == given.ndim:  # the usual shape is that of x
            placed = np.broadcast_to(placed, given.shape)
        keywords[placement.name] = placed
    with num_threads(1) if plan.serial else contextlib.nullcontext():
        y = plan.function(given, **keywords, **plan.options)
    y = y.reshape(ordered.shape).transpose(_inverse(plan.order))
    return y if result is None else result(y)


def _array(name: str, array: Any) -> Any:
    """Return an array as one of NumPy, or as it is on a device."""
    return array if is_on_device(array) else as_plain_array(name, array)


def _with_axes_of_x(array: Any, placement: Placement, ndim: int) -> Any:
    """Return a parameter with the axes of the block: loop dimensions, then core dimensions."""
    own_core = sum(placement.core)
    loops = array.shape[: array.ndim - own_core]  # leading ones may be missing
    core = iter(array.shape[array.ndim - own_core :])
    missing = ndim - len(placement.core) - len(loops)
    last = [next(core) if present else 1 for present in placement.core]
    return array.reshape((*(1,) * missing, *loops, *last))


def _first_axes_as_one(array: Any, shape: tuple[int, ...], count: int | None) -> Any:
    """Return an array that broadcasts to a shape, with its `count` first axes as one axis."""
    if count is None:
        return array
    first, last = array.shape[:count], array.shape[count:]
    if math.prod(first) != 1:
        array = np.broadcast_to(array, (*shape[:count], *last))
        first = shape[:count]
    return array.reshape((math.prod(first), *last))


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))
