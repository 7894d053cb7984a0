"""LSTM on a device: the gates f, i, o and g, a step for one row, and the parameters.

The backward step recomputes the gates from the products. It stores the gradients of the norms'
results, which another kernel sums over all steps for the gradients of the norms' parameters:
updating those sums in every step would be more memory traffic than all the rest of a step.
"""

from typing import Any, NamedTuple

from numnorm.backends.contract.recurrent import LSTMSpec
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import constant, cuda, device, make_tanh
from numnorm.backends.cuda.recurrent.cell_kind import CellKind, Saved, SpecFacts
from numnorm.backends.cuda.recurrent.cell_norm import (
    CELL,
    NUMBERS,
    SMEM_PER_WARP,
    Parts,
    bias_of,
    gain_of,
    make_cell_statistics,
    make_load_statistics,
    make_norm_backward,
    make_normalize,
    make_store_statistics,
    smem_for_parts,
)
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
    make_gate_norm_backward,
    make_normalize_again,
    make_normalize_products,
    make_read_products,
)
from numnorm.backends.cuda.recurrent.states import (
    make_blend,
    make_blend_gradient,
    make_sigmoid,
    make_state_gradient,
)
from numnorm.backends.cuda.recurrent.step_kernels import Results, StepKind
from numnorm.backends.cuda.threads.reductions import SumsOf, make_team_sum
from numnorm.backends.cuda.threads.row_columns import (
    make_column_weight,
    make_read_columns,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape
from numnorm.backends.formulas.cells import (
    lstm_cell,
    lstm_cell_gradient,
    lstm_state,
    lstm_state_gradient,
)

# Gates

GATES = 4


def gate_parts(spec: LSTMSpec) -> Parts:
    """Return the parts of a row's products that are normalized; none if the gates have no norm."""
    if spec.gates is None:
        return Parts(0, GATES)
    return Parts(GATES, 1) if spec.separate else Parts(2, GATES)


def sites(spec: LSTMSpec) -> int:
    """Return the number of sites in a row of the table; the cell's site is the last."""
    return gate_parts(spec).count + (spec.cell is not None)


def product_norm(spec: LSTMSpec) -> ProductNorm:
    """Return the norm of the products."""
    gates = GateRange(GATES, 0, GATES)
    return ProductNorm(spec.gates, gate_parts(spec), gates, spec.norm_each_product, sites(spec))


def normalized_units(spec: LSTMSpec, units: int) -> int:
    """Return the number of elements that the gates' norm normalizes as one row."""
    return units if spec.separate else GATES * units


def make_gates(spec: LSTMSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``gates_of(values, weights, numbers, at, width, limit, gates)``.

    It computes the gates f, i, o and g from the normalized products `values`. `weights` has the
    addresses ``offset, gamma_h, gamma_x``, and `numbers` is `AdaNumbers`.
    """
    columns = row_columns(element, shape)
    zero = constant(element, 0.0)
    slots = columns.slots
    compute_type = element.compute_type
    norm_each_product = spec.norm_each_product
    offset_of = make_column_weight(element, element, columns)
    add = make_add_normalized(spec.gates, element, shape)
    sigmoid = make_sigmoid(element)
    tanh = make_tanh(element)

    @device
    def gates_of(values, weights, numbers, at, width, limit, gates):
        offset, gamma_h, gamma_x = weights
        total = cuda.local.array(slots, compute_type)
        for gate in range(GATES):
            first = gate * width
            offset_of(offset, zero, first, at, limit, total)
            add(values[gate * slots :], gamma_h, numbers, first, at, limit, total)
            if norm_each_product:
                from_x = values[(GATES + gate) * slots :]
                add(from_x, gamma_x, numbers, first, at, limit, total)
            for k in range(slots):
                gates[gate * slots + k] = tanh(total[k]) if gate == 3 else sigmoid(total[k])

    return gates_of


# A step


class LSTMWeights(NamedTuple):
    """The biases and the parameters of the norms of an LSTM, as addresses. Read.

    Attributes
    ----------
    offset : (4H,)
        The sum of all biases.
    gamma_h, gamma_x : (4H,)
        For the product with the state or the sum of both products, and for the product with x.
    gamma_c, beta_c : (H,)
        For the cell.
    """

    offset: Any
    gamma_h: Any
    gamma_x: Any
    gamma_c: Any
    beta_c: Any


# The cell's norm


def make_apply_norm(spec: LSTMSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``apply_norm(cells, weights, numbers, span, stats, gain, normal)``.

    It normalizes the cells in place by their statistics, loads gamma into `gain`, and stores the
    norm's result in `normal`. `weights` has the addresses of gamma and beta, and `numbers` is
    `AdaNumbers`. Without a norm it copies the cells to `normal`.
    """
    columns = row_columns(element, shape)
    compute_type = element.compute_type
    slots = columns.slots
    if spec.cell is None:

        @device
        def plain(cells, weights, numbers, span, stats, gain, normal):
            for k in range(slots):
                normal[k] = cells[k]

        return plain
    gain_at = make_column_weight(element, gain_of(spec.cell, element), columns)
    bias_at = make_column_weight(element, bias_of(spec.cell, element), columns)
    apply = device(spec.cell.formula.forward)
    normalize = make_normalize(element, shape, CELL)

    @device
    def apply_norm(cells, weights, numbers, span, stats, gain, normal):
        bias = cuda.local.array(slots, compute_type)
        gain_at(weights[0], numbers[0], 0, span.at, span.width, gain)
        bias_at(weights[1], numbers[1], 0, span.at, span.width, bias)
        normalize(cells, stats, span.at, span.width)
        for k in range(slots):
            normal[k] = apply(cells[k], gain[k], bias[k])

    return apply_norm


def _make_compute_statistics(spec: LSTMSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``compute_statistics(cells, table, span, scaling, smem, stats)``.

    It computes the statistics of a row's cells, and stores them in the table unless its address is
    0 (no table).
    """
    if spec.cell is None:
        return device(lambda cells, table, span, scaling, smem, stats: None)
    formula = spec.cell.formula
    compute_type = element.compute_type
    zero = constant(element, 0.0)
    statistics = make_cell_statistics(formula, element, shape, CELL)
    centred = formula.centred
    store_statistics = make_store_statistics(element, 1)
    team_sum = make_team_sum(shape.team)
    offset = SMEM_PER_WARP * smem_for_parts(1, shape)
    all_sites = sites(spec)

    @device
    def compute_statistics(cells, table, span, scaling, smem, stats):
        pivots = cuda.local.array(1, compute_type)
        pivots[0] = zero
        if centred:  # broadcast the row's first cell
            pivots[0] = team_sum(cells[0] if span.at == 0 else zero, smem[offset:])
        statistics(cells, pivots, stats, span.at, span.width, scaling, smem)
        if span.limit > 0 and table != 0 and span.at == 0:
            store_statistics(table, span.row, all_sites, all_sites - 1, stats)

    return compute_statistics


def _make_load_statistics(spec: LSTMSpec, element: ElementType) -> Any:
    """Return a device function ``load_statistics(table, row, stats)`` of the cell's statistics."""
    if spec.cell is None:
        return device(lambda table, row, stats: None)
    load = make_load_statistics(element, 1)
    all_sites = sites(spec)
    return device(lambda table, row, stats: load(table, row, all_sites, all_sites - 1, stats))


# Forward


def make_new_cell(element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``new_cell(gates, before, at, limit, cells)``.

    It computes the new cells, before their norm, from the gates and the cells before. Units from
    `limit` on become 0.
    """
    columns = row_columns(element, shape)
    cell = device(lstm_cell)
    zero = constant(element, 0.0)
    lanes, vectors, stride, slots = columns.lanes, columns.vectors, columns.stride, columns.slots

    @device
    def new_cell(gates, before, at, limit, cells):
        for p in range(vectors):
            inside = at + p * stride < limit
            for j in range(lanes):
                k = p * lanes + j
                new = cell(gates[k], gates[slots + k], gates[3 * slots + k], before[k])
                cells[k] = new if inside else zero

    return new_cell


def make_write_states(spec: LSTMSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function that computes and stores a row's new state and cell.

    ``write_states(addresses, row, width, at, limit, gates, cells, before, normal)``: `addresses`
    are ``mask_h, mask_c, h_before, h, c, cell``, where `cell` is for the cells before their norm
    (0: no array). The arrays of the thread's units are the gates, the new cells, the cells before
    and the normalized cells; `cells` and `normal` become the cells and states that the next step
    gets.
    """
    columns = row_columns(element, shape)
    tanh = make_tanh(element)
    state = device(lstm_state)
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    slots = columns.slots
    zoned, carries = spec.zoneout, spec.carries_normalized
    is_cell_apart = spec.carries_normalized or spec.zoneout
    o = 2 * columns.slots
    blend = make_blend(element, shape, zoneout=spec.zoneout)

    @device
    def write_states(addresses, row, width, at, limit, gates, cells, before, normal):
        mask_h, mask_c, h_before, h, c, cell = addresses
        first = row * width
        if is_cell_apart and cell != 0:
            write(cell, first, at, limit, cells)
        for k in range(slots):
            cells[k] = normal[k] if carries else cells[k]
            normal[k] = state(gates[o + k], tanh(normal[k]))
        blend(mask_c, first, at, limit, cells, before)
        if zoned:
            read(h_before, first, at, width, before)
        blend(mask_h, first, at, limit, normal, before)
        write(c, first, at, limit, cells)
        write(h, first, at, limit, normal)

    return write_states


def make_step(spec: LSTMSpec, element: ElementType, shape: RowShape) -> Any:
    """Return the device function ``step`` of `StepKind`."""
    columns = row_columns(element, shape)
    of = product_norm(spec)
    compute_type = element.compute_type
    read = make_read_columns(element, columns)
    read_products, normalize_products = (
        make(of, element, shape) for make in (make_read_products, make_normalize_products)
    )
    gates_of, compute_statistics, apply_norm, write_states = (
        make(spec, element, shape)
        for make in (make_gates, _make_compute_statistics, make_apply_norm, make_write_states)
    )
    new_cell = make_new_cell(element, shape)
    slots = columns.slots
    size, all_gates = of.sections * slots, GATES * slots

    @device
    def step(products, weights, states, saved, span, ada, scalings, smem):
        values = cuda.local.array(size, compute_type)
        gates = cuda.local.array(all_gates, compute_type)
        before = cuda.local.array(slots, compute_type)
        cells = cuda.local.array(slots, compute_type)
        xhat = cuda.local.array(slots, compute_type)
        gain = cuda.local.array(slots, compute_type)
        normal = cuda.local.array(slots, compute_type)
        stats = cuda.local.array(NUMBERS, compute_type)
        row, width, at, limit = span
        read_products(products, span, values)
        normalize_products(products, saved, span, values, scalings.gates, smem[0])
        gates_of(values, weights[:3], ada, at, width, width, gates)
        read(states.c_before, row * width, at, width, before)
        new_cell(gates, before, at, width, cells)
        compute_statistics(cells, saved.table, span, scalings.other, smem[1], stats)
        for k in range(slots):
            xhat[k] = cells[k]
        apply_norm(xhat, weights[3:], ada, span, stats, gain, normal)
        addresses = (
            states.mask_h, states.mask_c, states.h_before, states.h, states.c, saved.cell,
        )  # fmt: skip
        write_states(addresses, row, width, at, limit, gates, cells, before, normal)

    return step


# Backward


def _make_cell_gradient(
    spec: LSTMSpec, element: ElementType, shape: RowShape, sums_of: SumsOf
) -> Any:
    """Return a device function of the gradients of the cell before its norm, and of the gate o.

    ``cell_gradient(saved, weights, dn, span, ada, coefficients, smem, gates, grad, dcell)``:
    `saved` is `ReadBack`, `weights` has the addresses of gamma and beta, `dn` is the address for
    the gradients of the norm's result, and `coefficients` the gradient's. `grad`, the gradient of
    the new state, becomes that of the cell before its norm; o in `gates` becomes its gradient.
    `dcell` is the gradient of the cell that the next step gets.
    """
    columns = row_columns(element, shape)
    compute_type = element.compute_type
    tanh = make_tanh(element)
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    slots = columns.slots
    o = 2 * columns.slots
    one = constant(element, 1.0)
    carries = spec.carries_normalized
    gradient = device(lstm_state_gradient)
    norm_backward = make_norm_backward(spec.cell, element, shape, sums_of)
    load_statistics = _make_load_statistics(spec, element)
    apply_norm = make_apply_norm(spec, element, shape)
    has_gamma = spec.cell is not None and spec.cell.parameters > 0

    @device
    def cell_gradient(saved, weights, dn, span, ada, coefficients, smem, gates, grad, dcell):
        xhat = cuda.local.array(slots, compute_type)
        stats = cuda.local.array(NUMBERS, compute_type)
        gain = cuda.local.array(slots, compute_type)
        normal = cuda.local.array(slots, compute_type)
        row, width, at, limit = span
        read(saved.cell, row * width, at, width, xhat)
        load_statistics(saved.table, row, stats)
        apply_norm(xhat, weights, ada, span, stats, gain, normal)
        for k in range(slots):
            grad[k], gates[o + k] = gradient(grad[k], gates[o + k], tanh(normal[k]), one)
            if carries:
                grad[k] += dcell[k]
        if has_gamma:
            write(dn, row * width, at, limit, grad)
        norm_backward(grad, at, width, xhat, gain, ada, stats, coefficients, smem)
        for k in range(slots):
            if not carries:
                grad[k] += dcell[k]

    return cell_gradient


def _make_gate_gradients(spec: LSTMSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``gate_gradients(before, dc, span, gates, grad, bypass)``.

    f, i and g in `gates` become their gradients. `before` and `dc` are addresses; dc gets the
    gradient of the cell before, with `bypass` added. `grad` is the gradient of the new cell.
    """
    columns = row_columns(element, shape)
    one = constant(element, 1.0)
    compute_type = element.compute_type
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    slots = columns.slots
    zoned = spec.zoneout
    gradient = device(lstm_cell_gradient)

    @device
    def gate_gradients(before, dc, span, gates, grad, bypass):
        cell = cuda.local.array(slots, compute_type)
        row, width, at, limit = span
        read(before, row * width, at, width, cell)
        for k in range(slots):
            f, i, g = gates[k], gates[slots + k], gates[3 * slots + k]
            df, di, dg, dbefore = gradient(grad[k], cell[k], f, i, g, one)
            gates[k], gates[slots + k], gates[3 * slots + k] = df, di, dg
            grad[k] = dbefore + bypass[k] if zoned else dbefore
        write(dc, row * width, at, limit, grad)

    return gate_gradients


def _make_output_gradient(spec: LSTMSpec, element: ElementType, shape: RowShape) -> Any:
    """Return `make_state_gradient`; with projections, the gradient of the outputs is all in dy."""
    if not spec.projected:
        zoned = spec.zoneout
        return make_state_gradient(element, shape, zoneout=zoned, past_every_step=zoned)
    read = make_read_columns(element, row_columns(element, shape))

    @device
    def output_gradient(incoming, span, later, grad, bypass):
        read(incoming.dy, span.row * span.width, span.at, span.width, grad)

    return output_gradient


def make_step_back(spec: LSTMSpec, element: ElementType, shape: RowShape, sums_of: SumsOf) -> Any:
    """Return the device function ``step_back`` of `StepKind`."""
    columns = row_columns(element, shape)
    of = product_norm(spec)
    compute_type = element.compute_type
    slots = columns.slots
    all_gates, size = GATES * columns.slots, of.sections * columns.slots
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    read_products = make_read_products(of, element, shape, summed=True)
    normalize_again = make_normalize_again(of, element, shape)
    gates_of, gate_gradients, output_gradient = (
        make(spec, element, shape)
        for make in (make_gates, _make_gate_gradients, _make_output_gradient)
    )
    zoned = spec.zoneout
    numbers = max(1, of.parts.count * NUMBERS)
    blend_gradient = make_blend_gradient(element, shape, zoneout=zoned)
    cell_gradient = _make_cell_gradient(spec, element, shape, sums_of)
    norm_backward = make_gate_norm_backward(of.norm, element, shape, of.parts, of.gates, sums_of)

    @device
    def step_back(saved, weights, incoming, results, span, later, ada, coefficients, smem):
        values = cuda.local.array(size, compute_type)
        gates = cuda.local.array(all_gates, compute_type)
        stats = cuda.local.array(numbers, compute_type)
        grad = cuda.local.array(slots, compute_type)
        dcell = cuda.local.array(slots, compute_type)
        bypass = cuda.local.array(slots, compute_type)
        row, width, at, limit = span
        read_products(saved, span, values)
        normalize_again(saved.table, span, values, stats)
        gates_of(values, weights[:3], ada, at, width, width, gates)
        output_gradient(incoming, span, later, grad, bypass)
        if zoned:
            write(incoming.dh, row * width, at, limit, bypass)
        read(incoming.dc, row * width, at, width, dcell)
        blend_gradient(incoming.mask_c, span, dcell, bypass)
        cell_gradient(
            saved, weights[3:], results.other, span, ada, coefficients.other, smem[1], gates, grad,
            dcell,
        )  # fmt: skip
        gate_gradients(saved.before, incoming.dc, span, gates, grad, bypass)
        for gate in range(GATES):
            first = (row * GATES + gate) * width
            write(results.gates, first, at, limit, gates[gate * slots :])
        norm_backward(
            gates, values, stats, weights[1:3], ada, coefficients.gates, smem[0], results.dz,
            results.dxp, row, width, at, limit,
        )  # fmt: skip

    return step_back


STEP = StepKind(LSTMWeights, lambda spec: (gate_parts(spec).count, 1), make_step, make_step_back)


# Parameters

# The numbers for each unit of the parameters other than the weight matrices.
SIZES = dict.fromkeys(("bias", "beta_x", "beta_h", "gamma_x", "gamma_h"), GATES) | dict.fromkeys(
    ("gamma_c", "beta_c"), 1
)


def weights(spec: LSTMSpec, parameters: Any, ada: tuple[float, float]) -> Weights:
    """Return the parameters of an LSTM; the betas of the products are added to the bias."""
    like = parameters.weight_h
    four = like.shape[0]
    units = four // GATES
    norm_x = spec.gates if spec.norm_each_product else None
    biases = map(array_or_none, (parameters.bias, parameters.beta_x, parameters.beta_h))
    others = LSTMWeights(
        added_up(like, (four,), *biases),
        parameter_or(1.0, parameters.gamma_h, spec.gates, 1, like, four),
        parameter_or(1.0, parameters.gamma_x, norm_x, 1, like, four),
        parameter_or(1.0, parameters.gamma_c, spec.cell, 1, like, units),
        parameter_or(0.0, parameters.beta_c, spec.cell, 2, like, units),
    )
    return make_weights(parameters, others, norm_numbers(spec.cell or spec.gates, ada))


def _facts(spec: LSTMSpec) -> SpecFacts:
    return SpecFacts(
        norms=(spec.gates, spec.cell),
        norm_each_product=spec.norm_each_product,
        normalized=normalized_units(spec, 1),
        sites=sites(spec),
        is_cell_apart=spec.carries_normalized or spec.zoneout,
        other_sections=int(spec.cell is not None and spec.cell.parameters > 0),
    )


def _parameter_sums(
    spec: LSTMSpec, x: DeviceArray, saved: Saved, results: Results
) -> dict[str, Any]:
    """Return the gradients of biases and norms, by name."""
    grads = {}
    table = saved.table
    units = x.lib.shape(saved.history[1])[1]
    has_gamma = spec.gates is not None and spec.gates.parameters > 0
    if has_gamma:
        grads["gamma_h"], offset = column_sums(
            x, results.gates, saved.z, table, 0, normalized_units(spec, units)
        )
    else:
        _, offset = column_sums(x, results.gates)
    if has_gamma and spec.norm_each_product:
        grads["gamma_x"], _ = column_sums(x, results.gates, saved.xp, table, 1)
    if results.other is not None:
        grads["gamma_c"], grads["beta_c"] = column_sums(
            x, results.other, saved.cell, table, gate_parts(spec).count
        )
    return grads | {"bias": offset, "beta_x": offset, "beta_h": offset}


KIND = CellKind(STEP, GATES, SIZES, _facts, _parameter_sums)
