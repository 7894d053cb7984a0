"""Calls of the column kernels from XLA: batch norm with the statistics of the batch."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.core import config

from numnorm.backends.cpu.columns.moments import unit_of
from numnorm.backends.cpu.columns.plan import plan_of
from numnorm.backends.cpu.xla.column_handlers import backward_handler, forward_handler
from numnorm.layouts import ColumnLayout


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
    block_unit = unit_of(layout.block * layout.inner)
    unit = block_unit if layout.blocks == 1 else unit_of(count)
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
