"""Calls of the column kernels from XLA: batch norm with the statistics of the batch.

The handlers do in compiled code what `columns` does for NumPy arrays.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.core import config

from numnorm.backends.cpu.columns import columns, moments
from numnorm.backends.cpu.columns.plan import Plan, plan_of
from numnorm.backends.cpu.compiler.jit import (
    Kernel,
    address_of,
    inlined,
    make_call,
    make_function,
)
from numnorm.backends.cpu.statistics import stored
from numnorm.backends.cpu.xla.frames import make_array_at, real
from numnorm.backends.cpu.xla.handlers import compiled_handler
from numnorm.backends.cpu.xla.row_calls import argument, numbers_of, result, whole
from numnorm.layouts import ColumnLayout

# Handlers


# The index of each number of a call. The first ones serve both passes.
_GROUPS, _PARAMETER_GROUPS, _OUTER, _CHANNELS, _INNER = range(5)
_BLOCK, _BLOCKS, _BLOCK_PARTS, _PARTS = range(5, 9)
# In bytes, as they are no integers.
_INV_COUNT = 72
_BLOCK_UNIT, _UNIT, _DIVISOR, _EPS = range(72, 104, 8)
_BLOCK_COUNT, _LAST_COUNT, _MOVED_DIVISOR, _WEIGHT = range(104, 136, 8)


class _Code(NamedTuple):
    """A compiled function: its address, and ``call(address, arguments)`` for compiled code."""

    address: int
    call: Callable[..., Any]


def _code(function: Any, *example: Any) -> _Code:
    """Return the code of a function, or of a kernel without first and last, for such arguments."""
    if isinstance(function, Kernel):
        found: Any = function.machine_code(example)
        return _Code(found.address, make_call(found.kinds))
    kinds = tuple(map(function.typeof_pyval, example))
    function.compile(kinds)
    returned = function.overloads[kinds].signature.return_type
    return _Code(address_of(function, kinds), make_call(kinds, returned))


def _make_channels(kind: Any, index: int, present: bool) -> Any:
    """Return a compiled ``channels(frame, numbers, g)``: an argument with a number a channel."""
    array_at, itemsize = make_array_at(kind, 1), np.dtype(kind).itemsize

    @inlined
    def array(frame, numbers, g):
        count = whole(numbers, _CHANNELS)
        of_group = g * count * itemsize if whole(numbers, _PARAMETER_GROUPS) > 1 else 0
        return array_at(argument(frame, index) + of_group, (count,))

    @inlined
    def nothing(frame, numbers, g):
        return None

    return array if present else nothing


def _make_x(plan: Plan) -> Any:
    """Return a compiled ``x_at(address, numbers, g)``: the array of a group."""
    across, storage = len(plan.shape) == 2, plan.element_type.storage_dtype
    array_at, itemsize = make_array_at(storage, 2 if across else 3), storage.itemsize

    @inlined
    def matrix(address, numbers, g):
        outer, channels = whole(numbers, _OUTER), whole(numbers, _CHANNELS)
        return array_at(address + g * outer * channels * itemsize, (outer, channels))

    @inlined
    def cube(address, numbers, g):
        outer, channels = whole(numbers, _OUTER), whole(numbers, _CHANNELS)
        inner = whole(numbers, _INNER)
        start = address + g * outer * channels * inner * itemsize
        return array_at(start, (outer, channels, inner))

    return matrix if across else cube


def _make_moments(plan: Plan, x: Any) -> tuple[Any, tuple[int, ...]]:
    """Return a compiled function of the moments of a group, and the addresses that it takes.

    ``moments_of(addresses, x, numbers, partial, total)`` returns the address of the mean and that
    of m2, of the scratch at the addresses `partial` and `total`.
    """
    partial, table = np.empty((3, 0, 0)), np.empty((3, 0))
    kernel = _code(plan.family.moments(plan.element_type), x, 0, 0.0, partial)
    fold = _code(moments.fold_kernel(), 0.0, table, 0.0, 0.0, partial, 0.0, 0.0)
    call, call_fold = kernel.call, fold.call
    partial_at, table_at = make_array_at(np.float64, 3), make_array_at(np.float64, 2)

    @inlined
    def moments_of(addresses, x, numbers, partial, total):
        channels, blocks = whole(numbers, _CHANNELS), whole(numbers, _BLOCKS)
        found, parts = partial_at(partial, (3, blocks, channels)), whole(numbers, _BLOCK_PARTS)
        block_unit = real(numbers, _BLOCK_UNIT)
        call(addresses[0], (0, (x, whole(numbers, _BLOCK), block_unit, found, 0, parts)))
        start = partial
        if blocks > 1:
            start = total
            call_fold(
                addresses[1],
                (
                    0.0, table_at(total, (3, channels)), real(numbers, _BLOCK_COUNT),
                    real(numbers, _LAST_COUNT), found, real(numbers, _UNIT), block_unit,
                ),
            )  # fmt: skip
        return start, start + 16 * channels

    return moments_of, (kernel.address, fold.address)


def _make_scaled(kernel: Kernel, before: tuple[Any, ...], after: tuple[Any, ...]) -> Any:
    """Return a compiled function that runs a kernel whether elements are scaled or not.

    ``run(addresses, before, scaled, after)`` takes the kernel's arguments before and after
    `scaled`. The result is the function and the two addresses that it takes.
    """
    plain = _code(kernel, *before, None, *after)
    other = _code(kernel, *before, True, *after)
    call_plain, call_other = plain.call, other.call

    @inlined
    def run(addresses, before, scaled, after):
        if scaled:
            call_other(addresses[1], (0, (*before, np.bool_(scaled), *after)))
        else:
            call_plain(addresses[0], (0, (*before, None, *after)))

    return run, (plain.address, other.address)


def _make_move(running: str | None, index: int) -> tuple[Any, tuple[int, ...]]:
    """Return a compiled ``move(addresses, frame, numbers, g, mean, m2)``, and its addresses.

    It stores the new running statistics of a group, from the old ones, whose arguments begin at
    `index`.
    """
    if running is None:

        @inlined
        def nothing(addresses, frame, numbers, g, mean, m2):
            pass

        return nothing, (0,)
    kind, each = np.dtype(running), np.empty(0)
    like = np.empty(0, kind)
    code = _code(stored.moving_averages(), like, like, each, each, 0.0, 0.0)
    call, array_at, itemsize = code.call, make_array_at(kind, 1), kind.itemsize
    mean_of, var_of = _make_channels(kind, index, True), _make_channels(kind, index + 1, True)

    @inlined
    def move(addresses, frame, numbers, g, mean, m2):
        old_mean, old_var = mean_of(frame, numbers, g), var_of(frame, numbers, g)
        size = old_mean.size
        new_mean = array_at(result(frame, 3) + g * size * itemsize, (size,))
        new_var = array_at(result(frame, 4) + g * size * itemsize, (size,))
        for c in range(size):
            new_mean[c] = old_mean[c]
            new_var[c] = old_var[c]
        divisor, weight = real(numbers, _MOVED_DIVISOR), real(numbers, _WEIGHT)
        call(addresses[0], (new_mean, new_var, mean, m2, divisor, weight))

    return move, (code.address,)


def forward_handler(name: str, plan: Plan, given: tuple[bool, bool], running: str | None) -> int:
    """Return the address of the handler of a forward pass."""
    element_type, kind = plan.element_type, plan.compute_dtype
    x_at, each_at = _make_x(plan), make_array_at(np.float64, 1)
    x, each = np.empty((0,) * len(plan.shape), element_type.storage_dtype), np.empty(0)
    table, table_at = np.empty((4, 0), kind), make_array_at(kind, 2)
    gamma_of, beta_of = (
        _make_channels(kind, 1, given[0]),
        _make_channels(kind, 1 + given[0], given[1]),
    )
    weights = (np.empty(0, kind) if there else None for there in given)
    coefficients = _code(
        columns.output_coefficients(element_type), each, each, 0.0, 0.0, *weights, each, table
    )
    coefficients_of = coefficients.call
    moments_of, of_moments = _make_moments(plan, x)
    run, of_run = _make_scaled(plan.family.forward(element_type), (x, table), (x, 0, 0))
    move, of_move = _make_move(running, 1 + sum(given))
    scratch = 3 if running is None else 5

    def handler(first, second, third, fourth, fifth, sixth, frame):
        numbers = numbers_of(frame)
        channels, parts = whole(numbers, _CHANNELS), whole(numbers, _PARTS)
        for g in range(whole(numbers, _GROUPS)):
            x, y = x_at(argument(frame, 0), numbers, g), x_at(result(frame, 0), numbers, g)
            mean = each_at(result(frame, 1) + g * channels * 8, (channels,))
            rstd = each_at(result(frame, 2) + g * channels * 8, (channels,))
            partial, total = result(frame, scratch), result(frame, scratch + 1)
            table = table_at(result(frame, scratch + 2), (4, channels))
            found = moments_of((first, second), x, numbers, partial, total)
            means, m2 = each_at(found[0], (channels,)), each_at(found[1], (channels,))
            scaled = coefficients_of(
                third,
                (
                    means, m2, real(numbers, _DIVISOR), real(numbers, _EPS),
                    gamma_of(frame, numbers, g), beta_of(frame, numbers, g), rstd, table,
                ),
            )  # fmt: skip
            run((fourth, fifth), (x, table), scaled == 1, (y, 0, parts, 0, parts))
            move((sixth,), frame, numbers, g, means, m2)
            for c in range(channels):
                mean[c] = means[c]

    addresses = *of_moments, coefficients.address, *of_run, *of_move
    return compiled_handler(make_function(f"xla.{name}", handler), addresses)


def backward_handler(name: str, plan: Plan, has_gamma: bool) -> int:
    """Return the address of the handler of a backward pass."""
    element_type, kind = plan.element_type, plan.compute_dtype
    x_at, each_at = _make_x(plan), make_array_at(np.float64, 1)
    x, each = np.empty((0,) * len(plan.shape), element_type.storage_dtype), np.empty(0)
    table, table_at = np.empty((8, 0), kind), make_array_at(kind, 2)
    sums, sums_at = np.empty((2, 0, 0)), make_array_at(np.float64, 3)
    gamma_of, gamma = _make_channels(kind, 4, has_gamma), np.empty(0, kind) if has_gamma else None
    centre = _code(columns.centre_coefficients(element_type), each, each, table)
    add = _code(plan.family.sums(element_type), x, x, table, 0, sums)
    gradient = _code(
        columns.gradient_coefficients(element_type),
        gamma, sums, 0.0, 0.0, False, np.empty((2, 0), kind), table,
    )  # fmt: skip
    run, of_run = _make_scaled(plan.family.dx(element_type), (x, x, table), (x, 0, 0))
    centre_of, add_up, gradient_of, itemsize = centre.call, add.call, gradient.call, kind.itemsize

    def handler(first, second, third, fourth, fifth, frame):
        numbers = numbers_of(frame)
        channels, parts = whole(numbers, _CHANNELS), whole(numbers, _PARTS)
        block, blocks = whole(numbers, _BLOCK), whole(numbers, _BLOCKS)
        inv_count = real(numbers, _INV_COUNT)
        sums = sums_at(result(frame, 2), (2, blocks, channels))
        table = table_at(result(frame, 3), (8, channels))
        for g in range(whole(numbers, _GROUPS)):
            dy, x = x_at(argument(frame, 0), numbers, g), x_at(argument(frame, 1), numbers, g)
            mean = each_at(argument(frame, 2) + g * channels * 8, (channels,))
            rstd = each_at(argument(frame, 3) + g * channels * 8, (channels,))
            gradients = table_at(result(frame, 1) + 2 * g * channels * itemsize, (2, channels))
            scaled, _ = centre_of(first, (mean, rstd, table))
            add_up(second, (0, (dy, x, table, block, sums, 0, whole(numbers, _BLOCK_PARTS))))
            scaled = gradient_of(
                third,
                (
                    gamma_of(frame, numbers, g), sums, inv_count, inv_count, scaled, gradients,
                    table,
                ),
            )  # fmt: skip
            dx = x_at(result(frame, 0), numbers, g)
            run((fourth, fifth), (dy, x, table), scaled, (dx, 0, parts, 0, parts))

    addresses = centre.address, add.address, gradient.address, *of_run
    return compiled_handler(make_function(f"xla.{name}", handler), addresses)


# Calls


class ColumnCall(NamedTuple):
    """A call of a handler.

    Attributes
    ----------
    name, numbers, handler
        As for a call of a row kernel.
    scratch : tuple of tuple
        The dtype and the shape of each of the last results, which only the handler uses.
    """

    name: str
    numbers: tuple[float, ...]
    handler: Callable[[], int]
    scratch: tuple[tuple[str, tuple[int, ...]], ...]


def is_compiled(dtype: np.dtype[Any]) -> bool:
    """Return whether there are handlers for a dtype.

    The means of float64 may have to be restored, which takes NumPy.
    """
    return dtype.name != "float64" and not config.DISABLE_JIT


def forward_call(
    dtype: np.dtype[Any],
    layout: ColumnLayout,
    groups: tuple[int, int],
    given: tuple[bool, bool],
    running: str | None,
    eps: float,
    correction: int,
    weight: float,
) -> ColumnCall:
    """Return the call with the arguments x, gamma, beta and both running statistics.

    `given` says whether there are gamma and beta, and `running` is the dtype of the running
    statistics, if there are any. The results are y, mean, rstd and the new running statistics.
    """
    plan, count = plan_of(dtype, layout), layout.per_channel
    block_unit = moments.unit_of(layout.block * layout.inner)
    unit = block_unit if layout.blocks == 1 else moments.unit_of(count)
    last = (layout.outer - (layout.blocks - 1) * layout.block) * layout.inner
    numbers = (
        *groups, layout.outer, layout.channels, layout.inner, layout.block, layout.blocks,
        plan.block_parts, plan.parts, block_unit, unit, count * unit, eps,
        layout.block * layout.inner, last, (count - correction) * unit, weight,
    )  # fmt: skip
    across = layout.inner == 1
    name = ".".join(
        ("column_forward", "across" if across else "along", plan.element_type.name, str(running))
    )
    name += ".gamma" * given[0] + ".beta" * given[1]
    make = functools.partial(forward_handler, name, plan, given, running)
    channels = layout.channels
    scratch = (
        ("float64", (3, layout.blocks, channels)),
        ("float64", (3, channels)),
        (plan.compute_dtype.name, (4, channels)),
    )
    return ColumnCall(name, tuple(map(float, numbers)), make, scratch)


def backward_call(
    dtype: np.dtype[Any], layout: ColumnLayout, groups: tuple[int, int], gamma: bool
) -> ColumnCall:
    """Return the call with the arguments dy, x, mean, rstd and maybe gamma.

    The results are dx and, in one array, dgamma and dbeta.
    """
    plan = plan_of(dtype, layout)
    numbers = (
        *groups, layout.outer, layout.channels, layout.inner, layout.block, layout.blocks,
        plan.block_parts, plan.parts, 1.0 / layout.per_channel,
    )  # fmt: skip
    across = layout.inner == 1
    name = ".".join(("column_backward", "across" if across else "along", plan.element_type.name))
    name += ".gamma" * gamma
    make = functools.partial(backward_handler, name, plan, gamma)
    scratch = (
        ("float64", (2, layout.blocks, layout.channels)),
        (plan.compute_dtype.name, (8, layout.channels)),
    )
    return ColumnCall(name, tuple(map(float, numbers)), make, scratch)
