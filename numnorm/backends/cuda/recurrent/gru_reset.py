"""Gated recurrent units on a device whose reset gate scales the state before its product.

A step has two products with the state, and a kernel after each. The first computes 1 - z, r and the
state times r, whose product the second takes; it computes the candidate and the new state. Backward
the second comes first. So weights, products and statistics come in pairs, for the gates z and r
and for the candidate, each with its own arrays: those of the gates have rows of 2H elements, those
of the candidate of H.

The kernels are those of a step of any cell, and take the groups of `step_kernels` so:

============  ========================================  =================================
field         gates                                     candidate
============  ========================================  =================================
``h_before``  the state, times its dropout mask         the state before the step
``h``         gets it times r                           gets the new state
``c``         gets 1 - z
``c_before``                                            1 - z
``before``    the state, times its dropout mask         the state before the step
``cell``                                                1 - z
``dy``        the gradient of the state times r         as for other cells
``dh``        the gradient of z; becomes the gradient   as for other cells
              of the state, times its dropout mask
``other``                                               gets the gradient of z
============  ========================================  =================================
"""

import functools
from typing import Any, NamedTuple

from numnorm.backends.contract.norms import Scaling
from numnorm.backends.contract.recurrent import CellGradients, GRUSpec, PackedSteps
from numnorm.backends.cuda.arrays.device_array import DeviceArray, with_array
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import constant, cuda, device, make_tanh
from numnorm.backends.cuda.recurrent.cell_norm import NUMBERS, Parts
from numnorm.backends.cuda.recurrent.gru import make_gate_pair, make_new_state
from numnorm.backends.cuda.recurrent.parameter_gradients import (
    column_sums,
    gradients_without_steps,
    operands_before,
    weight_gradients,
)
from numnorm.backends.cuda.recurrent.pass_arrays import (
    StepArrays,
    Table,
    Weights,
    added_up,
    addresses,
    array_or_none,
    coefficient_numbers,
    copied,
    make_weights,
    new,
    new_states,
    new_table,
    norm_numbers,
    parameter_or,
    scaling_numbers,
    shape_for,
    sums_kernel,
)
from numnorm.backends.cuda.recurrent.product_norm import (
    GateRange,
    ProductNorm,
    make_add_normalized,
    make_gate_norm_backward,
    make_normalize_again,
    make_normalize_products,
    make_read_products,
)
from numnorm.backends.cuda.recurrent.states import make_state_gradient
from numnorm.backends.cuda.recurrent.step_kernels import (
    AdaNumbers,
    Incoming,
    OfNorms,
    Products,
    ReadBack,
    Results,
    StepKind,
    StepSaved,
    StepStates,
    make_cell_backward,
    make_cell_forward,
)
from numnorm.backends.cuda.recurrent.step_launches import (
    StepDropout,
    StepLaunches,
    StepProducts,
    step_rows,
)
from numnorm.backends.cuda.threads.reductions import SumsOf
from numnorm.backends.cuda.threads.row_columns import (
    make_column_weight,
    make_read_columns,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape, blocks_of
from numnorm.backends.formulas.cells import gru_reset_gradient, gru_update_gradient

# The gates and the candidate

GATES, CANDIDATE = 2, 1  # sections of a row of their products


def _sites(spec: GRUSpec) -> int:
    """Return the number of sites in a row of a table: one of each product."""
    return 0 if spec.norm is None else 2


def _product_norm(spec: GRUSpec, gates: int) -> ProductNorm:
    """Return the norm of the products of the gates, or of the candidate."""
    return ProductNorm(spec.norm, Parts(2, gates), GateRange(gates, 0, gates), True, _sites(spec))


class PairWeights(NamedTuple):
    """The biases and the parameters of the norms, of the gates or of the candidate. Read.

    Attributes
    ----------
    offset : (2H,) or (H,)
        The sum of all biases.
    gamma_h, gamma_x : (2H,) or (H,)
        For the product with the state, or the state times r, and for the product with x.
    """

    offset: Any
    gamma_h: Any
    gamma_x: Any


def _make_candidate(spec: GRUSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``candidate_of(values, weights, numbers, at, width, candidate)``.

    It computes the candidate from the normalized products. `weights` is `PairWeights`, and
    `numbers` is `AdaNumbers`.
    """
    columns = row_columns(element, shape)
    zero, slots = constant(element, 0.0), columns.slots
    offset_of = make_column_weight(element, element, columns)
    add, tanh = make_add_normalized(spec.norm, element, shape), make_tanh(element)

    @device
    def candidate_of(values, weights, numbers, at, width, candidate):
        offset, gamma_h, gamma_x = weights
        offset_of(offset, zero, 0, at, width, candidate)
        add(values, gamma_h, numbers, 0, at, width, candidate)
        add(values[slots:], gamma_x, numbers, 0, at, width, candidate)
        for k in range(slots):
            candidate[k] = tanh(candidate[k])

    return candidate_of


# A step


def _make_gates_step(spec: GRUSpec, element: ElementType, shape: RowShape) -> Any:
    """Return the device function ``step`` of `StepKind`, of the gates."""
    columns = row_columns(element, shape)
    compute_type, slots = element.compute_type, columns.slots
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    of = _product_norm(spec, GATES)
    read_products, normalize = (
        make(of, element, shape) for make in (make_read_products, make_normalize_products)
    )
    gate_pair = make_gate_pair(spec, element, shape)
    two, four = 2 * slots, 4 * slots

    @device
    def step(products, weights, states, saved, span, ada, scalings, smem):
        values = cuda.local.array(four, compute_type)
        gates = cuda.local.array(two, compute_type)
        state = cuda.local.array(slots, compute_type)
        row, width, at, limit = span
        read_products(products, span, values)
        normalize(products, saved, span, values, scalings.gates, smem[0])
        gate_pair(values, weights, ada, at, width, gates)
        read(states.h_before, row * width, at, width, state)
        for k in range(slots):
            state[k] *= gates[slots + k]
        write(states.c, row * width, at, limit, gates)
        write(states.h, row * width, at, limit, state)

    return step


def _make_candidate_step(spec: GRUSpec, element: ElementType, shape: RowShape) -> Any:
    """Return the device function ``step`` of `StepKind`, of the candidate."""
    columns = row_columns(element, shape)
    compute_type, slots = element.compute_type, columns.slots
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    of = _product_norm(spec, CANDIDATE)
    read_products, normalize = (
        make(of, element, shape) for make in (make_read_products, make_normalize_products)
    )
    candidate_of, new_state = (
        make(spec, element, shape) for make in (_make_candidate, make_new_state)
    )
    two, three = 2 * slots, 3 * slots

    @device
    def step(products, weights, states, saved, span, ada, scalings, smem):
        values = cuda.local.array(two, compute_type)
        gates = cuda.local.array(three, compute_type)
        before = cuda.local.array(slots, compute_type)
        row, width, at, limit = span
        read_products(products, span, values)
        normalize(products, saved, span, values, scalings.gates, smem[0])
        read(states.c_before, row * width, at, width, gates)
        candidate_of(values, weights, ada, at, width, gates[two:])
        read(states.h_before, row * width, at, width, before)
        new = values  # its registers are free now
        new_state(states.mask_h, row, width, at, gates, before, new)
        write(states.h, row * width, at, limit, new)

    return step


def _make_candidate_back(
    spec: GRUSpec, element: ElementType, shape: RowShape, sums_of: SumsOf
) -> Any:
    """Return the device function ``step_back`` of `StepKind`, of the candidate."""
    columns = row_columns(element, shape)
    compute_type, slots = element.compute_type, columns.slots
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    of = _product_norm(spec, CANDIDATE)
    read_products, normalize = (
        make(of, element, shape) for make in (make_read_products, make_normalize_again)
    )
    candidate_of = _make_candidate(spec, element, shape)
    zoned, one = spec.zoneout, constant(element, 1.0)
    state_gradient = make_state_gradient(element, shape, zoneout=zoned, past_every_step=True)
    gradient = device(gru_update_gradient)
    norm_backward = make_gate_norm_backward(of.norm, element, shape, of.parts, of.gates, sums_of)
    two, numbers = 2 * slots, 2 * NUMBERS

    @device
    def step_back(saved, weights, incoming, results, span, later, ada, coefficients, smem):
        values = cuda.local.array(two, compute_type)
        stats = cuda.local.array(numbers, compute_type)
        candidate = cuda.local.array(slots, compute_type)
        keep = cuda.local.array(slots, compute_type)
        before = cuda.local.array(slots, compute_type)
        grad = cuda.local.array(slots, compute_type)
        bypass = cuda.local.array(slots, compute_type)
        row, width, at, limit = span
        first = row * width
        read_products(saved, span, values)
        normalize(saved.table, span, values, stats)
        candidate_of(values, weights, ada, at, width, candidate)
        read(saved.cell, first, at, width, keep)
        read(saved.before, first, at, width, before)
        state_gradient(incoming, span, later, grad, bypass)
        for k in range(slots):
            dz, dcandidate, dbefore = gradient(grad[k], before[k], keep[k], candidate[k], one)
            keep[k], candidate[k] = dz, dcandidate
            grad[k] = dbefore + bypass[k] if zoned else dbefore
        write(incoming.dh, first, at, limit, grad)
        write(results.other, first, at, limit, keep)
        write(results.gates, first, at, limit, candidate)
        norm_backward(
            candidate, values, stats, weights[1:], ada, coefficients.gates, smem[0], results.dz,
            results.dxp, row, width, at, limit,
        )  # fmt: skip

    return step_back


def _make_gates_back(spec: GRUSpec, element: ElementType, shape: RowShape, sums_of: SumsOf) -> Any:
    """Return the device function ``step_back`` of `StepKind`, of the gates."""
    columns = row_columns(element, shape)
    compute_type, slots = element.compute_type, columns.slots
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    of = _product_norm(spec, GATES)
    read_products, normalize = (
        make(of, element, shape) for make in (make_read_products, make_normalize_again)
    )
    gate_pair = make_gate_pair(spec, element, shape)
    one, gradient = constant(element, 1.0), device(gru_reset_gradient)
    norm_backward = make_gate_norm_backward(of.norm, element, shape, of.parts, of.gates, sums_of)
    two, four, numbers = 2 * slots, 4 * slots, 2 * NUMBERS

    @device
    def step_back(saved, weights, incoming, results, span, later, ada, coefficients, smem):
        values = cuda.local.array(four, compute_type)
        stats = cuda.local.array(numbers, compute_type)
        gates = cuda.local.array(two, compute_type)
        state = cuda.local.array(slots, compute_type)
        grad = cuda.local.array(slots, compute_type)
        row, width, at, limit = span
        first = row * width
        read_products(saved, span, values)
        normalize(saved.table, span, values, stats)
        gate_pair(values, weights, ada, at, width, gates)
        read(saved.before, first, at, width, state)
        read(incoming.dy, first, at, width, grad)
        for k in range(slots):
            dr, dstate = gradient(grad[k], state[k], gates[slots + k], one)
            gates[slots + k], grad[k] = dr, dstate
        read(incoming.dh, first, at, width, gates)
        write(incoming.dh, first, at, limit, grad)
        write(results.gates, 2 * first, at, limit, gates)
        write(results.gates, 2 * first + width, at, limit, gates[slots:])
        norm_backward(
            gates, values, stats, weights[1:], ada, coefficients.gates, smem[0], results.dz,
            results.dxp, row, width, at, limit,
        )  # fmt: skip

    return step_back


def _parts(spec: GRUSpec) -> tuple[int, int]:
    return 2, 0


GATES_STEP = StepKind(PairWeights, _parts, _make_gates_step, _make_gates_back)
CANDIDATE_STEP = StepKind(PairWeights, _parts, _make_candidate_step, _make_candidate_back)
_STEPS = GATES_STEP, CANDIDATE_STEP
_forward_kernel = functools.cache(make_cell_forward)
_backward_kernel = functools.cache(make_cell_backward)


# Parameters


def weights(spec: GRUSpec, parameters: Any, ada: tuple[float, float]) -> tuple[Weights, Weights]:
    """Return the parameters of the gates and of the candidate; betas are added to the biases."""
    units = parameters.weight_h.shape[1]
    gates, candidate = (
        _rows_of(parameters, *rows) for rows in ((0, 2 * units), (2 * units, 3 * units))
    )
    bias_h = array_or_none(parameters.bias_h)
    return _weights_of(spec, gates, ada, None), _weights_of(spec, candidate, ada, bias_h)


def _rows_of(parameters: Any, start: int, stop: int) -> Any:
    """Return some rows of all parameters but `bias_h`."""
    rows = {}
    for name, value in parameters._asdict().items():
        if value is not None and name != "bias_h":
            array = value.lib.rows(value.array, start, stop)
            shape = stop - start, *value.shape[1:]
            rows[name] = with_array(value, array, shape=shape)
    return parameters._replace(**rows)


def _weights_of(spec: GRUSpec, given: Any, ada: tuple[float, float], bias_h: Any) -> Weights:
    like = given.weight_h
    size = like.shape[0]
    biases = map(array_or_none, (given.bias, given.beta_x, given.beta_h))
    offset = added_up(like, (size,), *biases)
    others = PairWeights(
        offset if bias_h is None else added_up(like, (size,), offset, bias_h),
        parameter_or(1.0, given.gamma_h, spec.norm, 1, like, size),
        parameter_or(1.0, given.gamma_x, spec.norm, 1, like, size),
    )
    return make_weights(given, others, norm_numbers(spec.norm, ada))


# Passes


class _Saved(NamedTuple):
    """What the backward pass reads; pairs are of the gates and of the candidate.

    Attributes
    ----------
    z, xp : pair of array (rows, 2H) and (rows, H)
        The products with the state, or the state times r, and with x.
    tables : pair of Table
        The statistics.
    keep, reset : array (rows, H)
        1 - z, and the states times r.
    history : array (batch + rows, H)
        The first states and then the states after every step.
    """

    z: Any
    xp: Any
    tables: Any
    keep: Any
    reset: Any
    history: Any


def forward(
    spec: GRUSpec, scaling: Scaling, x: DeviceArray, steps: PackedSteps,
    weights: tuple[Weights, Weights], state: DeviceArray, mask: Any, dropout: Any, save: bool,
) -> tuple[tuple[Any], _Saved | None]:  # fmt: skip
    """Return the history of states, and what the backward pass needs."""
    library = x.lib
    rows, (batch, units) = x.shape[0], state.shape
    history = new_states(x, state, rows)
    if not rows:
        return (history,), None
    xp = [library.matmul(x.array, pair.transposed_x) for pair in weights]
    tables = [new_table(x, rows, _sites(spec)) if save else Table(None, 0) for _ in weights]
    keep, reset = (new(x, (rows if save else batch, units)) for _ in range(2))
    of_gates = xp[0], tables[0].array, keep, reset
    of_candidate = xp[1], tables[1].array, mask, keep, history
    others = *weights[0].others, *weights[1].others
    shape = shape_for(units, x, *of_gates, *of_candidate, *others)
    gates, candidate = (_forward_kernel(step, spec, x.element, shape) for step in _STEPS)
    of_weights = [PairWeights(*addresses(x, pair.others)) for pair in weights]
    ada = AdaNumbers(*weights[0].numbers)
    scalings = [OfNorms(*(scaling_numbers(scaling, n * units),) * 2) for n in (GATES, CANDIDATE)]
    step_of = step_rows(steps, batch)
    start, count, before, after, _ = step_of
    at, blocks = start * save, blocks_of(count, shape)
    x_product, table, one_minus_z, scaled = StepArrays(x, *of_gates).at_rows(start, start, at, at)
    launches_of_gates = StepLaunches(
        gates, x, blocks,
        (
            Products(-1, x_product), of_weights[0],
            StepStates(0, 0, -2, 0, scaled, one_minus_z), StepSaved(0, 0, table),
            count, units, ada, scalings[0],
        ),
    )  # fmt: skip
    x_product, table, mask_h, one_minus_z, h, h_before = StepArrays(
        x, *of_candidate, history
    ).at_rows(start, start, start, at, after, before)
    launches_of_candidate = StepLaunches(
        candidate, x, blocks,
        (
            Products(-1, x_product), of_weights[1],
            StepStates(mask_h, 0, h_before, one_minus_z, h, 0), StepSaved(0, 0, table),
            count, units, ada, scalings[1],
        ),
    )  # fmt: skip
    products = [StepProducts(x, pair.transposed_h, step_of, keep=save) for pair in weights]
    of_dropout = StepDropout(x, dropout, step_of)
    ranges = zip(before.tolist(), at.tolist(), count.tolist(), strict=True)
    for step, (old, new_row, size) in enumerate(ranges):
        operand = of_dropout.of_step(step, library.rows(history, old, old + size))
        launches_of_gates.run(step, products[0].of_step(step, operand), operand)
        operand = library.rows(reset, new_row, new_row + size)
        launches_of_candidate.run(step, products[1].of_step(step, operand))
    if not save:
        return (history,), None
    z = tuple(each.of_all_steps() for each in products)
    return (history,), _Saved(z, xp, tables, keep, reset, history)


def backward(
    spec: GRUSpec, scaling: Scaling, x: DeviceArray, steps: PackedSteps,
    weights: tuple[Weights, Weights], saved: Any, mask: Any, dropout: Any, dy: DeviceArray,
    dstate: DeviceArray,
) -> CellGradients:  # fmt: skip
    """Return all gradients."""
    library, units = x.lib, dstate.shape[1]
    if not x.shape[0]:
        parameters = [
            gradients_without_steps(
                x, pair, units, dict.fromkeys(("bias", "gamma_x", "gamma_h"), gates)
            )
            for pair, gates in zip(weights, (GATES, CANDIDATE), strict=True)
        ]
        return CellGradients(copied(x), (copied(dstate),), _joined(x, parameters))
    operands = operands_before(x, steps, saved.history, dropout)
    results = [_new_results(spec, x, n * units) for n in (GATES, CANDIDATE)]
    grads = dy.array, copied(dstate)
    dh = _run_backward(
        spec, scaling, x, steps, weights, saved, (operands, mask, dropout), grads, results
    )
    parameters = [
        _parameter_sums(spec, x, saved.z[n], saved.xp[n], saved.tables[n], of)
        | weight_gradients(x, (operands, saved.reset)[n], of.dxp, of.dz)
        for n, of in enumerate(results)
    ]
    of_gates, of_candidate = (
        library.matmul(of.dxp, pair.x) for of, pair in zip(results, weights, strict=True)
    )
    dx = added_up(x, x.shape, of_gates, of_candidate)
    return CellGradients(dx, (dh,), _joined(x, parameters))


def _new_results(spec: GRUSpec, x: DeviceArray, width: int) -> Results:
    """Return new arrays for the results of the backward steps, of the gates or of the candidate."""
    shape = x.shape[0], width
    gates = new(x, shape)
    if spec.norm is None:
        return Results(gates, gates, gates, None)
    return Results(new(x, shape), new(x, shape), gates, None)


def _run_backward(
    spec: GRUSpec, scaling: Scaling, x: DeviceArray, steps: PackedSteps,
    weights: tuple[Weights, Weights], saved: _Saved, masked: tuple[Any, Any, Any],
    grads: tuple[Any, Any], results: list[Results],
) -> Any:  # fmt: skip
    """Compute all backward steps, and return the gradient of the first states.

    `masked` are the states times their dropout mask, the mask of zoneout, and that of dropout;
    `grads` the gradients of all outputs and of the last states.
    """
    library, (operands, mask, dropout), (dy, dh) = x.lib, masked, grads
    batch, units = library.shape(dh)
    other = new(x, (batch, units))
    first, second = zip(saved.z, saved.xp, (t.array for t in saved.tables), results, strict=True)
    of_gates = *first[:3], *first[3][:3], operands
    of_candidate = *second[:3], *second[3][:3], saved.keep, dy, mask, saved.history
    others = *weights[0].others, *weights[1].others
    shape = shape_for(units, x, *of_gates, *of_candidate, dh, other, *others)
    gates, candidate = (_backward_kernel(step, spec, x.element, shape) for step in _STEPS)
    of_weights = [PairWeights(*addresses(x, pair.others)) for pair in weights]
    ada = AdaNumbers(*weights[0].numbers)
    coefficients = [
        OfNorms(*(coefficient_numbers(spec.norm, scaling, n * units),) * 2)
        for n in (GATES, CANDIDATE)
    ]
    step_of = step_rows(steps, batch)
    start, count, before, _, later = step_of
    blocks, (dh_at, other_at) = blocks_of(count, shape), addresses(x, (dh, other))
    z, xp, table, dz, dxp, grad, keep, grad_y, mask_h, h_before = StepArrays(
        x, *of_candidate
    ).at_rows(*(start,) * 9, before)
    launches_of_candidate = StepLaunches(
        candidate, x, blocks,
        (
            ReadBack(z, xp, keep, h_before, table), of_weights[1],
            Incoming(grad_y, -1, dh_at, 0, mask_h, 0), Results(dz, dxp, grad, other_at),
            count, later, units, ada, coefficients[1],
        ),
    )  # fmt: skip
    z, xp, table, dz, dxp, grad, operand = StepArrays(x, *of_gates).at_rows(*(start,) * 7)
    launches_of_gates = StepLaunches(
        gates, x, blocks,
        (
            ReadBack(z, xp, 0, operand, table), of_weights[0],
            Incoming(-1, 0, other_at, 0, 0, 0), Results(dz, dxp, grad, 0),
            count, 0, units, ada, coefficients[0],
        ),
    )  # fmt: skip
    products = [StepProducts(x, pair.h, step_of, keep=False) for pair in weights]
    kernel, sizes, total = sums_kernel(x.element), count * units, new(x, (batch, units))
    sums = StepLaunches(
        kernel, x, -(-sizes // kernel.threads), (-1, other_at, 0, *addresses(x, (total,)), sizes)
    )
    of_dropout, product = StepDropout(x, dropout, step_of), None
    for step, (at, stop) in reversed([*enumerate(step_of.ranges)]):
        launches_of_candidate.run(step, product)
        dz = library.rows(results[1].dz, at, stop)
        launches_of_gates.run(step, products[1].of_step(step, dz))
        dz = library.rows(results[0].dz, at, stop)
        sums.run(step, products[0].of_step(step, dz))
        product = of_dropout.of_step(step, library.rows(total, 0, stop - at))
    return added_up(x, (batch, units), product, dh)


def _parameter_sums(
    spec: GRUSpec, x: DeviceArray, z: Any, xp: Any, table: Table, results: Results
) -> dict[str, Any]:
    """Return the gradients of biases and norms, of the gates or of the candidate, by name."""
    if spec.norm is None or spec.norm.parameters == 0:
        return {"bias": column_sums(x, results.gates)[1]}
    gamma_h, bias = column_sums(x, results.gates, z, table, 0)
    gamma_x, _ = column_sums(x, results.gates, xp, table, 1)
    return {"bias": bias, "gamma_h": gamma_h, "gamma_x": gamma_x}


def _joined(x: DeviceArray, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the gradients of all parameters, from those of the gates and of the candidate."""
    gates, candidate = parameters
    joined = {name: x.lib.concatenated([gates[name], candidate[name]]) for name in gates}
    bias = joined["bias"]
    return joined | {"beta_x": bias, "beta_h": bias, "bias_h": candidate["bias"]}
