"""Calls of the row kernels from XLA: the handler, and the numbers that it gets.

A call has groups of rows. They share gamma and beta, or each group has its own: that is how an axis
that `jax.vmap` maps comes here. Each group has gradients of gamma and beta of its own.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.norms import Detached, Norm, Scaling
from numnorm.backends.cpu.rows import rows
from numnorm.backends.cpu.xla.row_handlers import backward_handler, forward_handler
from numnorm.layouts import RowLayout


class Call(NamedTuple):
    """A call of a handler.

    Attributes
    ----------
    name : str
        The name of the handler.
    numbers : tuple of float
        What the handler reads as the attribute of the call.
    handler : callable
        ``handler()`` returns the address of the C function.
    """

    name: str
    numbers: tuple[float, ...]
    handler: Callable[[], int]


def forward_call(
    norm: Norm,
    dtype: np.dtype[Any],
    layout: RowLayout,
    scaling: Scaling,
    groups: tuple[int, int],
    factors: tuple[float, float],
    parameters: int,
    save: bool,
) -> Call:
    """Return the call with the arguments x and `parameters` of gamma and beta.

    `layout` is that of one group, `groups` are the numbers of groups of x and of the parameters,
    and `factors` are the fixed parameters of a norm that has none. The results are y and, if `save`
    is true, mean and rstd.
    """
    plan = rows.forward_plan(norm, dtype, layout, scaling)
    numbers = *groups, *plan.size, *plan.constants, plan.parts, *factors, save
    kinds = _kinds(norm, parameters)
    name = _name(plan, layout, kinds)
    make = functools.partial(forward_handler, name, plan.kernel, plan.element_type, kinds)
    return Call(name, tuple(map(float, numbers)), functools.partial(make, layout.shared))


def backward_call(
    norm: Norm,
    dtype: np.dtype[Any],
    layout: RowLayout,
    scaling: Scaling,
    detached: Detached,
    groups: tuple[int, int],
    factors: tuple[float, float],
    parameters: int,
) -> Call:
    """Return the call with the arguments dy, x, mean, rstd and, if `parameters` is 1, gamma.

    The results are dx and, for a norm with parameters, dgamma and dbeta.
    """
    plan = rows.backward_plan(norm, dtype, layout, scaling, detached)
    numbers = *groups, *plan.size, *plan.constants, plan.parts, *factors
    kinds = _kinds(norm, parameters)
    name = f"{_name(plan, layout, kinds)}"
    make = functools.partial(backward_handler, name, plan.kernel, plan.element_type, kinds)
    handler = functools.partial(make, layout.shared, norm.formula.centred, norm.parameters)
    return Call(name, tuple(map(float, numbers)), handler)


def _kinds(norm: Norm, parameters: int) -> tuple[str, str]:
    """Return whether gamma and beta are an array, a number or nothing."""
    if not norm.parameters:
        return "number", "number"
    gamma, beta = (("array" if k < parameters else "nothing") for k in range(2))
    return gamma, beta


def _name(plan: rows.Plan, layout: RowLayout, kinds: tuple[str, str]) -> str:
    kernel: Any = plan.kernel.entry
    return ".".join((kernel.__name__, *kinds, "shared" if layout.shared else "each"))
