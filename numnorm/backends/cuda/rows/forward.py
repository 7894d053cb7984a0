"""The row norms on device arrays: checks, plan and launch."""

import functools
import math
from collections.abc import Callable
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
from numnorm.backends.cuda.arrays.known_calls import (
    Input,
    Inputs,
    KnownCalls,
    addresses_of,
    are_aligned,
    changes_an_input,
)
from numnorm.backends.cuda.arrays.launch import PreparedLaunch, on_device_of
from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES, ElementType
from numnorm.backends.cuda.compiler.target import Kernel
from numnorm.backends.cuda.compiler.vector_access import BYTES
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
    formula: Formula, element: ElementType, saved: ElementType, weights: Weights, shape: RowShape
) -> Kernel:
    make = make_row_forward if shape.vectors else make_row_forward_loop
    return make(formula, element, saved, weights, shape)


@functools.cache
def _added_kernel(
    formula: Formula, element: ElementType, saved: ElementType, weights: Weights, shape: RowShape
) -> Kernel:
    return make_row_forward(formula, element, saved, weights, shape, adds=True)


@functools.lru_cache(maxsize=1024)
def forward_plan(
    formula: Formula,
    element: ElementType,
    saved: ElementType,
    weights: Weights,
    missing: tuple[float, float],
    layout: RowLayout,
    scaling: Scaling,
    aligned: bool,
    adds: bool = False,
) -> PreparedLaunch:
    """Return the launch, which takes x, gamma, beta, y, mean and rstd.

    The `missing` numbers stand for a gamma and a beta that are no arrays. A launch that `adds`, of
    rows that fit the registers, takes the residual and the sum last.
    """
    shape = launch_shape(layout.width, element, aligned=aligned)
    sizes = RowSizes(layout.rows, layout.width, layout.segment, layout.channels)
    inv_divisor = 1.0 / (layout.width - scaling.ddof)
    numbers = RowScaling(1.0 / layout.width, inv_divisor, scaling.eps_on_deviation)
    parameters = row_parameters(-2, missing)
    addition = Addition(-7, -8) if adds else Addition(0, 0)
    make = _added_kernel if adds else _forward_kernel
    return PreparedLaunch(
        make(formula, element, saved, weights, shape),
        blocks_of(layout.rows, shape),
        (-1, addition, parameters, -4, SavedStatistics(-5, -6)),
        (sizes, numbers, scaling.eps, math.sqrt(scaling.eps)),
    )


def row_parameters(mark: int, missing: tuple[float, float]) -> RowParameters:
    """Return gamma and beta for a `PreparedLaunch`, the arrays of a mark and of the next one."""
    gamma, beta = missing
    return RowParameters(Parameter(mark, gamma), Parameter(mark - 1, beta))


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
    options = norm, layout, scaling
    key, known = _KNOWN.find(x, options, save, (gamma, beta, out))
    found = None if known is None else known.run(x, gamma, beta, out)
    if found is not None:
        return found
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
            numbers = scale.number, shift.number
            kernel = norm.formula, x.element, saved, weights
            plan_if = functools.partial(forward_plan, *kernel, numbers, layout, scaling)
            plan = plan_if(all_aligned(x, layout, (source, output.target), scale, shift))
            plan.run(x, source, scale.array, shift.array, output.target, *statistics)
            as_given = source is x.array and scale.array is gamma and shift.array is beta
            if key is not None and as_given and output.destination is None:
                inputs = whole_input(x.element, layout), *weight_inputs(x.element, weights, layout)
                call = _KnownForward(functools.cache(plan_if), inputs, layout, saved, save)
                _KNOWN.keep(key, options, call)
        elif save:
            nothing = layout.statistic_shape, saved.name, scaling.for_empty_row
            statistics = SavedStatistics(*(library.full(x.array, *nothing) for _ in range(2)))
        return result(output, x, order), *statistics


_KNOWN = KnownCalls()


def whole_input(element: ElementType, layout: RowLayout) -> Input:
    """Return an input of the shape of x, of a known call."""
    return Input(element.name, layout.rows * layout.width * element.itemsize, True)


def weight_inputs(element: ElementType, weights: Weights, layout: RowLayout) -> Inputs:
    """Return gamma and beta as inputs of a known call with an x of this element type."""
    count = math.prod(layout.parameter_shape)
    return tuple(
        Input("", 0, False)
        if kind is None
        else Input(kind.name, count * kind.itemsize, kind == element and not layout.shared)
        for kind in (weights.gamma, weights.beta)
    )


class _KnownForward(NamedTuple):
    """A call that copies no array: its launch, if arrays are aligned or not, and its arrays."""

    plan_if: Callable[[bool], PreparedLaunch]
    inputs: Inputs
    layout: RowLayout
    saved: ElementType
    save: bool

    def run(self, x: DeviceArray, gamma: Any, beta: Any, out: Any) -> tuple[Any, Any, Any] | None:
        """Return what `row_forward` does; None if `out` overlaps an input."""
        library = x.lib
        with on_device_of(x):
            y = library.empty(x.array, x.shape, x.element.name) if out is None else out
            read, target = addresses_of(library, x.array, gamma, beta), library.address(y)
            if out is not None and changes_an_input(self.inputs, read, target):
                return None
            statistics = SavedStatistics(None, None)
            if self.save:
                statistics = new_statistics(x, self.layout, self.saved)
            plan = self.plan_if(are_aligned(self.inputs, read, target))
            plan.run(x, *read, target, *statistics)
        return y, *statistics


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
    return not any(x.lib.address(array) % BYTES for array in (*arrays, *in_vectors))
