"""The column norms on device arrays: checks, plans and launches."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.gains import parameters_of_channels
from numnorm.backends.contract.norms import ChannelSums, Detached
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cuda.arrays.device_array import (
    DeviceArray,
    as_parameter,
    output_like,
    result,
)
from numnorm.backends.cuda.arrays.gather_rows import in_wider_dtype
from numnorm.backends.cuda.arrays.known_calls import repeats
from numnorm.backends.cuda.arrays.launch import ArrayOffset, launch, on_device_of
from numnorm.backends.cuda.columns.column_shape import fold_shape, plan_of
from numnorm.backends.cuda.columns.norm_kernels import (
    FROZEN_COEFFICIENTS,
    GRADIENT_COEFFICIENTS,
    OUTPUT_COEFFICIENTS,
    make_centre_coefficients,
    make_elements_across,
    make_elements_along,
    make_gradient_coefficients,
    make_output_coefficients,
    make_sums_across,
    make_sums_along,
)
from numnorm.backends.cuda.compiler.element_type import FLOAT64, ElementType
from numnorm.backends.cuda.compiler.target import Kernel
from numnorm.backends.cuda.statistics import broadcast_parameters
from numnorm.backends.cuda.statistics.stored import (
    Statistic,
    float64_memory,
    given_statistic,
    in_float64,
    reciprocal_deviation,
)
from numnorm.backends.cuda.threads.row_columns import Weights
from numnorm.layouts import ColumnLayout

_MEANING = "the channels of x"


class _Family(NamedTuple):
    """The factories of the kernels for one kind of layout."""

    elements: Callable[..., Kernel]
    sums: Callable[..., Kernel]


# If inner is 1, neighbouring threads have neighbouring channels, otherwise elements of one channel.
_ACROSS = _Family(functools.cache(make_elements_across), functools.cache(make_sums_across))
_ALONG = _Family(functools.cache(make_elements_along), functools.cache(make_sums_along))
_output_coefficients = functools.cache(make_output_coefficients)
_centre_coefficients = functools.cache(make_centre_coefficients)
_gradient_coefficients = functools.cache(make_gradient_coefficients)


def _family(layout: ColumnLayout) -> _Family:
    return _ACROSS if layout.inner == 1 else _ALONG


def column_forward(
    x: DeviceArray,
    mean: Statistic,
    m2: Statistic,
    divisor: float,
    eps: float,
    gamma: Any,
    beta: Any,
    layout: ColumnLayout,
    out: Any,
) -> tuple[Any, Statistic]:
    """Return x normalized by the given statistics of each channel, and rstd.

    The variance is m2 / divisor.
    """
    rstd = reciprocal_deviation(m2 / divisor, eps)
    with on_device_of(x):
        try:
            scale = parameter_of("gamma", gamma, layout, x)
            shift = parameter_of("beta", beta, layout, x)
        except ValueError as error:
            given = x, mean, m2, divisor, eps, gamma, beta, layout, out
            return broadcast_forward(column_forward, error, *given)
        source = x.lib.contiguous(x.array)
        inputs = source, *(_memory(array) for array in (mean, rstd, scale, shift))
        output = output_like(x, None, out, inputs)
        if layout.per_channel and layout.channels:
            alike = _alike(mean, rstd)
            coefficients = _coefficients(OUTPUT_COEFFICIENTS, x, layout)
            weights = Weights(element_of(scale), element_of(shift))
            kernel = _output_coefficients(x.element, alike[0].element, weights)
            arrays = *(each.array for each in alike), _memory(scale), _memory(shift), coefficients
            launch(kernel, _blocks_of_channels(kernel, layout), x, arrays, (layout.channels,))
            _launch_output(x, layout, source, coefficients, output.target)
        return result(output, x, None), rstd


def broadcast_forward(
    function: Any,
    error: ValueError,
    x: DeviceArray,
    mean: Statistic,
    m2: Statistic,
    divisor: float,
    eps: float,
    gamma: Any,
    beta: Any,
    layout: ColumnLayout,
    out: Any,
    weighting: Weighting | None = None,
) -> tuple[Any, Statistic]:
    """Return what a forward pass does, for parameters of which one broadcasts against x."""

    def normalized(x: DeviceArray) -> tuple[Any, Statistic]:
        y, rstd = function(x, mean, m2, divisor, eps, None, None, layout, None)
        return y, rstd

    parameters = parameters_of_channels(
        gamma, beta, layout, broadcast_parameters.given_parameter(x)
    )
    view = broadcast_parameters.view_of_channels(x, layout)
    y, rstd = broadcast_parameters.forward(normalized, error, x, parameters, view, out, weighting)
    return y, rstd


@repeats("dy", "mean", "rstd", "gamma", "out", unless="sums")
def column_backward(
    dy: Any,
    x: DeviceArray,
    mean: Any,
    rstd: Any,
    gamma: Any,
    layout: ColumnLayout,
    detached: Detached,
    out: Any,
    sums: ChannelSums | None = None,
) -> tuple[Any, ...]:
    """Return dx, dgamma, dbeta."""
    with on_device_of(x):
        grad = as_parameter("dy", dy, x.shape, f"the shape of {x.name}", x)
        others = mean, rstd, gamma, layout, detached, x.element
        if grad.element == x.element:
            return _column_backward(grad, x, *others, out, sums)
        return in_wider_dtype(
            grad, x, out, lambda dy, x, out: _column_backward(dy, x, *others, out, sums)
        )


def _column_backward(
    dy: DeviceArray,
    x: DeviceArray,
    mean: Any,
    rstd: Any,
    gamma: Any,
    layout: ColumnLayout,
    detached: Detached,
    element: ElementType,
    out: Any,
    sums: ChannelSums | None,
) -> tuple[Any, ...]:
    """Return the same for a dy of the dtype of x; without gamma its gradient is an `element`."""
    channels = layout.channels
    grads = dy.array
    source = x.lib.contiguous(x.array)
    of_mean = given_statistic("mean", mean, x, channels)
    of_rstd = given_statistic("rstd", rstd, x, channels)
    try:
        weight = parameter_of("gamma", gamma, layout, x)
    except ValueError as error:

        def without_gamma(dy: Any) -> Any:
            return column_backward(dy, x, mean, rstd, None, layout, detached, out)[0]

        given = dy, x, of_mean, of_rstd, gamma, layout
        return broadcast_backward(without_gamma, error, *given)
    inputs = grads, source, of_mean.array, of_rstd.array, _memory(weight)
    output = output_like(x, None, out, inputs)
    gradient = element if weight is None else weight.element
    if not (layout.per_channel and channels):
        nothing = (channels,), gradient.name, 0.0
        dgamma, dbeta = x.lib.full(x.array, *nothing), x.lib.full(x.array, *nothing)
        return result(output, x, None), dgamma, dbeta
    dgamma = x.lib.empty(x.array, (channels,), gradient.name)
    dbeta = x.lib.empty(x.array, (channels,), gradient.name)
    coefficients = _centred(x, of_mean, of_rstd, layout)
    totals = weight, gradient, dgamma, dbeta
    _launch_gradient_coefficients(x, layout, grads, source, coefficients, totals, detached, sums)
    if detached.mean and detached.scale:
        # The statistics are frozen, so dx depends on dy alone.
        offset = FROZEN_COEFFICIENTS * channels * x.element.compute_type(0).itemsize
        _launch_output(x, layout, grads, ArrayOffset(coefficients, offset), output.target)
    else:
        plan = plan_of(x, layout, grads, source, output.target, reads=2)
        kernel = _family(layout).elements(x.element, plan.shape, gradient=True)
        launch(kernel, plan.blocks, x, (grads, source, coefficients, output.target), plan.sizes)
    return result(output, x, None), dgamma, dbeta


def broadcast_backward(
    without_gamma: Any,
    error: ValueError,
    dy: DeviceArray,
    x: DeviceArray,
    mean: Statistic,
    rstd: Statistic,
    gamma: Any,
    layout: ColumnLayout,
    weighting: Weighting | None = None,
) -> tuple[Any, Any, Any]:
    """Return what a backward pass does, for a gamma that broadcasts against x.

    ``without_gamma(dy)`` is dx of the norm without it.
    """
    parameters = parameters_of_channels(
        gamma, None, layout, broadcast_parameters.given_parameter(x)
    )
    view = broadcast_parameters.view_of_channels(x, layout)
    given = without_gamma, error, dy, x, _alike(mean, rstd), parameters, view, weighting
    return broadcast_parameters.backward(*given)


def _centred(x: DeviceArray, mean: Statistic, rstd: Statistic, layout: ColumnLayout) -> Any:
    """Return a new table of coefficients for dx, and launch the kernel of the first four."""
    mean, rstd = _alike(mean, rstd)
    coefficients = _coefficients(GRADIENT_COEFFICIENTS, x, layout)
    kernel = _centre_coefficients(x.element, mean.element)
    arrays = mean.array, rstd.array, coefficients
    launch(kernel, _blocks_of_channels(kernel, layout), x, arrays, (layout.channels,))
    return coefficients


def _launch_gradient_coefficients(
    x: DeviceArray,
    layout: ColumnLayout,
    grads: Any,
    source: Any,
    coefficients: Any,
    totals: tuple[DeviceArray | None, ElementType, Any, Any],
    detached: Detached,
    sums: ChannelSums | None,
) -> None:
    """Launch the kernels that compute sums of each channel, its dgamma, dbeta and coefficients."""
    channels = layout.channels
    weight, gradient, dgamma, dbeta = totals
    if sums is None:
        plan = plan_of(x, layout, grads, source, reads=2)
        parts = plan.parts
        per_channel = layout.per_channel
        products = float64_memory(x, 2 * parts * channels)
        plain = ArrayOffset(products, parts * channels * FLOAT64.itemsize)
        kernel = _family(layout).sums(x.element, plan.shape)
        launch(kernel, plan.blocks, x, (grads, source, coefficients, products, plain), plan.sizes)
    else:
        parts = 1
        per_channel = sums.per_channel
        products, plain = (
            in_float64(given_statistic("dy", total, x, channels)).array for total in sums[1:]
        )
    inv_count = 1.0 / per_channel
    fold = fold_shape(channels)
    inv_counts = 0.0 if detached.mean else inv_count, 0.0 if detached.scale else inv_count
    launch(
        _gradient_coefficients(x.element, element_of(weight), gradient, fold),
        -(-channels // fold.lanes),
        x,
        (products, plain, _memory(weight), dgamma, dbeta, coefficients),
        (parts, channels, *inv_counts),
    )


def _launch_output(
    x: DeviceArray, layout: ColumnLayout, source: Any, coefficients: Any, target: Any
) -> None:
    """Launch the kernel that computes an output from an array and the coefficients of channels."""
    plan = plan_of(x, layout, source, target)
    kernel = _family(layout).elements(x.element, plan.shape, gradient=False)
    launch(kernel, plan.blocks, x, (None, source, coefficients, target), plan.sizes)


def parameter_of(name: str, value: Any, layout: ColumnLayout, x: DeviceArray) -> DeviceArray | None:
    """Return a gain or bias of the channels, checked; None for None."""
    if value is None:
        return None
    return as_parameter(name, value, (layout.channels,), _MEANING, x)


def _alike(mean: Statistic, rstd: Statistic) -> tuple[Statistic, Statistic]:
    """Return both statistics in one dtype."""
    if mean.element == rstd.element:
        return mean, rstd
    return in_float64(mean), in_float64(rstd)


def _coefficients(rows: int, x: DeviceArray, layout: ColumnLayout) -> Any:
    """Return new memory for a table of coefficients."""
    return x.lib.empty(x.array, (rows, layout.channels), x.element.compute_name)


def _memory(array: DeviceArray | None) -> Any:
    return None if array is None else array.array


def element_of(array: DeviceArray | None) -> ElementType | None:
    """Return the type of an array; None for None."""
    return None if array is None else array.element


def _blocks_of_channels(kernel: Kernel, layout: ColumnLayout) -> int:
    """Return how many blocks are launched so that each channel gets one thread."""
    return -(-layout.channels // kernel.threads)
