"""A step of a normalized LSTM, of whose rows a block has slices."""

from typing import Any

from numnorm.backends.contract.recurrent import LSTMSpec
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import cuda, device
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
from numnorm.backends.cuda.recurrent.lstm.gates import (
    GATES,
    gate_parts,
    make_gates,
    product_norm,
    sites,
)
from numnorm.backends.cuda.recurrent.lstm.step import make_new_cell, make_write_states
from numnorm.backends.cuda.recurrent.persistent.forward_kernel import PersistentStep
from numnorm.backends.cuda.recurrent.persistent.grid_statistics import make_all_reduce
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.threads.row_columns import (
    make_column_weight,
    make_write_columns,
    row_columns,
)


def _slice_parts(spec: LSTMSpec) -> Parts:
    """Return what of a slice is normalized in each step: not the products with x."""
    return Parts(1, GATES) if spec.norm_each_product else gate_parts(spec)


def _slice_places(spec: LSTMSpec) -> int:
    """Return how many parts of a row have statistics of slices, the cell last."""
    return _slice_parts(spec).count + (spec.cell is not None)


def _make_enter(spec: LSTMSpec, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function of what enters a thread's gates.

    ``enter(values, inputs, arrays, scaling, span, shard, rows)``: the products with the state
    and, behind them, those with x become what enters the gates.
    """
    norm_each_product = spec.norm_each_product
    write = make_write_columns(element, row_columns(element, shape.of_units))

    @device
    def save(values, arrays, span, rows):
        if not norm_each_product:
            for gate in range(GATES):
                values[gate] += values[GATES + gate]
        if arrays.products != 0:
            for gate in range(GATES):
                first = (rows.x * GATES + gate) * span.width
                write(arrays.products, first, span.at, span.limit, values[gate:])

    if spec.gates is None:

        @device
        def plain(values, inputs, arrays, scaling, span, shard, rows):
            save(values, arrays, span, rows)

        return plain
    parts, all_places, compute_type = gate_parts(spec), sites(spec), element.compute_type
    of_slices, count = _slice_parts(spec), gate_parts(spec).count * NUMBERS
    all_reduce = make_all_reduce(spec.gates.formula, element, shape, of_slices)
    keep = make_keep_statistics(element, of_slices.count)
    kept = make_kept_statistics(element, parts.count - of_slices.count)
    normalize = make_normalize(element, shape.of_units, parts)
    others = of_slices.count

    @device
    def enter(values, inputs, arrays, scaling, span, shard, rows):
        found = cuda.local.array(count, compute_type)
        active = span.limit > 0
        save(values, arrays, span, rows)
        if norm_each_product:
            kept(arrays.table, rows.x, all_places, others, found[others * NUMBERS :])
        all_reduce(values, shard, 0, active, inputs.slices, span.row, rows.batch, scaling, found)
        if active and span.at == 0:
            keep(arrays.table, rows.x, all_places, 0, found)
        normalize(values, found, span.at, span.limit)

    return enter


def _make_cell_of(spec: LSTMSpec, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function of a thread's cell, normalized.

    ``cell_of(cells, inputs, table, weights, ada, scaling, span, shard, rows, normal)``
    """
    if spec.cell is None:

        @device
        def plain(cells, inputs, table, weights, ada, scaling, span, shard, rows, normal):
            normal[0] = cells[0]

        return plain
    columns = row_columns(element, shape.of_units)
    gain = make_column_weight(element, gain_of(spec.cell, element), columns)
    bias = make_column_weight(element, bias_of(spec.cell, element), columns)
    all_reduce = make_all_reduce(spec.cell.formula, element, shape, CELL)
    keep, all_places = make_keep_statistics(element, 1), sites(spec)
    apply, last = device(spec.cell.formula.forward), _slice_places(spec) - 1
    compute_type = element.compute_type

    @device
    def cell_of(cells, inputs, table, weights, ada, scaling, span, shard, rows, normal):
        found = cuda.local.array(NUMBERS, compute_type)
        weight = cuda.local.array(1, compute_type)
        shift = cuda.local.array(1, compute_type)
        active, at, width = span.limit > 0, span.at, span.width
        all_reduce(cells, shard, last, active, inputs.slices, span.row, rows.batch, scaling, found)
        if active and at == 0:
            keep(table, rows.x, all_places, all_places - 1, found)
        gain(weights.gamma_c, ada.gain, 0, at, width, weight)
        bias(weights.beta_c, ada.bias, 0, at, width, shift)
        normal[0] = apply(normalized(cells[0], found, 0), weight[0], shift[0])

    return cell_of


def _make_step(spec: LSTMSpec, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function of a step, as `PersistentStep` has it."""
    enter, cell_of = (make(spec, element, shape) for make in (_make_enter, _make_cell_of))
    gates_of, write_states = (
        make(spec, element, shape.of_units) for make in (make_gates, make_write_states)
    )
    new_cell = make_new_cell(element, shape.of_units)
    compute_type, size = element.compute_type, element.itemsize

    @device
    def step(values, before, addresses, ada, scalings, span, shard, rows, kept):
        gates = cuda.local.array(GATES, compute_type)
        cells = cuda.local.array(1, compute_type)
        normal = cuda.local.array(1, compute_type)
        inputs, arrays, weights = addresses
        row, width, at, limit = span
        enter(values, inputs, arrays, scalings.gates, span, shard, rows)
        gates_of(values, weights[:3], ada, at, width, width, gates)
        new_cell(gates, before, at, limit, cells)
        cell_of(
            cells, inputs, arrays.table, weights, ada, scalings.other, span, shard, rows, normal
        )
        of_row = width * size
        behind = (rows.now - rows.batch) * of_row
        targets = (
            arrays.mask_h + behind, arrays.mask_c + behind, inputs.state + rows.earlier * of_row,
            inputs.state + rows.now * of_row,
            arrays.carried + (rows.now * of_row if kept != 0 else 0),
            arrays.cell + behind if arrays.cell != 0 else 0,
        )  # fmt: skip
        write_states(targets, row, width, at, limit, gates, cells, before, normal)
        before[0] = cells[0]

    return step


STEP = PersistentStep(_make_step, _slice_places, lambda spec: (product_norm(spec),))
