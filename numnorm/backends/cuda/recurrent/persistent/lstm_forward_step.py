"""A forward step of a normalized LSTM in the kernel of all steps."""

from typing import Any

from numnorm.backends.contract.recurrent import LSTMSpec
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import cuda, device
from numnorm.backends.cuda.recurrent.cell_norm import (
    CELL,
    NUMBERS,
    Parts,
    bias_of,
    gain_of,
    make_load_statistics,
    make_normalize,
    make_store_statistics,
    normalized,
)
from numnorm.backends.cuda.recurrent.lstm import (
    GATES,
    gate_parts,
    make_gates,
    make_new_cell,
    make_write_states,
    product_norm,
    sites,
)
from numnorm.backends.cuda.recurrent.persistent.grid_statistics import make_all_reduce
from numnorm.backends.cuda.recurrent.persistent.kernels import PersistentStep
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.threads.row_columns import (
    make_column_weight,
    make_write_columns,
    row_columns,
)


def _slice_parts(spec: LSTMSpec) -> Parts:
    """Return the parts whose statistics a step computes; an earlier kernel has those of x."""
    return Parts(1, GATES) if spec.norm_each_product else gate_parts(spec)


def _slice_sites(spec: LSTMSpec) -> int:
    """Return the number of parts of a row with statistics of slices; the cell is the last."""
    return _slice_parts(spec).count + (spec.cell is not None)


def _make_enter(spec: LSTMSpec, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function that computes the preactivations of a thread's gates.

    ``enter(values, inputs, arrays, scaling, span, shard, rows)``: `values` has the products with
    the state and behind them those with x. The preactivations replace the former or, if a norm is
    taken of each product, the normalized products replace both.
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
    parts = gate_parts(spec)
    all_sites = sites(spec)
    compute_type = element.compute_type
    of_slices = _slice_parts(spec)
    count = gate_parts(spec).count * NUMBERS
    all_reduce = make_all_reduce(spec.gates.formula, element, shape, of_slices)
    save_stats = make_store_statistics(element, of_slices.count)
    load_stats = make_load_statistics(element, parts.count - of_slices.count)
    normalize = make_normalize(element, shape.of_units, parts)
    others = of_slices.count

    @device
    def enter(values, inputs, arrays, scaling, span, shard, rows):
        stats = cuda.local.array(count, compute_type)
        active = span.limit > 0
        save(values, arrays, span, rows)
        if norm_each_product:
            load_stats(arrays.table, rows.x, all_sites, others, stats[others * NUMBERS :])
        all_reduce(values, shard, 0, active, inputs.slices, span.row, rows.batch, scaling, stats)
        if active and span.at == 0:
            save_stats(arrays.table, rows.x, all_sites, 0, stats)
        normalize(values, stats, span.at, span.limit)

    return enter


def _make_cell_of(spec: LSTMSpec, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function that normalizes a thread's cell.

    ``cell_of(cells, inputs, table, weights, ada, scaling, span, shard, rows, normal)``: the
    normalized cell is written to ``normal[0]``.
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
    save_stats = make_store_statistics(element, 1)
    all_sites = sites(spec)
    apply = device(spec.cell.formula.forward)
    last = _slice_sites(spec) - 1
    compute_type = element.compute_type

    @device
    def cell_of(cells, inputs, table, weights, ada, scaling, span, shard, rows, normal):
        stats = cuda.local.array(NUMBERS, compute_type)
        weight = cuda.local.array(1, compute_type)
        shift = cuda.local.array(1, compute_type)
        active, at, width = span.limit > 0, span.at, span.width
        all_reduce(cells, shard, last, active, inputs.slices, span.row, rows.batch, scaling, stats)
        if active and at == 0:
            save_stats(table, rows.x, all_sites, all_sites - 1, stats)
        gain(weights.gamma_c, ada.gain, 0, at, width, weight)
        bias(weights.beta_c, ada.bias, 0, at, width, shift)
        normal[0] = apply(normalized(cells[0], stats, 0), weight[0], shift[0])

    return cell_of


def _make_step(spec: LSTMSpec, element: ElementType, shape: SliceShape) -> Any:
    """Return the device function of a step that `PersistentStep` describes."""
    enter, cell_of = (make(spec, element, shape) for make in (_make_enter, _make_cell_of))
    gates_of, write_states = (
        make(spec, element, shape.of_units) for make in (make_gates, make_write_states)
    )
    new_cell = make_new_cell(element, shape.of_units)
    compute_type, size = element.compute_type, element.itemsize

    @device
    def step(values, before, addresses, ada, scalings, span, shard, rows, save_cells):
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
        offset = (rows.now - rows.batch) * of_row
        targets = (
            arrays.mask_h + offset, arrays.mask_c + offset, inputs.state + rows.earlier * of_row,
            inputs.state + rows.now * of_row,
            arrays.carried + (rows.now * of_row if save_cells != 0 else 0),
            arrays.cell + offset if arrays.cell != 0 else 0,
        )  # fmt: skip
        write_states(targets, row, width, at, limit, gates, cells, before, normal)
        before[0] = cells[0]

    return step


STEP = PersistentStep(_make_step, _slice_sites, lambda spec: (product_norm(spec),))
