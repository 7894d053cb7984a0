"""A forward step of a normalized plain recurrent network in the kernel of all steps."""

from typing import Any

from numnorm.backends.contract.recurrent import RNNSpec
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import cuda, device
from numnorm.backends.cuda.recurrent.cell_norm import (
    CELL,
    NUMBERS,
    make_normalize,
    make_store_statistics,
)
from numnorm.backends.cuda.recurrent.persistent.grid_statistics import make_all_reduce
from numnorm.backends.cuda.recurrent.persistent.kernels import PersistentStep
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.recurrent.rnn import (
    GATES,
    make_new_state,
    make_write_state,
    product_norm,
)
from numnorm.backends.cuda.threads.row_columns import make_write_columns, row_columns


def _make_normalized(spec: RNNSpec, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function that normalizes the sum of both products in place.

    ``normalize(values, slices, table, scaling, span, shard, rows)``: `slices` is the scratch for
    the statistics of slices, `table` the array of saved statistics.
    """
    if spec.norm is None:

        @device
        def plain(values, slices, table, scaling, span, shard, rows):
            pass

        return plain
    all_reduce = make_all_reduce(spec.norm.formula, element, shape, CELL)
    apply = make_normalize(element, shape.of_units, CELL)
    save_stats = make_store_statistics(element, 1)
    compute_type = element.compute_type

    @device
    def normalize(values, slices, table, scaling, span, shard, rows):
        stats = cuda.local.array(NUMBERS, compute_type)
        active = span.limit > 0
        all_reduce(values, shard, 0, active, slices, span.row, rows.batch, scaling, stats)
        if active and span.at == 0:
            save_stats(table, rows.x, 1, 0, stats)
        apply(values, stats, span.at, span.limit)

    return normalize


def _make_step(spec: RNNSpec, element: ElementType, shape: SliceShape) -> Any:
    """Return the device function of a step that `PersistentStep` describes."""
    write = make_write_columns(element, row_columns(element, shape.of_units))
    normalize = _make_normalized(spec, element, shape)
    compute_type = element.compute_type
    new_state, write_state = (
        make(spec, element, shape.of_units) for make in (make_new_state, make_write_state)
    )
    size = element.itemsize

    @device
    def step(values, before, addresses, ada, scalings, span, shard, rows, save_cells):
        weight = cuda.local.array(1, compute_type)
        new = cuda.local.array(1, compute_type)
        inputs, arrays, weights = addresses
        row, width, at, limit = span
        of_row = width * size
        values[0] += values[GATES]
        if arrays.products != 0:
            write(arrays.products, rows.x * width, at, limit, values)
        normalize(values, inputs.slices, arrays.table, scalings.gates, span, shard, rows)
        new_state(values, weights, ada, at, width, weight, new)
        write_state(
            inputs.state + rows.now * of_row, inputs.state + rows.earlier * of_row,
            arrays.mask_h + (rows.now - rows.batch) * of_row, row, width, at, limit, new,
        )  # fmt: skip

    return step


STEP = PersistentStep(_make_step, lambda spec: 1, lambda spec: (product_norm(spec),))
