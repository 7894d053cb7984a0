"""The norms with statistics per channel, on NumPy arrays: the functions of the backend."""

import functools
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import ChannelSums, Detached
from numnorm.backends.cpu.columns.coefficient_kernels import (
    make_centre_coefficients,
    make_frozen_coefficients,
    make_gradient_coefficients,
    make_output_coefficients,
    make_parameter_gradients,
)
from numnorm.backends.cpu.columns.plan import Plan, plan_of
from numnorm.backends.cpu.memory.host_arrays import (
    Array,
    as_parameter,
    as_statistic,
    gradient_dtype,
    in_wider_dtype,
    like_input,
    result,
    wider_dtype,
)
from numnorm.backends.cpu.statistics import broadcast_parameters
from numnorm.backends.cpu.statistics.stored import restore_means
from numnorm.layouts import ColumnLayout

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


centre_coefficients = functools.cache(make_centre_coefficients)
output_coefficients = functools.cache(make_output_coefficients)
gradient_coefficients = functools.cache(make_gradient_coefficients)
_frozen_coefficients = functools.cache(make_frozen_coefficients)
_parameter_gradients = functools.cache(make_parameter_gradients)


def statistic_of(name: str, value: Any, plan: Plan) -> Array:
    """Return a statistic of each channel, checked, in float64."""
    plain = type(value) is np.ndarray and value.dtype is _FLOAT64
    if plain and value.shape == plan.channels and value.flags.carray:
        return value
    return as_statistic(name, value, plan.channels, "the channels of x")


def parameter_of(name: str, value: Any, plan: Plan) -> Array | None:
    """Return gamma or beta, checked, in the compute type."""
    if value is None:
        return None
    shape, dtype = plan.channels, plan.compute_dtype
    plain = type(value) is np.ndarray and value.dtype is dtype and value.shape == shape
    if plain and value.flags.carray:
        return value
    return as_parameter(name, value, shape, "the channels of x", dtype, shape)


def column_forward(
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
    """Return x normalized by the given statistics of each channel, and rstd.

    The variance is ``m2 / divisor``. Mean and m2 are contiguous, in float32 or float64.
    """
    plan = plan_of(x.dtype, layout)
    element_type, parts = plan.element_type, plan.parts
    source = plan.source(x)
    try:
        gamma, beta = parameter_of("gamma", gamma, plan), parameter_of("beta", beta, plan)
    except ValueError as error:
        given = x, mean, m2, divisor, eps, gamma, beta, layout, out
        return broadcast_parameters.forward_of_channels(column_forward, error, *given)
    target = plan.target(source, x, out)
    shift = plan.shift(target)
    rstd, coefficients = np.empty(plan.channels), plan.table(4, shift)
    found = output_coefficients(element_type)(
        mean, m2, divisor, eps, gamma, beta, rstd, coefficients
    )
    if found == 2:
        raise ValueError(f"running_var must not be negative, got {np.nanmin(m2):g}")
    scaled = found == 1
    plan.repeat(coefficients, shift)
    kernel = plan.family.forward(element_type)
    if plan.small:
        kernel.serial(source, coefficients, scaled or None, target, shift, parts, 0, parts)
    else:
        plan.run(kernel, (source, coefficients, scaled or None, target, shift, parts), parts, 2)
    return target if source is x and out is None else result(target, x, out, None), rstd


def column_backward(
    dy: Any,
    x: Array,
    mean: Any,
    rstd: Any,
    gamma: Any,
    layout: ColumnLayout,
    detached: Detached,
    out: Any,
    sums: ChannelSums | None = None,
) -> tuple[Array, Array, Array]:
    """Return dx, dgamma, dbeta."""
    wide = wider_dtype("dy", dy, x)
    if wide is not None:
        others = layout, detached, None, sums
        return in_wider_dtype(
            wide, x, "x", gamma, (layout.channels,), out,
            lambda x, gamma: column_backward(dy, x, mean, rstd, gamma, *others),
        )  # fmt: skip
    plan = plan_of(x.dtype, layout)
    source = plan.source(x)
    grads = plan.source(like_input("dy", dy, x))
    statistics = statistic_of("mean", mean, plan), statistic_of("rstd", rstd, plan)
    try:
        weight = parameter_of("gamma", gamma, plan)
    except ValueError as error:
        taken = dy, x, *statistics, gamma, layout, detached, out
        return broadcast_parameters.backward_of_channels(column_backward, error, *taken)
    arrays, given = (grads, source), (*statistics, weight)
    dtype = gradient_dtype("gamma", gamma, x.dtype)
    frozen_statistics = detached.mean and detached.scale
    target = plan.target(source, x, out, grads, like_x=not frozen_statistics)
    # The kernel of the coefficients rounds to one of these two.
    native = dtype if dtype is _FLOAT32 or dtype is _FLOAT64 else _FLOAT64
    gradients = np.empty((2, layout.channels), native)
    if not plan.elements:
        gradients[...] = 0
    elif frozen_statistics:
        _frozen_statistics_gradient(arrays, given, layout, plan, target, gradients)
    else:
        _gradient(arrays, given, layout, plan, detached, target, gradients, sums)
    if native is not dtype:
        with np.errstate(all="ignore"):  # a sum may leave the range of float16
            gradients = gradients.astype(dtype)
    dx = target if source is x and out is None else result(target, x, out, None)
    return dx, gradients[0], gradients[1]


def _gradient(
    arrays: tuple[Array, Array],
    given: tuple[Array, Array, Array | None],
    layout: ColumnLayout,
    plan: Plan,
    detached: Detached,
    target: Array,
    gradients: Array,
    whole: ChannelSums | None,
) -> None:
    """Store dx, dgamma and dbeta of dy and x, given mean, rstd and gamma."""
    element_type, channels, parts = plan.element_type, layout.channels, plan.parts
    mean, rstd, weight = given
    shift = plan.shift(target)
    coefficients = plan.table(8, shift)
    scaled, lost = centre_coefficients(element_type)(mean, rstd, coefficients)
    if whole is None:
        sums, per_channel = np.empty((2, layout.blocks, channels)), layout.per_channel
        if lost:
            restore_means(arrays[1], layout, coefficients)
        arguments = *arrays, coefficients, layout.block, sums
        plan.run(plan.family.sums(element_type), arguments, plan.block_parts, 2)
    else:
        per_channel, sums = whole.per_channel, np.array((whole.products, whole.dy))[:, None]
    inv_count = 1.0 / per_channel
    inv_counts = 0.0 if detached.mean else inv_count, 0.0 if detached.scale else inv_count
    scaled = gradient_coefficients(element_type)(
        weight, sums, *inv_counts, scaled, gradients, coefficients
    )
    plan.repeat(coefficients, shift)
    dx_arguments = *arrays, coefficients, scaled or None, target, shift, parts
    plan.run(plan.family.dx(element_type), dx_arguments, parts, 3)


def _frozen_statistics_gradient(
    arrays: tuple[Array, Array],
    given: tuple[Array, Array, Array | None],
    layout: ColumnLayout,
    plan: Plan,
    target: Array,
    gradients: Array,
) -> None:
    """Store the same for frozen statistics: dx does not depend on x."""
    element_type, channels = plan.element_type, layout.channels
    coefficients, sums = plan.table(6), np.empty((2, layout.blocks, channels))
    scaled = _frozen_coefficients(element_type)(*given, coefficients)
    arguments = *arrays, coefficients, scaled or None, layout.block, sums, target
    plan.run(plan.family.frozen_statistics(element_type), arguments, plan.block_parts, 3)
    _parameter_gradients(element_type)(sums, coefficients, gradients)
