"""The row norms on device arrays: checks, plan and launch."""

import functools
import math
from typing import Any, NamedTuple

from numnorm.backends.contract.gains import parameters_of_rows
from numnorm.backends.contract.norms import Formula, Norm, Scaling
from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cuda.arrays.device_array import (
    DeviceArray,
    as_parameter,
    in_order,
    output_like,
    result,
)
from numnorm.backends.cuda.arrays.known_calls import repeats
from numnorm.backends.cuda.arrays.launch import launch, on_device_of
from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES, VECTOR_BYTES, ElementType
from numnorm.backends.cuda.compiler.target import Kernel
from numnorm.backends.cuda.rows.arguments import (
    Addition,
    Parameter,
    RowParameters,
    RowScaling,
    RowSizes,
    SavedStatistics,
)
from numnorm.backends.cuda.rows.forward_kernel import make_row_forward
from numnorm.backends.cuda.rows.forward_loop_kernel import make_row_forward_loop
from numnorm.backends.cuda.statistics import broadcast_parameters
from numnorm.backends.cuda.threads.row_columns import Weights
from numnorm.backends.cuda.threads.row_shape import RowShape, blocks_of, launch_shape
from numnorm.layouts import RowLayout


class Plan(NamedTuple):
    """A kernel and its launch, which depend on norm, elements and layout alone and are cached."""

    kernel: Kernel
    blocks: int
    arguments: tuple[Any, ...]


class Weight(NamedTuple):
    """Gamma or beta: an array and the type of its elements, or one number for all elements."""

    array: Any
    element: ElementType | None
    number: float

    @property
    def parameter(self) -> Parameter:
        """The weight as an argument of a kernel."""
        return Parameter(self.array, self.number)


@functools.cache
def _forward_kernel(
    formula: Formula,
    element: ElementType,
    saved: ElementType,
    weights: Weights,
    shape: RowShape,
    adds: bool,
) -> Kernel:
    if shape.vectors:
        return make_row_forward(formula, element, saved, weights, shape, adds=adds)
    return make_row_forward_loop(formula, element, saved, weights, shape)


@functools.lru_cache(maxsize=1024)
def forward_plan(
    formula: Formula,
    element: ElementType,
    saved: ElementType,
    weights: Weights,
    layout: RowLayout,
    scaling: Scaling,
    aligned: bool,
    adds: bool = False,
) -> Plan:
    """Return the plan; one that `adds` is of rows that fit the registers."""
    shape = launch_shape(layout.width, element, aligned=aligned)
    sizes = RowSizes(layout.rows, layout.width, layout.segment, layout.channels)
    inv_divisor = 1.0 / (layout.width - scaling.ddof)
    numbers = RowScaling(1.0 / layout.width, inv_divisor, scaling.eps_on_deviation)
    return Plan(
        _forward_kernel(formula, element, saved, weights, shape, adds),
        blocks_of(layout.rows, shape),
        (sizes, numbers, scaling.eps, math.sqrt(scaling.eps)),
    )


@repeats("gamma", "beta", "out")
def row_forward(
    norm: Norm,
    x: DeviceArray,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: Scaling,
    out: Any,
    save: bool,
) -> tuple[Any, Any, Any]:
    """Return y and, where `save` is true, mean (or root mean square) and rstd of each row."""
    library = x.lib
    order = layout.order
    saved = ELEMENT_TYPES[library.statistic_name(x.element.name)]
    with on_device_of(x):
        try:
            scale = weight_of(norm, norm.names.gamma, gamma, 1.0, layout, x)
            shift = weight_of(norm, "beta", beta, 0.0, layout, x)
        except ValueError as error:
            given = norm, x, gamma, beta, layout, scaling, out, save
            return broadcast_forward(row_forward, error, *given)
        source = in_order(x, order)
        output = output_like(x, order, out, (source, scale.array, shift.array))
        statistics = new_statistics(x, layout, saved) if save else SavedStatistics(None, None)
        if layout.rows and layout.width:
            weights = Weights(scale.element, shift.element, layout.shared)
            aligned = all_aligned(x, layout, (source, output.target), scale, shift)
            plan = forward_plan(norm.formula, x.element, saved, weights, layout, scaling, aligned)
            parameters = RowParameters(scale.parameter, shift.parameter)
            arrays = source, Addition(None, None), parameters, output.target, statistics
            launch(plan.kernel, plan.blocks, x, arrays, plan.arguments)
        elif save:
            nothing = layout.statistic_shape, saved.name, scaling.for_empty_row
            statistics = SavedStatistics(*(library.full(x.array, *nothing) for _ in range(2)))
        return result(output, x, order), *statistics


def broadcast_forward(
    function: Any,
    error: ValueError,
    norm: Norm,
    x: DeviceArray,
    gamma: Any,
    beta: Any,
    layout: RowLayout,
    scaling: Scaling,
    out: Any,
    save: bool,
    weighting: Weighting | None = None,
) -> tuple[Any, Any, Any]:
    """Return what a forward pass does, for parameters of which one broadcasts against x."""

    def normalized(x: DeviceArray) -> tuple[Any, Any, Any]:
        y, mean, rstd = function(norm, x, None, None, layout, scaling, None, save)
        return y, mean, rstd

    own = broadcast_parameters.given_parameter(x)
    parameters = parameters_of_rows(norm, gamma, beta, layout, own)
    view = broadcast_parameters.view_of_rows(x, layout)
    given = normalized, error, x, parameters, view, out, weighting
    y, mean, rstd = broadcast_parameters.forward(*given)
    return y, *broadcast_parameters.saved_for(x, mean, rstd)


def weight_of(
    norm: Norm, name: str, value: Any, missing: float, layout: RowLayout, x: DeviceArray
) -> Weight:
    """Return gamma or beta, checked; a norm without parameters has a number as `value`."""
    if norm.parameters == 0:
        return Weight(None, None, 0.0 if value is None else value)
    if value is None:
        return Weight(None, None, missing)
    array = as_parameter(name, value, layout.parameter_shape, layout.parameter_meaning, x)
    return Weight(array.array, array.element, missing)


def new_statistics(x: DeviceArray, layout: RowLayout, saved: ElementType) -> SavedStatistics:
    """Return new arrays for the mean and rstd of each row."""
    shape = layout.statistic_shape
    name = saved.name
    mean, rstd = x.lib.empty(x.array, shape, name), x.lib.empty(x.array, shape, name)
    return SavedStatistics(mean, rstd)


def all_aligned(
    x: DeviceArray, layout: RowLayout, arrays: tuple[Any, ...], scale: Weight, shift: Weight
) -> bool:
    """Return whether all arrays that a kernel accesses in 16-byte vectors are aligned."""
    # A kernel reads a parameter of another type, or one for each segment, element by element.
    in_vectors = [w.array for w in (scale, shift) if w.element == x.element and not layout.shared]
    return not any(x.lib.address(array) % VECTOR_BYTES for array in (*arrays, *in_vectors))
