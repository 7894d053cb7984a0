"""The gradients of the row norms on device arrays: checks, plan and launches."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.gains import parameters_of_rows
from numnorm.backends.contract.norms import Detached, Norm, Scaling
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cuda.arrays.device_array import (
    DeviceArray,
    as_parameter,
    in_order,
    output_like,
    result,
)
from numnorm.backends.cuda.arrays.gather_rows import in_wider_dtype
from numnorm.backends.cuda.arrays.known_calls import (
    Input,
    Inputs,
    KnownCalls,
    addresses_of,
    are_aligned,
    changes_an_input,
)
from numnorm.backends.cuda.arrays.launch import PreparedLaunch, on_device_of
from numnorm.backends.cuda.compiler.element_type import FLOAT32, FLOAT64, ElementType
from numnorm.backends.cuda.rows.arguments import (
    PartialSums,
    RowScaling,
    RowSizes,
    SavedStatistics,
)
from numnorm.backends.cuda.rows.backward_kernel import make_row_backward
from numnorm.backends.cuda.rows.backward_loop_kernel import (
    COEFFICIENTS,
    make_row_backward_coefficients,
    make_row_backward_columns,
    make_row_backward_loop,
)
from numnorm.backends.cuda.rows.forward import (
    all_aligned,
    row_parameters,
    weight_inputs,
    weight_of,
    whole_input,
)
from numnorm.backends.cuda.rows.parameter_sums import (
    COLUMNS,
    ROWS_BETWEEN_FLUSHES,
    make_parameter_gradients,
)
from numnorm.backends.cuda.statistics import broadcast_parameters
from numnorm.backends.cuda.statistics.stored import Statistic
from numnorm.backends.cuda.threads.row_columns import Weights
from numnorm.backends.cuda.threads.row_shape import (
    backward_parts,
    backward_shape,
    segment_shape,
    strip_shape,
    strips_of,
)
from numnorm.layouts import RowLayout

# Plans


class GradientPlan(NamedTuple):
    """The launches, which depend on norm, elements and layout alone.

    Attributes
    ----------
    coefficients : PreparedLaunch or None
        For wide rows whose columns have parameters: the launch that stores the coefficients of
        each row, before the others. It takes dy, x, mean, rstd, gamma, beta and the coefficients.
    kernel : PreparedLaunch
        The launch that stores dx and partial sums. It takes dy, x, mean, rstd, gamma and beta, or
        dy, x, gamma, beta and the coefficients; then dx, the sums, and what rounding has lost.
    finish : PreparedLaunch
        The launch that adds up these sums.
    table : tuple of int
        The shape of the partial sums of each parameter.
    long : bool
        Whether a part has more rows than `ROWS_BETWEEN_FLUSHES` for each team.
    """

    coefficients: PreparedLaunch | None
    kernel: PreparedLaunch
    finish: PreparedLaunch
    table: tuple[int, int]
    long: bool


# Norms that differ only in their layouts share kernels.
_in_registers = functools.cache(make_row_backward)
_adding = functools.cache(functools.partial(make_row_backward, adds=True))
_by_segments = functools.cache(make_row_backward_loop)
_coefficients = functools.cache(make_row_backward_coefficients)
_by_columns = functools.cache(make_row_backward_columns)
_finish = functools.cache(make_parameter_gradients)


@functools.lru_cache(maxsize=1024)
def gradient_plan(
    norm: Norm,
    element: ElementType,
    saved: ElementType,
    weights: Weights,
    missing: tuple[float, float],
    gradient: ElementType,
    layout: RowLayout,
    scaling: Scaling,
    detached: Detached,
    aligned: bool,
    adds: bool = False,
) -> GradientPlan:
    """Return the plan for elements of this type, `aligned` if all arrays begin at 16 bytes.

    The gradients of the parameters have the type `gradient`. The `missing` numbers stand for a
    gamma and a beta that are no arrays. A plan that `adds`, of rows that fit the registers, has a
    launch that takes what is added to dx last.
    """
    formula, parameters = norm.formula, norm.parameters
    shape = backward_shape(layout.width, element, aligned=aligned)
    by_segment = layout.shared and parameters > 0
    channels = layout.channels if parameters else 1
    coefficients, strips = None, 1
    if shape.vectors:
        make = _adding if adds else _in_registers
        kernel = make(formula, element, saved, weights, parameters, shape)
        parts = backward_parts(layout.rows, shape, 1 if by_segment else channels)
    elif by_segment or not parameters:
        shape, parts = segment_shape(layout.width, layout.segment, element, shape), layout.rows
        kernel = _by_segments(formula, element, saved, weights, parameters, shape)
    else:
        coefficients = _coefficients(formula, element, saved, weights, shape)
        shape = strip_shape(shape)
        kernel = _by_columns(formula, element, weights, parameters, shape)
        strips = strips_of(layout.width, element, shape)
        parts = backward_parts(layout.rows, shape, channels, strips)
    inv_count = 1.0 / layout.width if formula.centred and not detached.mean else 0.0
    inv_divisor = 0.0 if detached.scale else 1.0 / (layout.width - scaling.ddof)
    if by_segment:
        table = layout.rows * layout.width // layout.segment // channels, channels
    else:
        table = parts // channels, channels * layout.width
    sizes = RowSizes(layout.rows, layout.width, layout.segment, channels)
    row_scaling = RowScaling(inv_count, inv_divisor, scaling.eps_on_deviation)
    read = -1, -2, SavedStatistics(-3, -4), row_parameters(-5, missing)
    numbers: tuple[Any, ...] = sizes, parts
    first = None
    if coefficients is None:
        arrays: Any = *read, -7, -10 if adds else 0, PartialSums(-8, -9)
        numbers = *numbers, row_scaling
    else:
        first = PreparedLaunch(coefficients, layout.rows, (*read, -7), (sizes, row_scaling))
        arrays = -1, -2, row_parameters(-3, missing), -5, -6, PartialSums(-7, -8)
    return GradientPlan(
        first,
        PreparedLaunch(kernel, parts * strips, arrays, numbers),
        finish_of(parameters, element, gradient, table),
        table,
        layout.rows > ROWS_BETWEEN_FLUSHES * shape.teams * parts and not by_segment,
    )


@functools.lru_cache(maxsize=1024)
def finish_of(
    parameters: int, element: ElementType, gradient: ElementType, table: tuple[int, int]
) -> PreparedLaunch:
    """Return the launch that adds up partial sums: it takes the sums, dgamma and dbeta.

    The sums have the compute type of `element`, and the gradients the type `gradient`; `table` is
    the shape of the sums of each parameter.
    """
    blocks = parameters * -(-table[1] // COLUMNS)
    return PreparedLaunch(_finish(element, gradient), blocks, (-1, -2, -3), table)


# Checks and launches


def row_backward(
    norm: Norm,
    dy: Any,
    x: DeviceArray,
    mean: Any,
    rstd: Any,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: Scaling,
    detached: Detached,
    out: Any,
) -> tuple[Any, ...]:
    """Return dx and, for a norm with parameters, dgamma and dbeta."""
    options = norm, layout, scaling
    key, known = _KNOWN.find(x, options, detached, (dy, mean, rstd, gamma, beta, out))
    found = None if known is None else known.run(x, dy, mean, rstd, gamma, beta, out)
    if found is not None:
        return found
    with on_device_of(x):
        grad = as_parameter(norm.names.dy, dy, x.shape, "the shape of the input", x)
        others = mean, rstd, gamma, beta, layout, scaling, detached, x.element
        if grad.element == x.element:
            return backward_of_one_dtype(norm, grad, x, *others, out, key)
        return in_wider_dtype(
            grad, x, out, lambda dy, x, out: backward_of_one_dtype(norm, dy, x, *others, out)
        )


def backward_of_one_dtype(
    norm: Norm,
    grad: DeviceArray,
    x: DeviceArray,
    mean: Any,
    rstd: Any,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: Scaling,
    detached: Detached,
    element: ElementType,
    out: Any,
    key: Any = None,
    addend: Any = None,
) -> tuple[Any, ...]:
    """Return the same for a dy of the dtype of x; without gamma its gradient is an `element`.

    `key` is that of `KnownCalls`, None for a call that is not to be kept. An `addend`, an array
    like x, is added to dx, if rows fit the registers and gamma does not broadcast.
    """
    of_mean, of_rstd = saved_statistics(norm, mean, rstd, layout, x)
    try:
        scale = weight_of(norm, norm.names.gamma, gamma, 1.0, layout, x)
        shift = weight_of(norm, "beta", beta, 0.0, layout, x)
    except ValueError as error:

        def without_gamma(dy: Any) -> Any:
            given = norm, dy, x, mean, rstd, None, None, layout, scaling, detached, out
            return row_backward(*given)[0]

        saved = of_mean, of_rstd
        return broadcast_backward(without_gamma, error, norm, grad, x, *saved, gamma, layout)
    source, grads = in_order(x, layout.order), in_order(grad, layout.order)
    inputs = grads, source, of_mean.array, of_rstd.array, scale.array, shift.array
    added = () if addend is None else (in_order(addend, layout.order),)
    output = output_like(x, layout.order, out, (*inputs, *added))
    weights = Weights(scale.element, shift.element, layout.shared)
    gradient = scale.element or element
    if not layout.rows * layout.width:
        return result(output, x, layout.order), *_no_gradients(norm, layout, x, gradient)
    aligned = all_aligned(x, layout, (grads, source, output.target, *added), scale, shift)
    missing = scale.number, shift.number
    given = norm, x.element, of_rstd.element, weights, missing, gradient, layout, scaling, detached
    plan_if = functools.partial(gradient_plan, *given)
    plan = plan_if(aligned, adds=bool(added))
    gradients = _launched(norm, plan, x, layout, gradient, inputs, output.target, added)
    as_given = (
        grads is grad.array and source is x.array and of_rstd.array is rstd
        and (of_mean.array is mean or not norm.formula.centred)
        and scale.array is gamma and shift.array is beta
    )  # fmt: skip
    if key is not None and as_given and output.destination is None:
        kind = of_rstd.element
        statistic = Input(kind.name, layout.rows * kind.itemsize, False)
        whole = whole_input(x.element, layout)
        of_weights = weight_inputs(x.element, weights, layout)
        known_inputs = whole, whole, statistic, statistic, *of_weights
        call = _KnownBackward(functools.cache(plan_if), known_inputs, norm, layout, gradient)
        _KNOWN.keep(key, (norm, layout, scaling), call)
    return result(output, x, layout.order), *gradients


def _launched(
    norm: Norm,
    plan: GradientPlan,
    x: DeviceArray,
    layout: RowLayout,
    gradient: ElementType,
    read: Any,
    target: Any,
    added: tuple[Any, ...] = (),
) -> tuple[Any, Any]:
    """Launch the kernels of a plan, which write dx to the target; return dgamma and dbeta.

    What is read are dy, x, mean, rstd, gamma and beta: arrays, or their addresses. What is `added`
    to dx, if anything, is read, too.
    """
    partials = _partial_sums(norm, plan, x)
    if plan.coefficients is not None:
        shape = layout.rows, COEFFICIENTS
        coefficients = x.lib.empty(x.array, shape, x.element.compute_name)
        plan.coefficients.run(x, *read, coefficients)
        dy, source, _, _, *parameters = read
        read = dy, source, *parameters, coefficients
    plan.kernel.run(x, *read, target, *partials, *added)
    return summed_gradients(norm, plan.finish, layout, x, gradient, partials.sums)


_KNOWN = KnownCalls()


class _KnownBackward(NamedTuple):
    """A call that copies no array: its plan, if arrays are aligned or not, and its arrays."""

    plan_if: Callable[[bool], GradientPlan]
    inputs: Inputs
    norm: Norm
    layout: RowLayout
    gradient: ElementType

    def run(
        self, x: DeviceArray, dy: Any, mean: Any, rstd: Any, gamma: Any, beta: Any, out: Any
    ) -> tuple[Any, ...] | None:
        """Return what `row_backward` does; None if `out` overlaps an input."""
        library = x.lib
        with on_device_of(x):
            dx = library.empty(x.array, x.shape, x.element.name) if out is None else out
            mean = mean if self.norm.formula.centred else rstd
            read = addresses_of(library, dy, x.array, mean, rstd, gamma, beta)
            target = library.address(dx)
            if out is not None and changes_an_input(self.inputs, read, target):
                return None
            plan = self.plan_if(are_aligned(self.inputs, read, target))
            given = self.norm, plan, x, self.layout, self.gradient
            return dx, *_launched(*given, read, target)


def broadcast_backward(
    without_gamma: Any,
    error: ValueError,
    norm: Norm,
    dy: DeviceArray,
    x: DeviceArray,
    mean: DeviceArray,
    rstd: DeviceArray,
    gamma: Any,
    layout: RowLayout,
    weighting: Weighting | None = None,
) -> tuple[Any, Any, Any]:
    """Return what a backward pass does, for a gamma that broadcasts against x.

    ``without_gamma(dy)`` is dx of the norm without it.
    """
    own = broadcast_parameters.given_parameter(x)
    parameters = parameters_of_rows(norm, gamma, None, layout, own)
    view = broadcast_parameters.view_of_rows(x, layout)
    statistics = mean if norm.formula.centred else None, rstd
    given = without_gamma, error, dy, x, statistics, parameters, view, weighting
    return broadcast_parameters.backward(*given)


def saved_statistics(
    norm: Norm, mean: Any, rstd: Any, layout: RowLayout, x: DeviceArray
) -> tuple[DeviceArray, DeviceArray]:
    """Return mean and rstd of every row, checked; without centring the mean is any array."""
    of_rstd = _statistic(norm.names.rstd, rstd, layout, x)
    of_mean = _statistic("mean", mean, layout, x) if norm.formula.centred else of_rstd
    if of_mean.element != of_rstd.element:
        raise TypeError(
            f"mean and {norm.names.rstd} must have one dtype, got {of_mean.element.name} "
            f"and {of_rstd.element.name}"
        )
    return of_mean, of_rstd


def _statistic(name: str, value: Any, layout: RowLayout, x: DeviceArray) -> DeviceArray:
    """Return a saved statistic of every row, checked unless this package computed it."""
    if isinstance(value, Statistic):
        return value
    if value is None:
        raise TypeError(f"{name} must be an array of shape {layout.statistic_shape}, got None")
    array = as_parameter(name, value, layout.statistic_shape, "one for each row", x)
    if array.element not in (FLOAT32, FLOAT64):
        raise TypeError(f"{name} must have dtype float32 or float64, got {array.element.name}")
    return array


def _partial_sums(norm: Norm, plan: GradientPlan, x: DeviceArray) -> PartialSums:
    """Return new tables for the sums of the kernel, and for what rounding loses of long ones."""
    if not norm.parameters:
        return PartialSums(None, None)
    shape = norm.parameters, *plan.table
    sums = x.lib.empty(x.array, shape, x.element.compute_name)
    lost = x.lib.empty(x.array, shape, x.element.compute_name) if plan.long else None
    return PartialSums(sums, lost)


def summed_gradients(
    norm: Norm,
    finish: PreparedLaunch,
    layout: RowLayout,
    x: DeviceArray,
    gradient: ElementType,
    sums: Any,
) -> tuple[Any, Any]:
    """Return dgamma and dbeta from partial sums; None for a parameter that the norm lacks.

    `finish` is that of `finish_of`.
    """
    if not norm.parameters:
        return None, None
    name = gradient.name
    dgamma = x.lib.empty(x.array, layout.parameter_shape, name)
    dbeta = x.lib.empty(x.array, layout.parameter_shape, name) if norm.parameters > 1 else None
    finish.run(x, sums, dgamma, dbeta)
    return dgamma, dbeta


def _no_gradients(
    norm: Norm, layout: RowLayout, x: DeviceArray, gradient: ElementType
) -> tuple[Any, Any]:
    """Return the gradients of the parameters for an empty x: zeros."""
    nothing = layout.parameter_shape, gradient.name, 0.0
    zeros = [x.lib.full(x.array, *nothing) for _ in range(norm.parameters)]
    return (*zeros, None, None)[:2]
