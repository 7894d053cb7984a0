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
        Whether it has the usual dimensions of the parameter, or broadcasts against x.
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
    samples : int or None
        How many first axes the function gets as one; None leaves all as they are.
    own : tuple of int
        The axes, in this order, that the usual shape of a parameter has.
    placements : tuple of Placement
        Of each parameter.
    serial : bool
        Whether to use one thread, because others run at the same time.
    """

    function: Callable[..., Any]
    options: Mapping[str, Any]
    order: tuple[int, ...]
    samples: int | None
    own: tuple[int, ...]
    placements: tuple[Placement, ...]
    serial: bool


def normalized_block(x: Any, *parameters: Any, plan: Plan) -> Any:
    """Return the normalized block, of the shape of the block."""
    ordered = x.transpose(plan.order)
    keywords = {
        placement.name: _placed(array, placement, ordered.shape, plan)
        for array, placement in zip(parameters, plan.placements, strict=True)
    }
    given = _first_axes_as_one(ordered, ordered.shape, plan.samples)
    with num_threads(1) if plan.serial else contextlib.nullcontext():
        y = plan.function(given, **keywords, **plan.options)
    return y.reshape(ordered.shape).transpose(_inverse(plan.order))


def _placed(array: Any, placement: Placement, shape: tuple[int, ...], plan: Plan) -> Any:
    """Return a parameter in the usual shape, or with as many axes as x."""
    loops = len(shape) - len(placement.core)
    core = iter(array.shape[array.ndim - sum(placement.core) :])
    given = array.shape[: array.ndim - sum(placement.core)]
    full = array.reshape(
        (1,) * (loops - len(given))
        + given
        + tuple(next(core) if present else 1 for present in placement.core)
    ).transpose(plan.order)
    if placement.plain:
        return full.reshape([shape[axis] for axis in plan.own])
    return _first_axes_as_one(full, shape, plan.samples)


def _first_axes_as_one(array: Any, shape: tuple[int, ...], count: int | None) -> Any:
    """Return an array that broadcasts to a shape with its first axes as one."""
    if count is None:
        return array
    first, last = array.shape[:count], array.shape[count:]
    if math.prod(first) != 1:
        array = np.broadcast_to(array, (*shape[:count], *last))
        first = shape[:count]
    return array.reshape((math.prod(first), *last))


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))
