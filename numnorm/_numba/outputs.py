"""Results in nopython code: where kernels store them, and how the caller gets them."""

import typing
from collections.abc import Callable
from typing import Any

from numba.extending import overload

from numnorm._numba.arrays import (
    address,
    assign,
    clashes,
    empty,
    make_named,
    restored,
    types,
    viewed,
)
from numnorm._numba.helpers import OPTIONS, helper


def new_target(out, order, size, real, inputs):
    """Return an array of `size` for a kernel's result: the memory of `out` if possible."""


def result(target, x, order, out, real):
    """Return the result of a kernel in the shape of x and the dtype `real`: `out`, if given."""


def _is_memory(out, order, dtype):
    """Return whether a kernel can store its result in `out`."""
    if not isinstance(out, types.Array) or not isinstance(order, types.NoneType):
        return False
    return out.layout == "C" and out.dtype == dtype


@overload(new_target, jit_options=OPTIONS)
def _new_target(out, order, size, real, inputs):
    if not _is_memory(out, order, real.dtype):
        return lambda out, order, size, real, inputs: empty(size, real)

    def own(out, order, size, real, inputs):
        memory = viewed(out, size)
        return empty(size, real) if clashes(memory, inputs) else memory

    return own


@overload(result, jit_options=OPTIONS)
def _result(target, x, order, out, real):
    if isinstance(out, types.NoneType):
        if target.dtype == real.dtype:
            return lambda target, x, order, out, real: restored(target, x, order)

        def rounded(target, x, order, out, real):
            own = empty(target.shape, real)
            assign(own, target)
            return restored(own, x, order)

        return rounded
    is_memory = _is_memory(out, order, target.dtype)

    def stored(target, x, order, out, real):
        if not (is_memory and address(target) == address(out)):
            assign(out, restored(target, x, order))
        return out

    return stored


@helper
def add_parts(totals, gradient):
    """Add up the sums of all parts in order, and round the result once, to a 1-D gradient."""
    parts, size = totals.shape[0], gradient.size
    sums = viewed(totals, (parts, size))
    for j in range(size):
        total = sums[0, j]
        for p in range(1, parts):
            total += sums[p, j]
        gradient[j] = total


@helper
def fill(array, value):
    """Set all elements of a C-contiguous array."""
    flat = viewed(array, (array.size,))
    for i in range(flat.size):
        flat[i] = value


# Where a result lies in what a pass returns. For a norm of lengths the mean is the length.
_PLACES = {"y": 0, "mean": 1, "norm": 1, "rstd": 2, "dx": 0, "dgamma": 1, "dg": 1, "dbeta": 2}


def results_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a compiled function: it makes what a public function returns of a pass's results."""
    group = typing.get_origin(typing.get_type_hints(function)["return"])
    if group is None:
        return helper(lambda results: results[0])
    named: Callable[..., Any] = make_named(group)
    _, second, *others = (_PLACES[field] for field in group._fields)
    if others:
        return named
    return helper(lambda results: named((results[0], results[second])))
