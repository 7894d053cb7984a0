"""All steps of a normalized LSTM in one kernel, and back in another."""

from typing import Any, NamedTuple

from numnorm.backends.contract.recurrent import LSTMForm
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import Kernel, constant, cuda, device
from numnorm.backends.cuda.recurrent.common.cell_norm import (
    CELL,
    NUMBERS,
    Parts,
    bias_of,
    gain_of,
    make_keep_statistics,
    make_kept_statistics,
    make_normalize,
    normalized,
)
from numnorm.backends.cuda.recurrent.lstm.backward_kernel import make_step_back
from numnorm.backends.cuda.recurrent.lstm.forward_kernel import make_write_states
from numnorm.backends.cuda.recurrent.lstm.gates import GATES, gate_parts, make_gates, places
from numnorm.backends.cuda.recurrent.persistent.backward_kernel import make_backward
from numnorm.backends.cuda.recurrent.persistent.forward_kernel import make_forward
from numnorm.backends.cuda.recurrent.persistent.grid_statistics import make_exchange
from numnorm.backends.cuda.recurrent.persistent.grid_sums import slice_sums_of
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.threads.row_columns import (
    make_column_weight,
    make_write_columns,
    row_columns,
)
from numnorm.backends.formulas.cells import lstm_cell


class LSTMParameters(NamedTuple):
    """The offset of the gates, and the parameters of the norms."""

    offset: Any
    gamma_h: Any
    gamma_x: Any
    gamma_c: Any
    beta_c: Any


class LSTMArrays(NamedTuple):
    """The arrays of the forward pass, 0 for what is not to be saved.

    Attributes
    ----------
    keep_h, keep_c : (rows, H)
        What zoneout keeps.
    carried : (batch + rows, H)
        The cells, those given first; or ``(batch, H)``, which become the last ones.
    products : (rows, 4H)
        As the backward pass reads them: with the state, or the sums of both products.
    cell : (rows, H)
        Before its norm.
    statistics : (rows, places, NUMBERS)
        Another kernel writes those of the products with x before.
    """

    keep_h: Any
    keep_c: Any
    carried: Any
    products: Any
    cell: Any
    statistics: Any


class LSTMBackwardArrays(NamedTuple):
    """The arrays of the backward pass, in the order of the kernel of one step."""

    z: Any
    xp: Any
    cell: Any
    carried: Any
    table: Any
    keep_h: Any
    keep_c: Any
    dy: Any
    dh: Any
    dc: Any
    dxp: Any
    grad: Any
    dn: Any


def slice_parts(form: LSTMForm) -> Parts:
    """Return what of a slice is normalized in each step: not the products with x."""
    return Parts(1, GATES) if form.by_product else gate_parts(form)


def slice_places(form: LSTMForm) -> int:
    """Return how many parts of a row have statistics of slices, the cell last."""
    return slice_parts(form).count + (form.cell is not None)


def slice_sums(form: LSTMForm) -> tuple[int, int]:
    """Return how many sums of a row have shares of slices: those of its cell, of its gates."""
    return 2 * (form.cell is not None), 2 * gate_parts(form).count


def _make_enter(form: LSTMForm, element: Element, shape: SliceShape) -> Any:
    """Return a device function of what enters a thread's gates.

    ``enter(products, values, place, rows, tables, scaling)``: the products with the state and,
    behind them, those with x become what enters the gates. The tables are ``slices, statistics``;
    the first products, if they are to be saved, go to an array.
    """
    by_product = form.by_product
    write = make_write_columns(element, row_columns(element, shape.of_units))

    @device
    def save(products, values, place, rows):
        if not by_product:
            for gate in range(GATES):
                values[gate] += values[GATES + gate]
        if products != 0:
            for gate in range(GATES):
                first = (rows.xrow * GATES + gate) * place.width
                write(products, first, place.column, place.limit, values[gate:])

    if form.gates is None:

        @device
        def plain(products, values, place, rows, tables, scaling):
            save(products, values, place, rows)

        return plain
    parts, all_places, working = gate_parts(form), places(form), element.working
    of_slices, count = slice_parts(form), gate_parts(form).count * NUMBERS
    exchange = make_exchange(form.gates.formula, element, shape, of_slices)
    keep = make_keep_statistics(element, of_slices.count)
    kept = make_kept_statistics(element, parts.count - of_slices.count)
    normalize = make_normalize(element, shape.of_units, parts)
    others = of_slices.count

    @device
    def enter(products, values, place, rows, tables, scaling):
        found = cuda.local.array(count, working)
        slices, statistics = tables
        active = place.limit > 0
        save(products, values, place, rows)
        if by_product:
            kept(statistics, rows.xrow, all_places, others, found[others * NUMBERS :])
        exchange(values, place.sliced, 0, active, slices, rows.row, rows.batch, scaling, found)
        if active and place.column == 0:
            keep(statistics, rows.xrow, all_places, 0, found)
        normalize(values, found, place.column, place.limit)

    return enter


def _make_cell_of(form: LSTMForm, element: Element, shape: SliceShape) -> Any:
    """Return a device function of a thread's cell, normalized.

    ``cell_of(cells, weights, numbers, place, rows, tables, scaling, normal)``: the weights are
    ``gamma, beta``.
    """
    if form.cell is None:

        @device
        def plain(cells, weights, numbers, place, rows, tables, scaling, normal):
            normal[0] = cells[0]

        return plain
    columns = row_columns(element, shape.of_units)
    gain = make_column_weight(element, gain_of(form.cell, element), columns)
    bias = make_column_weight(element, bias_of(form.cell, element), columns)
    exchange = make_exchange(form.cell.formula, element, shape, CELL)
    keep, all_places = make_keep_statistics(element, 1), places(form)
    apply, last = device(form.cell.formula.forward), slice_places(form) - 1
    working = element.working

    @device
    def cell_of(cells, weights, numbers, place, rows, tables, scaling, normal):
        found = cuda.local.array(NUMBERS, working)
        weight = cuda.local.array(1, working)
        shift = cuda.local.array(1, working)
        slices, statistics = tables
        active, column, width = place.limit > 0, place.column, place.width
        exchange(cells, place.sliced, last, active, slices, rows.row, rows.batch, scaling, found)
        if active and column == 0:
            keep(statistics, rows.xrow, all_places, all_places - 1, found)
        gain(weights[0], numbers[0], 0, column, width, weight)
        bias(weights[1], numbers[1], 0, column, width, shift)
        normal[0] = apply(normalized(cells[0], found, 0), weight[0], shift[0])

    return cell_of


def make_lstm_forward(form: LSTMForm, element: Element, shape: SliceShape) -> Kernel:
    """Return the kernel of all steps of an LSTM."""
    enter, cell_of = (make(form, element, shape) for make in (_make_enter, _make_cell_of))
    gates_of = make_gates(form, element, shape.of_units)
    write_states = make_write_states(form, element, shape.of_units)
    working, size, zero = element.working, element.itemsize, constant(element, 0.0)
    new_cell = device(lstm_cell)

    @device
    def take_step(values, before, addresses, numbers, scalings, place, rows, kept):
        gates = cuda.local.array(GATES, working)
        cells = cuda.local.array(1, working)
        normal = cuda.local.array(1, working)
        inputs, arrays, parameters = addresses
        tables, width, limit = (inputs.slices, arrays.statistics), place.width, place.limit
        of_gates = parameters.offset, parameters.gamma_h, parameters.gamma_x
        of_cell = parameters.gamma_c, parameters.beta_c
        enter(arrays.products, values, place, rows, tables, scalings[0])
        gates_of(values, of_gates, numbers, place.column, width, width, gates)
        new = new_cell(gates[0], gates[1], gates[3], before[0])
        cells[0] = new if place.column < limit else zero
        cell_of(cells, of_cell, numbers, place, rows, tables, scalings[1], normal)
        of_row = width * size
        behind = (rows.now - rows.batch) * of_row
        targets = (
            arrays.keep_h + behind, arrays.keep_c + behind, inputs.state + rows.earlier * of_row,
            inputs.state + rows.now * of_row,
            arrays.carried + (rows.now * of_row if kept != 0 else 0),
            arrays.cell + behind if arrays.cell != 0 else 0,
        )  # fmt: skip
        write_states(targets, rows.row, width, place.column, limit, gates, cells, before, normal)
        before[0] = cells[0]

    return make_forward(GATES, element, shape, (LSTMArrays, LSTMParameters), take_step)


def make_lstm_backward(form: LSTMForm, element: Element, shape: SliceShape) -> Kernel:
    """Return the kernel of all steps of an LSTM back."""
    sums_of = slice_sums_of(element, shape.units)
    step_back = make_step_back(form, element, shape.of_units, sums_of)
    of_statistics = places(form) * NUMBERS * element.itemsize
    (of_cell, of_gates), size = slice_sums(form), element.itemsize

    @device
    def take_step_back(addresses, numbers, coefficients, place, rows):
        inputs, a, others = addresses
        of_row, row, slices, part = place.width * size, rows.row, rows.slices, place.sliced[1]
        now, earlier = rows.start * of_row, rows.earlier * of_row
        wide, active = GATES * now, place.limit > 0
        shares = row * (of_cell + of_gates) * slices
        rooms = (
            (inputs.sums, shares, slices, part, active),
            (inputs.sums, shares + of_cell * slices, slices, part, active),
        )
        step_back(
            (a.z + wide, a.xp + wide),
            (a.cell + now, a.carried + earlier, a.table + rows.start * of_statistics),
            others, (a.keep_h + now, a.keep_c + now), (a.dy + now, inputs.product, a.dh, a.dc),
            (inputs.dz + wide, a.dxp + wide, a.grad + wide, a.dn + now),
            row, rows.later, place.width, place.column, place.limit, numbers, coefficients, rooms,
        )  # fmt: skip

    groups = LSTMBackwardArrays, LSTMParameters
    return make_backward(GATES, element, shape, groups, take_step_back)
