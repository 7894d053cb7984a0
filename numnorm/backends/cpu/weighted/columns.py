"""The norms with statistics of each channel, masked or with weights: the callers of the kernels."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.norms import Detached
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cpu.columns.coefficient_kernels import make_masked_gradient_coefficients
from numnorm.backends.cpu.columns.columns import (
    centre_coefficients,
    column_forward,
    output_coefficients,
    parameter_of,
    statistic_of,
)
from numnorm.backends.cpu.columns.moments import Counted
from numnorm.backends.cpu.columns.plan import Plan, plan_of
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.memory.host_arrays import (
    Array,
    gradient_dtype,
    in_wider_dtype,
    like_input,
    result,
    wider_dtype,
)
from numnorm.backends.cpu.memory.left_out import filling_of, kept_by
from numnorm.backends.cpu.simd.element_type import in_float64
from numnorm.backends.cpu.statistics import broadcast_parameters
from numnorm.backends.cpu.statistics.saved import FAR, MOST_LOST
from numnorm.backends.cpu.weighted.arrays import column_weights, kept_of
from numnorm.backends.cpu.weighted.column_forward import (
    make_masked_fold,
    make_masked_forward_across,
    make_masked_forward_along,
    make_masked_moments_across,
    make_masked_moments_along,
)
from numnorm.backends.cpu.weighted.column_gradients import (
    make_masked_dx_across,
    make_masked_dx_along,
    make_masked_sums_across,
    make_masked_sums_along,
)
from numnorm.layouts import ColumnLayout

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)

# The lengths of the segments that a single channel is divided into, a power of two between these.
# Parts of a kernel are made of segments, and short ones take longer.
_SHORTEST, _LONGEST = 64, 4096


class _MaskedFamily(NamedTuple):
    """The kernel factories of one layout, for elements that are left out or have weights."""

    moments: Callable[..., Kernel]
    forward: Callable[..., Kernel]
    sums: Callable[..., Kernel]
    dx: Callable[..., Kernel]


_ACROSS = _MaskedFamily(
    moments=functools.cache(make_masked_moments_across),
    forward=functools.cache(make_masked_forward_across),
    sums=functools.cache(make_masked_sums_across),
    dx=functools.cache(make_masked_dx_across),
)
_ALONG = _MaskedFamily(
    moments=functools.cache(make_masked_moments_along),
    forward=functools.cache(make_masked_forward_along),
    sums=functools.cache(make_masked_sums_along),
    dx=functools.cache(make_masked_dx_along),
)
_fold = functools.cache(make_masked_fold)
_gradient_coefficients = functools.cache(make_masked_gradient_coefficients)


@functools.lru_cache(maxsize=1024)
def _layout_of(layout: ColumnLayout) -> tuple[ColumnLayout, _MaskedFamily]:
    """Return the layout for kernels, and these.

    The elements of a single channel lie side by side in it: across channels a vector would hold one
    element. All else stays as it is.
    """
    if layout.channels == 1 and layout.inner == 1:
        inner = math.gcd(layout.outer, _LONGEST)
        inner = inner if inner >= _SHORTEST else layout.outer
        layout = ColumnLayout(layout.outer // inner, 1, inner)
    return layout, _ACROSS if layout.inner == 1 else _ALONG


@functools.lru_cache(maxsize=1024)
def _wide_plan_of(dtype: Any, layout: ColumnLayout) -> Plan:
    """Return the plan for arrays of a dtype, computed in float64."""
    plan = plan_of(dtype, layout)
    return plan._replace(element_type=in_float64(plan.element_type), compute_dtype=_FLOAT64)


def _selected(
    weighting: Weighting, x: Array, layout: ColumnLayout
) -> tuple[Array | None, Array | None, int | None]:
    """Return `keep`, `weights` and `omit` as kernels of this layout take them."""
    keep, omit = kept_of(weighting, x.shape)
    return keep, column_weights(weighting, x.shape, layout), omit


def weighted_moments(weighting: Weighting, x: Array, layout: ColumnLayout) -> Counted:
    """Return the sum of the weights, mean, m2 and mean_lo of each channel.

    A channel of which nothing is left has moments of 0.
    """
    total, mean, mean_lo, m2 = _moments(weighting, x, layout)[0]
    return total, mean, m2, mean_lo


def weighted_statistics(
    weighting: Weighting, x: Array, layout: ColumnLayout
) -> tuple[Array, Array, Array]:
    """Return the sum of the weights, mean and variance of each channel.

    The last two are NaN where nothing has weight.
    """
    moments, (mean, variance) = _moments(weighting, x, layout)
    return moments[0], mean, variance


def _moments(weighting: Weighting, x: Array, layout: ColumnLayout) -> tuple[Array, Array]:
    """Return the tables of `make_masked_fold`: of moments, and of statistics."""
    moments, statistics = np.empty((4, layout.channels)), np.empty((2, layout.channels))
    if not x.size:
        moments[...], statistics[...] = 0.0, np.nan
        return moments, statistics
    layout, family = _layout_of(layout)
    # Sums of float32 would lose digits that `batch_moments` keeps and merges.
    plan = _wide_plan_of(x.dtype, layout)
    table = np.empty((4, layout.blocks, layout.channels))
    arguments = plan.source(x), *_selected(weighting, x, layout), layout.block, table
    plan.run(family.moments(plan.element_type), arguments, plan.block_parts, 1)
    _fold()(table, moments, statistics)
    return moments, statistics


def weighted_column_forward(
    weighting: Weighting,
    x: Array,
    mean: Array,
    m2: Array,
    divisor: float,
    eps: float,
    gamma: Any,
    beta: Any,
    layout: ColumnLayout,
    out: Any,
) -> tuple[Array, Array]:
    """Return what `column_forward` returns; elements that are left out get their fill values."""
    if weighting.keep is None and not weighting.omit:
        return column_forward(x, mean, m2, divisor, eps, gamma, beta, layout, out)
    own, family = _layout_of(layout)
    plan = plan_of(x.dtype, own)
    element_type, parts, source = plan.element_type, plan.parts, plan.source(x)
    try:
        gamma, beta = parameter_of("gamma", gamma, plan), parameter_of("beta", beta, plan)
    except ValueError as error:
        refill = filling_of(weighting, x)
        of_all = functools.partial(weighted_column_forward, weighting)
        given = x, mean, m2, divisor, eps, gamma, beta, layout, out
        y, rstd = broadcast_parameters.forward_of_channels(of_all, error, *given)
        return refill(y), rstd
    keep, omit = kept_of(weighting, x.shape)
    target = plan.target(source, x, out, keep)
    rstd, coefficients = np.empty(plan.channels), plan.table(4)
    found = output_coefficients(element_type)(
        mean, m2, divisor, eps, gamma, beta, rstd, coefficients
    )
    if found == 2:
        raise ValueError(f"running_var must not be negative, got {np.nanmin(m2):g}")
    fills = weighting.fill, weighting.fill_missing
    arguments = source, keep, omit, coefficients, found == 1 or None, *fills, target, parts
    plan.run(family.forward(element_type), arguments, parts, 2)
    return result(target, x, out, None), rstd


def weighted_column_backward(
    weighting: Weighting,
    dy: Any,
    x: Array,
    mean: Any,
    rstd: Any,
    gamma: Any,
    layout: ColumnLayout,
    detached: Detached,
    out: Any,
) -> tuple[Array, Array, Array]:
    """Return what `column_backward` returns, with statistics of what a weighting keeps."""
    wide = wider_dtype("dy", dy, x)
    if wide is not None:
        return in_wider_dtype(
            wide, x, "x", gamma, (layout.channels,), out,
            lambda x, gamma: weighted_column_backward(
                weighting, dy, x, mean, rstd, gamma, layout, detached, None
            ),
        )  # fmt: skip
    own, family = _layout_of(layout)
    plan = (plan_of if weighting.weights is None else _wide_plan_of)(x.dtype, own)
    source, grads = plan.source(x), plan.source(like_input("dy", dy, x))
    mean, rstd = statistic_of("mean", mean, plan), statistic_of("rstd", rstd, plan)
    try:
        weight = parameter_of("gamma", gamma, plan)
    except ValueError as error:
        given = dy, x, mean, rstd, gamma, layout, detached, out
        return _broadcast_backward(weighting, error, *given)
    dtype = gradient_dtype("gamma", gamma, x.dtype)
    # The kernel of the coefficients rounds to one of these two.
    native = dtype if dtype is _FLOAT32 or dtype is _FLOAT64 else _FLOAT64
    gradients = np.zeros((2, layout.channels), native)
    selected = _selected(weighting, x, own)
    target = plan.target(source, x, out, grads, *selected[:2])
    if plan.elements:
        coefficients = plan.table(8)
        scaled, lost = centre_coefficients(plan.element_type)(mean, rstd, coefficients)
        if lost and x.dtype == _FLOAT64:
            _restore_means(weighting, x, layout, mean, coefficients)
        sums = np.empty((3, own.blocks, own.channels))
        arguments = grads, source, *selected, coefficients
        of_sums = *arguments, own.block, sums
        plan.run(family.sums(plan.element_type), of_sums, plan.block_parts, 2)
        through, inverses = (not detached.mean, not detached.scale), np.empty((2, own.channels))
        scaled = _gradient_coefficients(plan.element_type)(
            weight, sums, *through, scaled, inverses, gradients, coefficients
        )
        of_dx = *arguments, scaled or None, target, plan.parts
        plan.run(family.dx(plan.element_type), of_dx, plan.parts, 3)
    if native is not dtype:
        with np.errstate(all="ignore"):  # a sum may leave the range of float16
            gradients = gradients.astype(dtype)
    return result(target, x, out, None), gradients[0], gradients[1]


def _restore_means(
    weighting: Weighting, x: Array, layout: ColumnLayout, mean: Array, table: Array
) -> None:
    """Store as `mean_lo` what rounding the saved means lost, as `stored.restore_means` does."""
    _, exact, exact_lo, _ = _moments(weighting, x, layout)[0]
    with np.errstate(all="ignore"):
        lost = (exact - mean) + exact_lo
        scale, mean_hi, rstd, mean_lo = table[:4, : mean.size]
        far, rounding = np.abs(mean_hi) * rstd > FAR, np.abs(lost) <= MOST_LOST * np.abs(mean)
        mean_lo[...] = np.where(far & rounding, lost * scale, mean_lo)


def _broadcast_backward(
    weighting: Weighting,
    error: ValueError,
    dy: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    *others: Any,
) -> tuple[Array, Array, Array]:
    """Return the gradients for a gamma that broadcasts against x."""
    of_all = functools.partial(weighted_column_backward, weighting)
    given = dy, x, mean, rstd, *others
    return broadcast_parameters.backward_of_channels(
        of_all, error, *given, keep=kept_by(weighting, x)
    )
