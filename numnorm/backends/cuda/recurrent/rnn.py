"""Plain recurrent networks on a device: a step for one row, and the parameters.

The backward step recomputes the state from the products, and stores the gradient of the norm's
result, which another kernel sums over all steps for the gradients of the parameters.
"""

from typing import Any, NamedTuple

from numnorm.backends.contract.recurrent import RNNSpec
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import constant, cuda, device
from numnorm.backends.cuda.recurrent.cell_kind import CellKind, Saved, SpecFacts
from numnorm.backends.cuda.recurrent.cell_norm import CELL, NUMBERS, gain_of, make_norm_backward
from numnorm.backends.cuda.recurrent.parameter_gradients import column_sums
from numnorm.backends.cuda.recurrent.pass_arrays import (
    Weights,
    added_up,
    array_or_none,
    make_weights,
    norm_numbers,
    parameter_or,
)
from numnorm.backends.cuda.recurrent.product_norm import (
    GateRange,
    ProductNorm,
    make_normalize_again,
    make_normalize_products,
    make_read_products,
)
from numnorm.backends.cuda.recurrent.states import make_activation, make_blend, make_state_gradient
from numnorm.backends.cuda.recurrent.step_kernels import Results, StepKind
from numnorm.backends.cuda.threads.reductions import SumsOf
from numnorm.backends.cuda.threads.row_columns import (
    make_column_weight,
    make_read_columns,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape

# A step

GATES = 1


class RNNWeights(NamedTuple):
    """The bias and the parameter of the norm of a plain RNN, as addresses. Read.

    Attributes
    ----------
    offset : (H,)
        The sum of bias and beta.
    gamma : (H,)
        For the sum of both products.
    """

    offset: Any
    gamma: Any


def product_norm(spec: RNNSpec) -> ProductNorm:
    """Return the norm of the sum of both products."""
    return ProductNorm(spec.norm, CELL, GateRange(GATES, 0, GATES), False, 1)


def make_new_state(spec: RNNSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``new_state(values, weights, numbers, at, width, gain, result)``.

    It computes a thread's new units, `result`, from the normalized sums `values`, and loads their
    gamma into `gain`. `weights` is `RNNWeights`, `numbers` is `AdaNumbers`.
    """
    columns = row_columns(element, shape)
    slots = row_columns(element, shape).slots
    offset_at = make_column_weight(element, element, columns)
    gain_at = make_column_weight(element, gain_of(spec.norm, element), columns)
    apply = device(spec.norm.formula.forward if spec.norm else lambda xhat, g, b: xhat)
    zero = constant(element, 0.0)
    activated = make_activation(element, rectified=spec.rectified).value

    @device
    def new_state(values, weights, numbers, at, width, gain, result):
        offset_at(weights[0], zero, 0, at, width, result)
        gain_at(weights[1], numbers[0], 0, at, width, gain)
        for k in range(slots):
            result[k] = activated(apply(values[k], gain[k], numbers[1]) + result[k])

    return new_state


def make_write_state(spec: RNNSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``write_state(state, before, mask, row, width, at, limit, new)``.

    It blends the new units with the state before by zoneout, and stores them. `state`, `before` and
    `mask` are addresses.
    """
    columns = row_columns(element, shape)
    compute_type = element.compute_type
    zoned = spec.zoneout
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    blend = make_blend(element, shape, zoneout=spec.zoneout)
    slots = columns.slots

    @device
    def write_state(state, before, mask, row, width, at, limit, new):
        if zoned:
            old = cuda.local.array(slots, compute_type)
            read(before, row * width, at, width, old)
            blend(mask, row * width, at, width, new, old)
        write(state, row * width, at, limit, new)

    return write_state


def make_step(spec: RNNSpec, element: ElementType, shape: RowShape) -> Any:
    """Return the device function ``step`` of `StepKind`."""
    compute_type = element.compute_type
    slots = row_columns(element, shape).slots
    read_products, normalize_products = (
        make(product_norm(spec), element, shape)
        for make in (make_read_products, make_normalize_products)
    )
    new_state, write_state = (
        make(spec, element, shape) for make in (make_new_state, make_write_state)
    )

    @device
    def step(products, weights, states, saved, span, ada, scalings, smem):
        values = cuda.local.array(slots, compute_type)
        gain = cuda.local.array(slots, compute_type)
        new = cuda.local.array(slots, compute_type)
        row, width, at, limit = span
        read_products(products, span, values)
        normalize_products(products, saved, span, values, scalings.gates, smem[0])
        new_state(values, weights, ada, at, width, gain, new)
        write_state(states.h, states.h_before, states.mask_h, row, width, at, limit, new)

    return step


def make_step_back(spec: RNNSpec, element: ElementType, shape: RowShape, sums_of: SumsOf) -> Any:
    """Return the device function ``step_back`` of `StepKind`."""
    columns = row_columns(element, shape)
    of = product_norm(spec)
    compute_type = element.compute_type
    slots = columns.slots
    normed = spec.norm is not None
    zoned = spec.zoneout
    read_products = make_read_products(of, element, shape, summed=True)
    normalize_again = make_normalize_again(of, element, shape)
    write = make_write_columns(element, columns)
    new_state = make_new_state(spec, element, shape)
    state_gradient = make_state_gradient(element, shape, zoneout=zoned, past_every_step=zoned)
    grad_through = make_activation(element, rectified=spec.rectified).gradient
    norm_backward = make_norm_backward(spec.norm, element, shape, sums_of)

    @device
    def step_back(saved, weights, incoming, results, span, later, ada, coefficients, smem):
        values = cuda.local.array(slots, compute_type)
        stats = cuda.local.array(NUMBERS, compute_type)
        gain = cuda.local.array(slots, compute_type)
        state = cuda.local.array(slots, compute_type)
        grad = cuda.local.array(slots, compute_type)
        bypass = cuda.local.array(slots, compute_type)
        row, width, at, limit = span
        read_products(saved, span, values)
        normalize_again(saved.table, span, values, stats)
        new_state(values, weights, ada, at, width, gain, state)
        state_gradient(incoming, span, later, grad, bypass)
        if zoned:
            write(incoming.dh, row * width, at, limit, bypass)
        for k in range(slots):
            grad[k] = grad_through(grad[k], state[k])
        write(results.gates, row * width, at, limit, grad)
        norm_backward(grad, at, width, values, gain, ada, stats, coefficients.gates, smem[0])
        if normed:
            write(results.dz, row * width, at, limit, grad)

    return step_back


STEP = StepKind(RNNWeights, lambda spec: (1, 0), make_step, make_step_back)


# Parameters

_SIZES = dict.fromkeys(("bias", "beta", "gamma"), 1)


def weights(spec: RNNSpec, parameters: Any, ada: tuple[float, float]) -> Weights:
    """Return the parameters of a plain recurrent network; beta is added to the bias."""
    like = parameters.weight_h
    units = like.shape[1]
    others = RNNWeights(
        added_up(like, (units,), array_or_none(parameters.bias), array_or_none(parameters.beta)),
        parameter_or(1.0, parameters.gamma, spec.norm, 1, like, units),
    )
    return make_weights(parameters, others, norm_numbers(spec.norm, ada))


def _facts(spec: RNNSpec) -> SpecFacts:
    return SpecFacts((spec.norm, None), False, GATES, int(spec.norm is not None))


def _parameter_sums(
    spec: RNNSpec, x: DeviceArray, saved: Saved, results: Results
) -> dict[str, Any]:
    """Return the gradients of the bias and the norm's parameters, by name."""
    gammas = {}
    if spec.norm is not None and spec.norm.parameters > 0:
        gammas["gamma"], offset = column_sums(x, results.gates, saved.z, saved.table)
    else:
        _, offset = column_sums(x, results.gates)
    return gammas | {"bias": offset, "beta": offset}


KIND = CellKind(STEP, GATES, _SIZES, _facts, _parameter_sums)
