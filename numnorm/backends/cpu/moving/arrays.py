"""The arrays of moving norms: flat inputs and outputs of kernels, and results for the caller."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.core import config

from numnorm.arguments import check_shape
from numnorm.array_likes import as_plain_array, check_out
from numnorm.backends.contract.moving import MovingState
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.compiler.parallel import is_small, run
from numnorm.backends.cpu.memory.host_arrays import (
    Array,
    as_float_array,
    as_kernel_array,
    as_statistic,
    rounded,
)
from numnorm.backends.cpu.memory.placement import empty_like
from numnorm.backends.cpu.moving.lanes import LANES, group_count
from numnorm.backends.cpu.simd.element_type import ElementType, element_type_of
from numnorm.layouts import MovingLayout

NO_STATISTICS = np.empty(0), np.empty(0)


class Plan(NamedTuple):
    """What follows from the dtype and the layout of an array.

    Attributes
    ----------
    element_type : ElementType
        Of its elements.
    across : bool
        Whether the lanes of kernels are adjacent channels.
    shape : tuple of int
        ``(outer, steps, inner)``.
    size : int
        The number of its elements.
    small : bool
        Whether it is too small for threads and for the place where stores are fast.
    """

    element_type: ElementType
    across: bool
    shape: tuple[int, int, int]
    size: int
    small: bool

    def flat(self, array: Array) -> Array:
        """Return an array for kernels, of one axis; copied only if needed."""
        return as_kernel_array(array, self.element_type, None, (self.size,))

    def run(self, kernel: Kernel, arguments: tuple[Any, ...], parts: int, arrays: int) -> None:
        """Run all parts of a kernel; it reads or writes `arrays` arrays of the size of x."""
        work = arrays * 8 * self.size
        if config.DISABLE_JIT:
            with np.errstate(all="ignore"):
                run(kernel, arguments, work, parts)
        elif work < tuning.PARALLEL_LEAST_WORK:
            kernel.serial(*arguments, 0, parts)
        else:
            run(kernel, arguments, work, parts)


@functools.lru_cache(maxsize=1024)
def plan_of(dtype: Any, layout: MovingLayout) -> Plan:
    """Return the plan of an array of a dtype and a layout."""
    shape = layout.outer, layout.steps, layout.inner
    size = math.prod(shape)
    small = is_small(size) and not config.DISABLE_JIT
    return Plan(element_type_of(dtype), layout.inner >= LANES, shape, size, small)


def parts_of(groups: int) -> int:
    """Return into how many parts to divide groups of lanes."""
    return min(groups, tuning.PARTS_MOST)


def groups_of(plan: Plan) -> tuple[int, int]:
    """Return the number of groups of lanes, and into how many parts to divide them."""
    groups = group_count(plan.shape, 1, 1, plan.across)
    return groups, parts_of(groups)


def target_of(source: Array, x: Array, out: Any, inputs: tuple[Array, ...]) -> Array:
    """Return a flat array for a result, in the memory of `out` if no input shares it."""
    if out is not None:
        check_out(out, x, "x")
        if out.flags.carray and not any(np.may_share_memory(out, array) for array in inputs):
            return out.view(source.dtype).reshape(-1)
    return empty_like(source)


def result_of(target: Array, x: Array, out: Any) -> Any:
    """Return a flat result as the caller gets it."""
    if out is None:
        if target.dtype is not x.dtype:
            target = target.view(x.dtype)
        return target if target.shape == x.shape else target.reshape(x.shape)
    if not np.may_share_memory(out, target):
        out[...] = target.view(x.dtype).reshape(x.shape)
    return out


def new_statistics(x: Array, save: bool) -> tuple[Array, Array]:
    """Return flat arrays for mean and rstd of each step, without elements unless to be saved."""
    return (np.empty(x.size), np.empty(x.size)) if save else NO_STATISTICS


def _saved(plan: Plan, x: Array, statistic: Array) -> Array:
    """Return a flat statistic of each step as the caller gets it."""
    with np.errstate(all="ignore"):
        return statistic.astype(plan.element_type.saved, copy=False).reshape(x.shape)


def _flat_statistics(mean: Any, rstd: Any, x: Array) -> tuple[Array, Array]:
    """Return the flat statistics that a forward pass has saved."""
    meaning = "the shape of x"
    return (
        as_statistic("mean", mean, x.shape, meaning),
        as_statistic("rstd", rstd, x.shape, meaning),
    )


def in_one_dtype(dy: Any, x: Array) -> tuple[Array, Array]:
    """Return dy and x, as float64 unless they have one dtype."""
    gradient = as_float_array("dy", dy)
    if gradient.shape != x.shape:
        check_shape("dy", gradient.shape, x.shape, "the shape of x")
    if gradient.dtype == x.dtype:
        return gradient, x
    return gradient.astype(np.float64), x.astype(np.float64)


def in_own_dtype(
    dx_of: Callable[..., Array], dy: Any, x: Array, mean: Any, rstd: Any, out: Any
) -> Array:
    """Return ``dx_of(dy, x, statistics, out=out)``, which needs one dtype, in the dtype of x."""
    statistics = _flat_statistics(mean, rstd, x)
    if out is not None:
        check_out(out, x, "x")
    gradient, wide = in_one_dtype(dy, x)
    if wide.dtype == x.dtype:
        return dx_of(gradient, wide, statistics, out=out)
    return rounded(dx_of(gradient, wide, statistics, out=None), x.dtype, out)


def saved_statistics(
    plan: Plan, x: Array, save: bool, mean: Array, rstd: Array
) -> tuple[Array | None, Array | None]:
    """Return mean and rstd for the caller, None if they are not to be saved."""
    return (_saved(plan, x, mean), _saved(plan, x, rstd)) if save else (None, None)


# Chunks of a stream


def last_steps(layout: MovingLayout, count: int) -> tuple[slice, ...]:
    """Return the index of the last steps."""
    return (*[slice(None)] * layout.axis, slice(-count, None) if count else slice(0))


def joined(
    x: Array, keep: Array | None, state: MovingState, before: Array, axis: int
) -> tuple[Array, Array | None]:
    """Return a chunk behind the values of a state, and which of all these count; None for all.

    `before` are the values of the state, checked, and `keep` says which of the chunk count.
    """
    together = np.concatenate((before, x), axis=axis)
    if keep is None and state.kept is None:
        return together, None
    chunk = np.ones(x.shape, bool) if keep is None else keep
    return together, np.concatenate((_checked_kept(state, before), chunk), axis=axis)


def _checked_kept(state: MovingState, values: Array) -> Array:
    """Return which values of a state count."""
    if state.kept is None:
        return np.ones(values.shape, bool)
    kept = as_plain_array("state.kept", state.kept)
    if kept.shape != values.shape or kept.dtype != np.bool_:
        got = f"shape {kept.shape} and dtype {kept.dtype.name}"
        raise ValueError(f"state.kept must be a mask of {values.shape} values, got {got}")
    return kept
