"""One step of a normalized LSTM for a row, forward and backward.

On the way back the gates are made again of what enters them. What reaches them before their norm,
and what reaches the normalized cell, is stored too: the gradients of the norms' parameters are
sums of those over all steps, which a kernel of its own takes afterwards. To add to them step by
step would take more memory traffic than all the rest of a step.
"""

from typing import Any, NamedTuple

from numnorm.backends.contract.recurrent import LSTMSpec
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import constant, cuda, device, make_tanh
from numnorm.backends.cuda.recurrent.common.cell_norm import (
    CELL,
    NUMBERS,
    SMEM_PER_WARP,
    bias_of,
    gain_of,
    make_cell_statistics,
    make_keep_statistics,
    make_kept_statistics,
    make_normalize,
    smem_for_parts,
)
from numnorm.backends.cuda.recurrent.common.cell_norm_gradient import make_norm_backward
from numnorm.backends.cuda.recurrent.common.gate_norm_gradient import make_gate_norm_backward
from numnorm.backends.cuda.recurrent.common.product_norm import (
    make_normalize_again,
    make_normalize_products,
    make_read_products,
)
from numnorm.backends.cuda.recurrent.common.state_gradient import make_state_gradient
from numnorm.backends.cuda.recurrent.common.step_kernels import StepKind
from numnorm.backends.cuda.recurrent.common.zoneout import make_blend, make_blend_gradient
from numnorm.backends.cuda.recurrent.lstm.gates import (
    GATES,
    gate_parts,
    make_gates,
    product_norm,
    sites,
)
from numnorm.backends.cuda.threads.group_reductions import SumsOf, make_team_sum
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


class LSTMWeights(NamedTuple):
    """The sum of all biases ``(4H,)``, the gammas of both products, and the cell's parameters."""

    offset: Any
    gamma_h: Any
    gamma_x: Any
    gamma_c: Any
    beta_c: Any


# The cell's norm


def _make_apply_norm(spec: LSTMSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``apply_norm(cells, weights, numbers, span, found, gain, normal)``.

    The cells become normalized values by their statistics; `gain` is gamma there, and `normal` the
    norm's result. The weights are gamma and beta.
    """
    columns, compute_type, slots = (
        row_columns(element, shape),
        element.compute_type,
        row_columns(element, shape).slots,
    )
    if spec.cell is None:

        @device
        def plain(cells, weights, numbers, span, found, gain, normal):
            for k in range(slots):
                normal[k] = cells[k]

        return plain
    gain_at = make_column_weight(element, gain_of(spec.cell, element), columns)
    bias_at = make_column_weight(element, bias_of(spec.cell, element), columns)
    apply, normalize = device(spec.cell.formula.forward), make_normalize(element, shape, CELL)

    @device
    def apply_norm(cells, weights, numbers, span, found, gain, normal):
        shift = cuda.local.array(slots, compute_type)
        gain_at(weights[0], numbers[0], 0, span.at, span.width, gain)
        bias_at(weights[1], numbers[1], 0, span.at, span.width, shift)
        normalize(cells, found, span.at, span.width)
        for k in range(slots):
            normal[k] = apply(cells[k], gain[k], shift[k])

    return apply_norm


def _make_find_norm(spec: LSTMSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``find_norm(cells, table, span, scaling, smem, found)``.

    It finds the statistics of a row's cell, and stores them unless the table is 0.
    """
    if spec.cell is None:
        return device(lambda cells, table, span, scaling, smem, found: None)
    formula, compute_type, zero = spec.cell.formula, element.compute_type, constant(element, 0.0)
    statistics, centred = make_cell_statistics(formula, element, shape, CELL), formula.centred
    team_sum, keep = make_team_sum(element, shape.team), make_keep_statistics(element, 1)
    behind, all_places = SMEM_PER_WARP * smem_for_parts(1, shape), sites(spec)

    @device
    def find_norm(cells, table, span, scaling, smem, found):
        origins = cuda.local.array(1, compute_type)
        origins[0] = zero
        if centred:  # the first cell, for all threads
            origins[0] = team_sum(cells[0] if span.at == 0 else zero, smem[behind:])
        statistics(cells, origins, found, span.at, span.width, scaling, smem)
        if span.limit > 0 and table != 0 and span.at == 0:
            keep(table, span.row, all_places, all_places - 1, found)

    return find_norm


def _make_norm_again(spec: LSTMSpec, element: ElementType) -> Any:
    """Return a device function ``norm_again(table, row, found)``: the cell's statistics again."""
    if spec.cell is None:
        return device(lambda table, row, found: None)
    kept, all_places = make_kept_statistics(element, 1), sites(spec)
    return device(lambda table, row, found: kept(table, row, all_places, all_places - 1, found))


# Forward


def make_new_cell(element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``new_cell(gates, before, at, limit, cells)``; 0 from a limit on."""
    columns, cell, zero = row_columns(element, shape), device(lstm_cell), constant(element, 0.0)
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
    """Return a device function that stores a row's new state and cell.

    ``write_states(addresses, row, width, at, limit, gates, cells, before, normal)``: the addresses
    are ``mask_h, mask_c, h_before, h, c, cell``.
    """
    columns, tanh, state = row_columns(element, shape), make_tanh(element), device(lstm_state)
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    slots, zoned, carries = columns.slots, spec.zoneout, spec.carries_normalized
    apart, o = spec.carries_normalized or spec.zoneout, 2 * columns.slots
    blend = make_blend(element, shape, zoneout=spec.zoneout)

    @device
    def write_states(addresses, row, width, at, limit, gates, cells, before, normal):
        mask_h, mask_c, h_before, h, c, cell = addresses
        first = row * width
        if apart and cell != 0:
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
    """Return a device function of a row's step, as `StepKind` has it."""
    columns, compute_type, of = (
        row_columns(element, shape),
        element.compute_type,
        product_norm(spec),
    )
    read, read_products = (
        make_read_columns(element, columns),
        make_read_products(of, element, shape),
    )
    normalize_products, gates_of = (
        make_normalize_products(of, element, shape),
        make_gates(spec, element, shape),
    )
    find_norm, apply_norm = (
        make(spec, element, shape) for make in (_make_find_norm, _make_apply_norm)
    )
    new_cell, write_states = (
        make_new_cell(element, shape),
        make_write_states(spec, element, shape),
    )
    slots, size, all_gates = columns.slots, of.sections * columns.slots, GATES * columns.slots

    @device
    def step(products, weights, states, saved, span, ada, scalings, smem_sizes):
        values = cuda.local.array(size, compute_type)
        gates = cuda.local.array(all_gates, compute_type)
        before = cuda.local.array(slots, compute_type)
        cells = cuda.local.array(slots, compute_type)
        xhat = cuda.local.array(slots, compute_type)
        gain = cuda.local.array(slots, compute_type)
        normal = cuda.local.array(slots, compute_type)
        found = cuda.local.array(NUMBERS, compute_type)
        row, width, at, limit = span
        read_products(products, span, values)
        normalize_products(products, saved, span, values, scalings.gates, smem_sizes[0])
        gates_of(values, weights[:3], ada, at, width, width, gates)
        read(states.c_before, row * width, at, width, before)
        new_cell(gates, before, at, width, cells)
        find_norm(cells, saved.table, span, scalings.other, smem_sizes[1], found)
        for k in range(slots):
            xhat[k] = cells[k]
        apply_norm(xhat, weights[3:], ada, span, found, gain, normal)
        addresses = (
            states.mask_h, states.mask_c, states.h_before, states.h, states.c, saved.cell,
        )  # fmt: skip
        write_states(addresses, row, width, at, limit, gates, cells, before, normal)

    return step


# Backward


def _make_cell_gradient(
    spec: LSTMSpec, element: ElementType, shape: RowShape, sums_of: SumsOf
) -> Any:
    """Return a device function of what reaches the cell before its norm.

    ``cell_gradient(saved, weights, dn, span, ada, flow, smem, gates, grad, passes)``: the gradient
    of the state becomes that of the cell, and o in the gates its gradient. The weights are gamma
    and beta, and `passes` is what of dc reaches the new cell.
    """
    columns, compute_type, tanh = (
        row_columns(element, shape),
        element.compute_type,
        make_tanh(element),
    )
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    slots, o, one = columns.slots, 2 * columns.slots, constant(element, 1.0)
    carries, gradient = spec.carries_normalized, device(lstm_state_gradient)
    norm_backward = make_norm_backward(spec.cell, element, shape, sums_of)
    norm_again = _make_norm_again(spec, element)
    apply_norm = _make_apply_norm(spec, element, shape)
    stored = spec.cell is not None and spec.cell.parameters > 0

    @device
    def cell_gradient(saved, weights, dn, span, ada, flow, smem, gates, grad, passes):
        xhat = cuda.local.array(slots, compute_type)
        found = cuda.local.array(NUMBERS, compute_type)
        gain = cuda.local.array(slots, compute_type)
        normal = cuda.local.array(slots, compute_type)
        row, width, at, limit = span
        read(saved.cell, row * width, at, width, xhat)
        norm_again(saved.table, row, found)
        apply_norm(xhat, weights, ada, span, found, gain, normal)
        for k in range(slots):
            grad[k], gates[o + k] = gradient(grad[k], gates[o + k], tanh(normal[k]), one)
            if carries:
                grad[k] += passes[k]
        if stored:
            write(dn, row * width, at, limit, grad)
        norm_backward(grad, at, width, xhat, gain, ada, found, flow, smem)
        for k in range(slots):
            if not carries:
                grad[k] += passes[k]

    return cell_gradient


def _make_gate_gradients(spec: LSTMSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function of what reaches the gates, and the cell before.

    ``gate_gradients(before, dc, span, gates, grad, kept)``: f, i and g become their gradients; dc
    that of the cell before, with what was `kept` of it.
    """
    columns, compute_type, one = (
        row_columns(element, shape),
        element.compute_type,
        constant(element, 1.0),
    )
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    slots, zoned, gradient = columns.slots, spec.zoneout, device(lstm_cell_gradient)

    @device
    def gate_gradients(before, dc, span, gates, grad, kept):
        cell = cuda.local.array(slots, compute_type)
        row, width, at, limit = span
        read(before, row * width, at, width, cell)
        for k in range(slots):
            f, i, g = gates[k], gates[slots + k], gates[3 * slots + k]
            df, di, dg, past = gradient(grad[k], cell[k], f, i, g, one)
            gates[k], gates[slots + k], gates[3 * slots + k] = df, di, dg
            grad[k] = past + kept[k] if zoned else past
        write(dc, row * width, at, limit, grad)

    return gate_gradients


def make_step_back(spec: LSTMSpec, element: ElementType, shape: RowShape, sums_of: SumsOf) -> Any:
    """Return a device function of a row's step back, as `StepKind` has it."""
    columns, compute_type, of = (
        row_columns(element, shape),
        element.compute_type,
        product_norm(spec),
    )
    slots, all_gates, size = columns.slots, GATES * columns.slots, of.sections * columns.slots
    read, write = make_read_columns(element, columns), make_write_columns(element, columns)
    read_products = make_read_products(of, element, shape, summed=True)
    normalize_again = make_normalize_again(of, element, shape)
    gates_of, gate_gradients = (
        make(spec, element, shape) for make in (make_gates, _make_gate_gradients)
    )
    zoned, numbers = spec.zoneout, max(1, of.parts.count * NUMBERS)
    state_gradient = make_state_gradient(element, shape, zoneout=zoned, past_every_step=zoned)
    blend_gradient = make_blend_gradient(element, shape, zoneout=zoned)
    cell_gradient = _make_cell_gradient(spec, element, shape, sums_of)
    norm_backward = make_gate_norm_backward(of.norm, element, shape, of.parts, of.gates, sums_of)

    @device
    def step_back(saved, weights, incoming, results, span, later, ada, coefficients, smem_sizes):
        values = cuda.local.array(size, compute_type)
        gates = cuda.local.array(all_gates, compute_type)
        found = cuda.local.array(numbers, compute_type)
        grad = cuda.local.array(slots, compute_type)
        passes = cuda.local.array(slots, compute_type)
        kept = cuda.local.array(slots, compute_type)
        row, width, at, limit = span
        read_products(saved, span, values)
        normalize_again(saved.table, span, values, found)
        gates_of(values, weights[:3], ada, at, width, width, gates)
        state_gradient(incoming, span, later, grad, kept)
        if zoned:
            write(incoming.dh, row * width, at, limit, kept)
        read(incoming.dc, row * width, at, width, passes)
        blend_gradient(incoming.mask_c, span, passes, kept)
        cell_gradient(
            saved,
            weights[3:],
            results.other,
            span,
            ada,
            coefficients.other,
            smem_sizes[1],
            gates,
            grad,
            passes,
        )
        gate_gradients(saved.before, incoming.dc, span, gates, grad, kept)
        for gate in range(GATES):
            first = (row * GATES + gate) * width
            write(results.gates, first, at, limit, gates[gate * slots :])
        norm_backward(
            gates, values, found, weights[1:3], ada, coefficients.gates, smem_sizes[0], results.dz, results.dxp,
            row, width, at, limit,
        )  # fmt: skip

    return step_back


STEP = StepKind(LSTMWeights, lambda spec: (gate_parts(spec).count, 1), make_step, make_step_back)
