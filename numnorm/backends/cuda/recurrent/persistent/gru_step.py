"""A step of a normalized gated recurrent unit, of whose rows a block has slices."""

from typing import Any

from numnorm.backends.contract.recurrent import GRUSpec
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import cuda, device, grid_barrier
from numnorm.backends.cuda.recurrent.common.cell_norm import (
    NUMBERS,
    Parts,
    make_keep_statistics,
    make_kept_statistics,
    make_normalize,
)
from numnorm.backends.cuda.recurrent.gru.gates import (
    GATES,
    OF_GATES,
    OF_REST,
    make_gates,
    product_norms,
    sites,
)
from numnorm.backends.cuda.recurrent.gru.step import make_new_state
from numnorm.backends.cuda.recurrent.persistent.forward_kernel import PersistentStep
from numnorm.backends.cuda.recurrent.persistent.grid_statistics import (
    make_gather,
    make_write_partials,
)
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.threads.row_columns import make_write_columns, row_columns


def _make_normalized(spec: GRUSpec, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function that normalizes a thread's units of both products.

    ``normalized(both, rest, slices, table, scalings, span, shard, rows)``
    """
    if spec.norm is None:

        @device
        def plain(both, rest, slices, table, scalings, span, shard, rows):
            pass

        return plain
    formula, compute_type, numbers = spec.norm.formula, element.compute_type, 2 * NUMBERS
    of_both, of_rest = Parts(1, OF_GATES.sections), Parts(1, OF_REST.sections)
    leave_both, leave_rest = (
        make_write_partials(formula, element, shape, p) for p in (of_both, of_rest)
    )
    gather_both, gather_rest = (make_gather(formula, element, shape, p) for p in (of_both, of_rest))
    normalize_both, normalize_rest = (
        make_normalize(element, shape.of_units, parts) for parts in (OF_GATES, OF_REST)
    )
    keep, kept = make_keep_statistics(element, 1), make_kept_statistics(element, 1)
    all_places = sites(spec)

    @device
    def normalized(both, rest, slices, table, scalings, span, shard, rows):
        found = cuda.local.array(numbers, compute_type)
        found_rest = cuda.local.array(numbers, compute_type)
        active, row, batch = span.limit > 0, span.row, rows.batch
        kept(table, rows.x, all_places, 2, found[NUMBERS:])
        kept(table, rows.x, all_places, 3, found_rest[NUMBERS:])
        leave_both(both, shard, 0, active, slices, row, batch, scalings.gates, found)
        leave_rest(rest, shard, 1, active, slices, row, batch, scalings.other, found_rest)
        grid_barrier()
        gather_both(shard, 0, active, slices, row, batch, scalings.gates, found)
        gather_rest(shard, 1, active, slices, row, batch, scalings.other, found_rest)
        if active and span.at == 0:
            keep(table, rows.x, all_places, 0, found)
            keep(table, rows.x, all_places, 1, found_rest)
        normalize_both(both, found, span.at, span.limit)
        normalize_rest(rest, found_rest, span.at, span.limit)

    return normalized


def _make_step(spec: GRUSpec, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function of a step, as `PersistentStep` has it."""
    write = make_write_columns(element, row_columns(element, shape.of_units))
    normalized, compute_type = _make_normalized(spec, element, shape), element.compute_type
    gates_of, new_state = (
        make(spec, element, shape.of_units) for make in (make_gates, make_new_state)
    )
    size = element.itemsize

    @device
    def step(values, before, addresses, ada, scalings, span, shard, rows, kept):
        both = cuda.local.array(4, compute_type)
        rest = cuda.local.array(2, compute_type)
        gates = cuda.local.array(4, compute_type)
        new = cuda.local.array(1, compute_type)
        inputs, arrays, weights = addresses
        row, width, at, limit = span
        if arrays.products != 0:
            for gate in range(GATES):
                first = (rows.x * GATES + gate) * width
                write(arrays.products, first, at, limit, values[gate:])
        for gate in range(2):
            both[gate], both[2 + gate] = values[gate], values[GATES + gate]
        rest[0], rest[1] = values[2], values[GATES + 2]
        normalized(both, rest, inputs.slices, arrays.table, scalings, span, shard, rows)
        gates_of(both, rest, weights, ada, at, width, gates)
        mask = arrays.mask_h + (rows.now - rows.batch) * width * size
        new_state(mask, row, width, at, gates, before, new)
        write(inputs.state + rows.now * width * size, row * width, at, limit, new)
        before[0] = new[0]

    return step


STEP = PersistentStep(_make_step, lambda spec: 2, product_norms)
