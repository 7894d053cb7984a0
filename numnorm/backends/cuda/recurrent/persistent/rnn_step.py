"""A step of a normalized plain recurrent network, of whose rows a block has slices."""

from typing import Any

from numnorm.backends.contract.recurrent import RNNSpec
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import cuda, device
from numnorm.backends.cuda.recurrent.common.cell_norm import (
    CELL,
    NUMBERS,
    make_keep_statistics,
    make_normalize,
)
from numnorm.backends.cuda.recurrent.persistent.forward_kernel import PersistentStep
from numnorm.backends.cuda.recurrent.persistent.grid_statistics import make_all_reduce
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.recurrent.rnn.step import (
    GATES,
    make_new_state,
    make_write_state,
    product_norm,
)
from numnorm.backends.cuda.threads.row_columns import make_write_columns, row_columns


def _make_normalized(spec: RNNSpec, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function that normalizes the sum of both products.

    ``normalized(values, slices, table, scaling, span, shard, rows)``
    """
    if spec.norm is None:

        @device
        def plain(values, slices, table, scaling, span, shard, rows):
            pass

        return plain
    all_reduce = make_all_reduce(spec.norm.formula, element, shape, CELL)
    normalize = make_normalize(element, shape.of_units, CELL)
    keep, compute_type = make_keep_statistics(element, 1), element.compute_type

    @device
    def normalized(values, slices, table, scaling, span, shard, rows):
        found = cuda.local.array(NUMBERS, compute_type)
        active = span.limit > 0
        all_reduce(values, shard, 0, active, slices, span.row, rows.batch, scaling, found)
        if active and span.at == 0:
            keep(table, rows.x, 1, 0, found)
        normalize(values, found, span.at, span.limit)

    return normalized


def _make_step(spec: RNNSpec, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function of a step, as `PersistentStep` has it."""
    write = make_write_columns(element, row_columns(element, shape.of_units))
    normalized, compute_type = _make_normalized(spec, element, shape), element.compute_type
    new_state, write_state = (
        make(spec, element, shape.of_units) for make in (make_new_state, make_write_state)
    )
    size = element.itemsize

    @device
    def step(values, before, addresses, ada, scalings, span, shard, rows, kept):
        weight = cuda.local.array(1, compute_type)
        new = cuda.local.array(1, compute_type)
        inputs, arrays, weights = addresses
        row, width, at, limit = span
        of_row = width * size
        values[0] += values[GATES]
        if arrays.products != 0:
            write(arrays.products, rows.x * width, at, limit, values)
        normalized(values, inputs.slices, arrays.table, scalings.gates, span, shard, rows)
        new_state(values, weights, ada, at, width, weight, new)
        write_state(
            inputs.state + rows.now * of_row, inputs.state + rows.earlier * of_row,
            arrays.mask_h + (rows.now - rows.batch) * of_row, row, width, at, limit, new,
        )  # fmt: skip

    return step


STEP = PersistentStep(_make_step, lambda spec: 1, lambda spec: (product_norm(spec),))
