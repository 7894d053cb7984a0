"""One step of a normalized gated recurrent unit for a row, forward and backward.

As for the LSTM, the gates are made again on the way back, and what reaches them before their norm
is stored for the sums over all steps.
"""

from typing import Any, NamedTuple

from numnorm.backends.contract.recurrent import GRUSpec
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import constant, cuda, device
from numnorm.backends.cuda.recurrent.common.cell_norm import NUMBERS
from numnorm.backends.cuda.recurrent.common.gate_norm_gradient import (
    make_gate_norm_coefficients,
    make_gate_norm_gradient,
)
from numnorm.backends.cuda.recurrent.common.product_norm import (
    make_normalize_again,
    make_normalize_products,
    make_read_products,
)
from numnorm.backends.cuda.recurrent.common.state_gradient import make_state_gradient
from numnorm.backends.cuda.recurrent.common.step_kernels import StepKind
from numnorm.backends.cuda.recurrent.common.zoneout import make_blend
from numnorm.backends.cuda.recurrent.gru.gates import (
    GATES,
    OF_GATES,
    OF_REST,
    make_gates,
    product_norms,
)
from numnorm.backends.cuda.threads.group_reductions import SumsOf
from numnorm.backends.cuda.threads.row_columns import (
    make_read_columns,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape
from numnorm.backends.formulas.cells import gru_gradient, gru_state

# Two of each part of a row, where there is a norm.
SUMS = 2 * (OF_GATES.count + OF_REST.count)


class GRUWeights(NamedTuple):
    """The biases of both gates ``(2H,)``, of the rest and of what r lets pass, and the gammas."""

    offset: Any
    offset_x: Any
    offset_h: Any
    gamma_h: Any
    gamma_x: Any


def make_new_state(spec: GRUSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``new_state(mask, row, width, at, gates, before, new)``.

    The new state is made of the gates and of the one `before`, both of a thread's units.
    """
    slots, one = row_columns(element, shape).slots, constant(element, 1.0)
    blend, state = make_blend(element, shape, zoneout=spec.zoneout), device(gru_state)

    @device
    def new_state(mask, row, width, at, gates, before, new):
        for k in range(slots):
            new[k] = state(gates[k], gates[2 * slots + k], before[k], one)
        blend(mask, row * width, at, width, new, before)

    return new_state


def make_step(spec: GRUSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function of a row's step, as `StepKind` has it."""
    columns, compute_type, norms = (
        row_columns(element, shape),
        element.compute_type,
        product_norms(spec),
    )
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    read_both, read_rest = (make_read_products(of, element, shape) for of in norms)
    normalize_both, normalize_rest = (make_normalize_products(of, element, shape) for of in norms)
    gates_of, new_state = (make(spec, element, shape) for make in (make_gates, make_new_state))
    slots, two, four = columns.slots, 2 * columns.slots, 4 * columns.slots

    @device
    def step(products, weights, states, saved, span, ada, scalings, smem_sizes):
        both = cuda.local.array(four, compute_type)
        rest = cuda.local.array(two, compute_type)
        gates = cuda.local.array(four, compute_type)
        before = cuda.local.array(slots, compute_type)
        row, width, at, limit = span
        read_both(products, span, both)
        read_rest(products, span, rest)
        normalize_both(products, saved, span, both, scalings.gates, smem_sizes[0])
        normalize_rest(products, saved, span, rest, scalings.other, smem_sizes[1])
        gates_of(both, rest, weights, ada, at, width, gates)
        read(states.h_before, row * width, at, width, before)
        new_state(states.mask_h, row, width, at, gates, before, rest)
        write(states.h, row * width, at, limit, rest)

    return step


def _make_gate_gradients(spec: GRUSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function of what reaches the gates, and the state before.

    ``gate_gradients(before, dh, span, gates, grad, kept)``: 1 - z and r become the gradients of z
    and r, and the other two those of the rest of the product with the state and of that with x; dh
    that of the state before, with what was `kept` of it.
    """
    columns, compute_type, one = (
        row_columns(element, shape),
        element.compute_type,
        constant(element, 1.0),
    )
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    slots, zoned, gradient = columns.slots, spec.zoneout, device(gru_gradient)

    @device
    def gate_gradients(before, dh, span, gates, grad, kept):
        state = cuda.local.array(slots, compute_type)
        row, width, at, limit = span
        read(before, row * width, at, width, state)
        for k in range(slots):
            old, r, candidate = gates[k], gates[slots + k], gates[2 * slots + k]
            dz, dr, of_h, of_x, past = gradient(
                grad[k], state[k], old, r, candidate, gates[3 * slots + k], one
            )
            gates[k], gates[slots + k] = dz, dr
            gates[2 * slots + k], gates[3 * slots + k] = of_h, of_x
            grad[k] = past + kept[k] if zoned else past
        write(dh, row * width, at, limit, grad)

    return gate_gradients


def _make_write_gradients(element: ElementType, shape: RowShape) -> Any:
    """Return a device function that stores what reaches the norms' results, for either product.

    ``write_gradients(results, span, grads)``: these are the sections that `gate_gradients` leaves.
    """
    columns = row_columns(element, shape)
    write, slots = make_write_columns(element, columns), columns.slots

    @device
    def write_gradients(results, span, grads):
        row, width, at, limit = span
        first = row * GATES * width
        for gate in range(2):
            write(results.gates, first + gate * width, at, limit, grads[gate * slots :])
            write(results.other, first + gate * width, at, limit, grads[gate * slots :])
        write(results.gates, first + 2 * width, at, limit, grads[2 * slots :])
        write(results.other, first + 2 * width, at, limit, grads[3 * slots :])

    return write_gradients


def _make_norms_backward(
    spec: GRUSpec, element: ElementType, shape: RowShape, sums_of: SumsOf
) -> Any:
    """Return a device function that stores the gradients of a row's products.

    ``norms_backward(grads, normal, found, gammas, ada, coefficients, smem, results, span)``: the gradients
    are the sections that `gate_gradients` leaves; what is normal, its statistics and the flows are
    those of both gates and of the rest. Their sums are taken together.
    """
    if spec.norm is None:
        return device(
            lambda grads, normal, found, gammas, ada, coefficients, smem, results, span: None
        )
    of_both, of_rest = product_norms(spec)
    (add_both, write_both), (add_rest, write_rest) = (
        (
            make_gate_norm_coefficients(spec.norm, element, shape, of.parts, of.gates),
            make_gate_norm_gradient(spec.norm, element, shape, of.parts, of.gates),
        )
        for of in (of_both, of_rest)
    )
    two, compute_type, row_sums = (
        2 * row_columns(element, shape).slots,
        element.compute_type,
        sums_of(SUMS),
    )
    behind = 2 * OF_GATES.count

    @device
    def norms_backward(grads, normal, found, gammas, ada, coefficients, smem, results, span):
        sums = cuda.local.array(SUMS, compute_type)
        row, width, at, limit = span
        dz, dxp, _, _ = results
        add_both(grads, normal[0], gammas, ada, width, at, sums)
        add_rest(grads[two:], normal[1], gammas, ada, width, at, sums[behind:])
        row_sums(sums, smem)
        write_both(
            grads, normal[0], found[0], sums, gammas, ada, coefficients.gates, dz, dxp, row, width, at,
            limit,
        )  # fmt: skip
        write_rest(
            grads[two:], normal[1], found[1], sums[behind:], gammas, ada, coefficients.other, dz, dxp, row,
            width, at, limit,
        )  # fmt: skip

    return norms_backward


def make_step_back(spec: GRUSpec, element: ElementType, shape: RowShape, sums_of: SumsOf) -> Any:
    """Return a device function of a row's step back, as `StepKind` has it."""
    compute_type, slots, norms = (
        element.compute_type,
        row_columns(element, shape).slots,
        product_norms(spec),
    )
    read_both, read_rest = (make_read_products(of, element, shape) for of in norms)
    both_again, rest_again = (make_normalize_again(of, element, shape) for of in norms)
    state_gradient = make_state_gradient(element, shape, zoneout=spec.zoneout, past_every_step=True)
    gates_of, gate_gradients = (
        make(spec, element, shape) for make in (make_gates, _make_gate_gradients)
    )
    write_gradients = _make_write_gradients(element, shape)
    norms_backward = _make_norms_backward(spec, element, shape, sums_of)
    two, four, of_parts = 2 * slots, 4 * slots, 2 * NUMBERS

    @device
    def step_back(saved, weights, incoming, results, span, later, ada, coefficients, smem_sizes):
        both = cuda.local.array(four, compute_type)
        rest = cuda.local.array(two, compute_type)
        gates = cuda.local.array(four, compute_type)
        found = cuda.local.array(of_parts, compute_type)
        found_rest = cuda.local.array(of_parts, compute_type)
        grad = cuda.local.array(slots, compute_type)
        kept = cuda.local.array(slots, compute_type)
        read_both(saved, span, both)
        read_rest(saved, span, rest)
        both_again(saved.table, span, both, found)
        rest_again(saved.table, span, rest, found_rest)
        gates_of(both, rest, weights, ada, span.at, span.width, gates)
        state_gradient(incoming, span, later, grad, kept)
        gate_gradients(saved.before, incoming.dh, span, gates, grad, kept)
        write_gradients(results, span, gates)
        normal, statistics = (both, rest), (found, found_rest)
        norms_backward(
            gates, normal, statistics, weights[3:], ada, coefficients, smem_sizes[0], results, span
        )  # fmt: skip

    return step_back


STEP = StepKind(GRUWeights, lambda spec: (OF_GATES.count, OF_REST.count), make_step, make_step_back)
