"""Gated recurrent units on a device: the gates, a step for one row, and the parameters.

A row of a product has a section for each of z, r and the candidate. z and r are normalized as one
row, the candidate as another. A thread holds them in two arrays: ``pair`` has z and r of the
product W_h h with the state, then of the product W_x x; ``candidate`` has the candidate's sections
of both.

As for the LSTM, the backward step recomputes the gates, and stores the gradients of the norms'
results for the sums over all steps.
"""

from typing import Any, NamedTuple

from numnorm.backends.contract.recurrent import GRUSpec
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import constant, cuda, device, make_tanh
from numnorm.backends.cuda.recurrent.cell_kind import CellKind, Saved, SpecFacts
from numnorm.backends.cuda.recurrent.cell_norm import NUMBERS, Parts
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
    make_add_normalized,
    make_gate_norm_gradient,
    make_gate_norm_sums,
    make_normalize_again,
    make_normalize_products,
    make_read_products,
)
from numnorm.backends.cuda.recurrent.states import make_blend, make_sigmoid, make_state_gradient
from numnorm.backends.cuda.recurrent.step_kernels import Results, StepKind
from numnorm.backends.cuda.threads.reductions import SumsOf
from numnorm.backends.cuda.threads.row_columns import (
    make_column_weight,
    make_read_columns,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape
from numnorm.backends.formulas.cells import gru_candidate_input, gru_gradient, gru_state

# Gates

GATES = 3
PAIR, CANDIDATE = Parts(2, 2), Parts(2, 1)


def sites(spec: GRUSpec) -> int:
    """Return the number of sites: for each product, one of z and r and one of the candidate."""
    return 0 if spec.norm is None else PAIR.count + CANDIDATE.count


def product_norms(spec: GRUSpec) -> tuple[ProductNorm, ProductNorm]:
    """Return the norms of z with r, and of the candidate."""
    pair, candidate = GateRange(GATES, 0, 2), GateRange(GATES, 2, 1, shared=False)
    return (
        ProductNorm(spec.norm, PAIR, pair, True, sites(spec), 0, 2),
        ProductNorm(spec.norm, CANDIDATE, candidate, True, sites(spec), 1, 2),
    )


def make_gate_pair(spec: GRUSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``gate_pair(pair, weights, numbers, at, width, gates)``.

    It computes two sections of `gates` from the normalized products: 1 - z and r. 1 - z is
    accurate, not z, because it multiplies the old state, which may be large. `weights` has the
    addresses ``offset, gamma_h, gamma_x``, `numbers` is `AdaNumbers`, `at` the thread's first unit,
    and `width` the number of units.
    """
    columns = row_columns(element, shape)
    zero = constant(element, 0.0)
    compute_type = element.compute_type
    slots = columns.slots
    sigmoid = make_sigmoid(element)
    offset_of = make_column_weight(element, element, columns)
    add = make_add_normalized(spec.norm, element, shape)

    @device
    def gate_pair(pair, weights, numbers, at, width, gates):
        offset, gamma_h, gamma_x = weights
        total = cuda.local.array(slots, compute_type)
        for gate in range(2):
            first = gate * width
            offset_of(offset, zero, first, at, width, total)
            add(pair[gate * slots :], gamma_h, numbers, first, at, width, total)
            add(pair[(2 + gate) * slots :], gamma_x, numbers, first, at, width, total)
            for k in range(slots):
                gates[gate * slots + k] = sigmoid(total[k] if gate else -total[k])

    return gate_pair


def make_gates(spec: GRUSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``gates_of(pair, candidate, weights, numbers, at, width, gates)``.

    It computes four sections of `gates` from the normalized products: the two that `make_gate_pair`
    computes, the candidate, and the candidate's input from the state, which r multiplies. `weights`
    is `GRUWeights`; `make_gate_pair` describes the other arguments.
    """
    columns = row_columns(element, shape)
    zero = constant(element, 0.0)
    compute_type = element.compute_type
    slots = columns.slots
    tanh = make_tanh(element)
    gate_pair = make_gate_pair(spec, element, shape)
    offset_of = make_column_weight(element, element, columns)
    add = make_add_normalized(spec.norm, element, shape)
    candidate_input = device(gru_candidate_input)

    @device
    def gates_of(pair, candidate, weights, numbers, at, width, gates):
        offset, offset_x, offset_h, gamma_h, gamma_x = weights
        total = cuda.local.array(slots, compute_type)
        gate_pair(pair, (offset, gamma_h, gamma_x), numbers, at, width, gates)
        first, from_h = 2 * width, gates[3 * slots :]
        offset_of(offset_h, zero, 0, at, width, from_h)
        add(candidate, gamma_h, numbers, first, at, width, from_h)
        offset_of(offset_x, zero, 0, at, width, total)
        add(candidate[slots:], gamma_x, numbers, first, at, width, total)
        for k in range(slots):
            gates[2 * slots + k] = tanh(candidate_input(total[k], gates[slots + k], from_h[k]))

    return gates_of


# A step

# Two sums of each part of a row, for the gradient of the norm.
SUMS = 2 * (PAIR.count + CANDIDATE.count)


class GRUWeights(NamedTuple):
    """The biases and the parameters of the norms of a GRU, as addresses. Read.

    Attributes
    ----------
    offset : (2H,)
        The bias of z and r.
    offset_x, offset_h : (H,)
        The biases of the candidate's parts of both products.
    gamma_h, gamma_x : (3H,)
        For the product with the state and for the product with x.
    """

    offset: Any
    offset_x: Any
    offset_h: Any
    gamma_h: Any
    gamma_x: Any


def make_new_state(spec: GRUSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``new_state(mask, row, width, at, gates, before, new)``.

    It computes the new state from the gates, as of `make_gates`, and from the state `before`, all
    of a thread's units, and blends it by the row of the zoneout mask.
    """
    slots = row_columns(element, shape).slots
    one = constant(element, 1.0)
    blend = make_blend(element, shape, zoneout=spec.zoneout)
    state = device(gru_state)

    @device
    def new_state(mask, row, width, at, gates, before, new):
        for k in range(slots):
            new[k] = state(gates[k], gates[2 * slots + k], before[k], one)
        blend(mask, row * width, at, width, new, before)

    return new_state


def make_step(spec: GRUSpec, element: ElementType, shape: RowShape) -> Any:
    """Return the device function ``step`` of `StepKind`."""
    columns = row_columns(element, shape)
    norms = product_norms(spec)
    compute_type = element.compute_type
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    read_pair, read_candidate = (make_read_products(of, element, shape) for of in norms)
    normalize_pair, normalize_candidate = (
        make_normalize_products(of, element, shape) for of in norms
    )
    gates_of, new_state = (make(spec, element, shape) for make in (make_gates, make_new_state))
    slots = columns.slots
    two, four = 2 * columns.slots, 4 * columns.slots

    @device
    def step(products, weights, states, saved, span, ada, scalings, smem):
        pair = cuda.local.array(four, compute_type)
        candidate = cuda.local.array(two, compute_type)
        gates = cuda.local.array(four, compute_type)
        before = cuda.local.array(slots, compute_type)
        row, width, at, limit = span
        read_pair(products, span, pair)
        read_candidate(products, span, candidate)
        normalize_pair(products, saved, span, pair, scalings.gates, smem[0])
        normalize_candidate(products, saved, span, candidate, scalings.other, smem[1])
        gates_of(pair, candidate, weights, ada, at, width, gates)
        read(states.h_before, row * width, at, width, before)
        new = candidate  # its registers are free now
        new_state(states.mask_h, row, width, at, gates, before, new)
        write(states.h, row * width, at, limit, new)

    return step


def _make_gate_gradients(spec: GRUSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``gate_gradients(before, dh, span, gates, grad, bypass)``.

    The four sections of `gates`, as of `make_gates`, become the gradients of z, of r, and of the
    candidate's parts of W_h h (the product with the state) and W_x x. `before` and `dh` are
    addresses; dh gets the gradient of the state before, with `bypass` added. `grad` is the gradient
    of the new state.
    """
    columns = row_columns(element, shape)
    one = constant(element, 1.0)
    compute_type = element.compute_type
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    slots = columns.slots
    zoned = spec.zoneout
    gradient = device(gru_gradient)

    @device
    def gate_gradients(before, dh, span, gates, grad, bypass):
        state = cuda.local.array(slots, compute_type)
        row, width, at, limit = span
        read(before, row * width, at, width, state)
        for k in range(slots):
            one_minus_z, r, candidate = gates[k], gates[slots + k], gates[2 * slots + k]
            dz, dr, from_h, from_x, dbefore = gradient(
                grad[k], state[k], one_minus_z, r, candidate, gates[3 * slots + k], one
            )
            gates[k], gates[slots + k] = dz, dr
            gates[2 * slots + k], gates[3 * slots + k] = from_h, from_x
            grad[k] = dbefore + bypass[k] if zoned else dbefore
        write(dh, row * width, at, limit, grad)

    return gate_gradients


def _make_write_gradients(element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``write_gradients(results, span, grads)``.

    It stores the gradients of both products' norm results: the sections of `gate_gradients`.
    """
    columns = row_columns(element, shape)
    write = make_write_columns(element, columns)
    slots = columns.slots

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

    ``norms_backward(grads, values, stats, gammas, ada, coefficients, smem, results, span)``:
    `grads` are the sections of `gate_gradients`. `values` and `stats` are pairs of arrays, of z
    with r and of the candidate: the normalized products and their statistics. `coefficients` is
    `OfNorms` of `GradientCoefficients`. One reduction computes the sums of both norms.
    """
    if spec.norm is None:
        return device(
            lambda grads, values, stats, gammas, ada, coefficients, smem, results, span: None
        )
    (add_pair, write_pair), (add_candidate, write_candidate) = (
        (
            make_gate_norm_sums(spec.norm, element, shape, of.parts, of.gates),
            make_gate_norm_gradient(spec.norm, element, shape, of.parts, of.gates),
        )
        for of in product_norms(spec)
    )
    two = 2 * row_columns(element, shape).slots
    compute_type = element.compute_type
    row_sums = sums_of(SUMS)
    offset = 2 * PAIR.count

    @device
    def norms_backward(grads, values, stats, gammas, ada, coefficients, smem, results, span):
        sums = cuda.local.array(SUMS, compute_type)
        row, width, at, limit = span
        dz, dxp, _, _ = results
        add_pair(grads, values[0], gammas, ada, width, at, sums)
        add_candidate(grads[two:], values[1], gammas, ada, width, at, sums[offset:])
        row_sums(sums, smem)
        write_pair(
            grads, values[0], stats[0], sums, gammas, ada, coefficients.gates, dz, dxp, row, width,
            at, limit,
        )  # fmt: skip
        write_candidate(
            grads[two:], values[1], stats[1], sums[offset:], gammas, ada, coefficients.other, dz,
            dxp, row, width, at, limit,
        )  # fmt: skip

    return norms_backward


def make_step_back(spec: GRUSpec, element: ElementType, shape: RowShape, sums_of: SumsOf) -> Any:
    """Return the device function ``step_back`` of `StepKind`."""
    compute_type = element.compute_type
    slots = row_columns(element, shape).slots
    norms = product_norms(spec)
    read_pair, read_candidate = (make_read_products(of, element, shape) for of in norms)
    normalize_pair, normalize_candidate = (make_normalize_again(of, element, shape) for of in norms)
    state_gradient = make_state_gradient(element, shape, zoneout=spec.zoneout, past_every_step=True)
    gates_of, gate_gradients = (
        make(spec, element, shape) for make in (make_gates, _make_gate_gradients)
    )
    write_gradients = _make_write_gradients(element, shape)
    norms_backward = _make_norms_backward(spec, element, shape, sums_of)
    two, four, stats_size = 2 * slots, 4 * slots, 2 * NUMBERS

    @device
    def step_back(saved, weights, incoming, results, span, later, ada, coefficients, smem):
        pair = cuda.local.array(four, compute_type)
        candidate = cuda.local.array(two, compute_type)
        gates = cuda.local.array(four, compute_type)
        pair_stats = cuda.local.array(stats_size, compute_type)
        candidate_stats = cuda.local.array(stats_size, compute_type)
        grad = cuda.local.array(slots, compute_type)
        bypass = cuda.local.array(slots, compute_type)
        read_pair(saved, span, pair)
        read_candidate(saved, span, candidate)
        normalize_pair(saved.table, span, pair, pair_stats)
        normalize_candidate(saved.table, span, candidate, candidate_stats)
        gates_of(pair, candidate, weights, ada, span.at, span.width, gates)
        state_gradient(incoming, span, later, grad, bypass)
        gate_gradients(saved.before, incoming.dh, span, gates, grad, bypass)
        write_gradients(results, span, gates)
        values, stats = (pair, candidate), (pair_stats, candidate_stats)
        norms_backward(gates, values, stats, weights[3:], ada, coefficients, smem[0], results, span)

    return step_back


STEP = StepKind(GRUWeights, lambda spec: (PAIR.count, CANDIDATE.count), make_step, make_step_back)


# Parameters

_SIZES = dict.fromkeys(("bias", "beta_x", "beta_h", "gamma_x", "gamma_h"), GATES) | {"bias_h": 1}


def weights(spec: GRUSpec, parameters: Any, ada: tuple[float, float]) -> Weights:
    """Return the parameters of a gated recurrent unit; the betas are added to the biases."""
    like = parameters.weight_h
    units = like.shape[1]
    two, three = 2 * units, GATES * units

    def part(value: DeviceArray | None, start: int, stop: int) -> Any:
        return None if value is None else value.lib.rows(value.array, start, stop)

    biases = parameters.bias, parameters.beta_x, parameters.beta_h
    others = GRUWeights(
        added_up(like, (two,), *(part(p, 0, two) for p in biases)),
        added_up(like, (units,), *(part(p, two, three) for p in biases[:2])),
        added_up(
            like, (units,), array_or_none(parameters.bias_h), part(parameters.beta_h, two, three)
        ),
        parameter_or(1.0, parameters.gamma_h, spec.norm, 1, like, three),
        parameter_or(1.0, parameters.gamma_x, spec.norm, 1, like, three),
    )
    return make_weights(parameters, others, norm_numbers(spec.norm, ada))


def _facts(spec: GRUSpec) -> SpecFacts:
    return SpecFacts((spec.norm, spec.norm), True, 2, sites(spec), other_sections=GATES)


def _parameter_sums(
    spec: GRUSpec, x: DeviceArray, saved: Saved, results: Results
) -> dict[str, Any]:
    """Return the gradients of biases and norms, by name."""
    dz, dxp = results.gates, results.other
    table = saved.table
    units = x.lib.shape(saved.history[0])[1]
    gammas = {}
    if spec.norm is not None and spec.norm.parameters > 0:
        # Columns 0 to 2H are z and r, at the first site; 2H to 3H the candidate, at the next site.
        gammas["gamma_h"], beta_h = column_sums(x, dz, saved.z, table, 0, 2 * units)
        gammas["gamma_x"], beta_x = column_sums(x, dxp, saved.xp, table, 2, 2 * units)
    else:
        _, beta_h = column_sums(x, dz)
        _, beta_x = column_sums(x, dxp)
    bias_h = x.lib.rows(beta_h, 2 * units, GATES * units)
    return gammas | {"bias": beta_x, "beta_x": beta_x, "beta_h": beta_h, "bias_h": bias_h}


KIND = CellKind(STEP, GATES, _SIZES, _facts, _parameter_sums, past_every_step=True)
