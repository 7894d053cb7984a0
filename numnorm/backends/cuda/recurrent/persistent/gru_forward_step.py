"""A forward step of a normalized GRU in the kernel of all steps."""

from typing import Any

from numnorm.backends.contract.recurrent import GRUSpec
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import cuda, device, grid_barrier
from numnorm.backends.cuda.recurrent.cell_norm import (
    NUMBERS,
    Parts,
    make_load_statistics,
    make_normalize,
    make_store_statistics,
)
from numnorm.backends.cuda.recurrent.gru import (
    CANDIDATE,
    GATES,
    PAIR,
    make_gates,
    make_new_state,
    product_norms,
    sites,
)
from numnorm.backends.cuda.recurrent.persistent.grid_statistics import (
    make_gather,
    make_write_partials,
)
from numnorm.backends.cuda.recurrent.persistent.kernels import PersistentStep
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.threads.row_columns import make_write_columns, row_columns


def _make_normalized(spec: GRUSpec, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function that normalizes a thread's unit of both products in place.

    ``normalize(both, other, slices, table, scalings, span, shard, rows)``: `both` has the
    products of both gates, `other` those of the candidate. `slices` is the scratch for
    the statistics of slices, `table` the array of saved statistics.
    """
    if spec.norm is None:

        @device
        def plain(both, other, slices, table, scalings, span, shard, rows):
            pass

        return plain
    formula = spec.norm.formula
    compute_type = element.compute_type
    numbers = 2 * NUMBERS
    of_both, of_other = Parts(1, PAIR.sections), Parts(1, CANDIDATE.sections)
    write_both, write_other = (
        make_write_partials(formula, element, shape, p) for p in (of_both, of_other)
    )
    gather_both, gather_other = (
        make_gather(formula, element, shape, p) for p in (of_both, of_other)
    )
    normalize_both, normalize_other = (
        make_normalize(element, shape.of_units, parts) for parts in (PAIR, CANDIDATE)
    )
    save_stats, load_stats = make_store_statistics(element, 1), make_load_statistics(element, 1)
    all_sites = sites(spec)

    @device
    def normalize(both, other, slices, table, scalings, span, shard, rows):
        stats = cuda.local.array(numbers, compute_type)
        other_stats = cuda.local.array(numbers, compute_type)
        active, row, batch = span.limit > 0, span.row, rows.batch
        load_stats(table, rows.x, all_sites, 2, stats[NUMBERS:])
        load_stats(table, rows.x, all_sites, 3, other_stats[NUMBERS:])
        write_both(both, shard, 0, active, slices, row, batch, scalings.gates, stats)
        write_other(other, shard, 1, active, slices, row, batch, scalings.other, other_stats)
        grid_barrier()
        gather_both(shard, 0, active, slices, row, batch, scalings.gates, stats)
        gather_other(shard, 1, active, slices, row, batch, scalings.other, other_stats)
        if active and span.at == 0:
            save_stats(table, rows.x, all_sites, 0, stats)
            save_stats(table, rows.x, all_sites, 1, other_stats)
        normalize_both(both, stats, span.at, span.limit)
        normalize_other(other, other_stats, span.at, span.limit)

    return normalize


def _make_step(spec: GRUSpec, element: ElementType, shape: SliceShape) -> Any:
    """Return the device function of a step that `PersistentStep` describes."""
    write = make_write_columns(element, row_columns(element, shape.of_units))
    normalize = _make_normalized(spec, element, shape)
    compute_type = element.compute_type
    gates_of, new_state = (
        make(spec, element, shape.of_units) for make in (make_gates, make_new_state)
    )
    size = element.itemsize

    @device
    def step(values, before, addresses, ada, scalings, span, shard, rows, save_cells):
        both = cuda.local.array(4, compute_type)
        other = cuda.local.array(2, compute_type)
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
        other[0], other[1] = values[2], values[GATES + 2]
        normalize(both, other, inputs.slices, arrays.table, scalings, span, shard, rows)
        gates_of(both, other, weights, ada, at, width, gates)
        mask = arrays.mask_h + (rows.now - rows.batch) * width * size
        new_state(mask, row, width, at, gates, before, new)
        write(inputs.state + rows.now * width * size, row * width, at, limit, new)
        before[0] = new[0]

    return step


STEP = PersistentStep(_make_step, lambda spec: 2, product_norms)
