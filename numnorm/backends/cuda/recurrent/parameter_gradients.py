"""The gradients of a recurrent cell's parameters, from the gradients of all of its steps.

Those of biases and norms are sums over all steps. Each thread sums one column over a part of the
rows, so threads need no synchronization.
"""

import functools
from collections.abc import Mapping
from typing import Any

from numnorm.arguments import Shape
from numnorm.backends.contract.recurrent import PackedSteps
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.launch import launch
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.recurrent.cell_norm import NUMBERS, make_load_statistics, normalized
from numnorm.backends.cuda.recurrent.pass_arrays import (
    Table,
    Weights,
    dropped,
    new,
)
from numnorm.backends.cuda.recurrent.step_launches import step_rows
from numnorm.backends.cuda.rows.parameter_sums import COLUMNS, make_parameter_gradients
from numnorm.backends.cuda.threads.reductions import make_joined, two_sum

# A plain sum of this many terms is accurate; longer sums are compensated.
_ROWS_BETWEEN_FLUSHES = 32
_COLUMNS = 128  # in a block
_THREADS = 1 << 17  # in all blocks together, as for the gradients of rows


def blocks_of_columns(columns: int) -> int:
    """Return the number of blocks for one part of the rows."""
    return -(-columns // _COLUMNS)


def parts_of(rows: int, columns: int) -> int:
    """Return the number of parts of the rows; it depends on the shape alone."""
    most = max(1, _THREADS // (blocks_of_columns(columns) * _COLUMNS))
    return min(-(-rows // _ROWS_BETWEEN_FLUSHES), most)


def _make_xhat(element: ElementType, normed: bool) -> Any:
    """Return a device function ``xhat(values, table, row, column, columns, sites, site)``."""
    zero = constant(element, 0.0)
    if not normed:
        return device(lambda values, table, row, column, columns, sites, site: zero)
    load_one = make_load_one(element)
    load_statistics = make_load_statistics(element, 1)
    compute_type = element.compute_type

    @device
    def xhat(values, table, row, column, columns, sites, site):
        stats = cuda.local.array(NUMBERS, compute_type)
        load_statistics(table, row, sites, site, stats)
        return normalized(load_one(values, row * columns + column), stats, 0)

    return xhat


def make_cell_sums(element: ElementType, *, normed: bool) -> Kernel:
    """Return the kernel of sums over rows, for each column.

    Launched with `blocks_of_columns` blocks for each part, it takes as addresses ``grads, values
    (rows, columns)``, the ``table`` of statistics, and ``sums (2, parts, columns)``, where it
    stores the sums of ``grad * xhat`` and of ``grad``; without a norm, ``sums (1, parts, columns)``
    of ``grad`` alone. Then come ``rows, columns, parts``, the number of ``sites`` in a row of the
    table, this norm's first ``site``, and the ``width`` of the columns that share a site.
    """
    load_one, store_one = make_load_one(element), make_store_one(element)
    xhat = _make_xhat(element, normed)
    zero = constant(element, 0.0)
    joined = make_joined(element, element)

    def kernel(grads, values, table, sums, rows, columns, parts, sites, site, width):
        blocks = (columns + _COLUMNS - 1) // _COLUMNS
        part, column = cuda.blockIdx.x // blocks, cuda.blockIdx.x % blocks * _COLUMNS
        column += cuda.threadIdx.x
        if column < columns:
            own_site = site + column // width
            sum_xhat_hi, sum_xhat_lo, sum_hi, sum_lo = zero, zero, zero, zero
            row = part
            while row < rows:
                chunk_xhat, chunk = zero, zero
                stop = min(row + _ROWS_BETWEEN_FLUSHES * parts, rows)
                while row < stop:
                    grad = load_one(grads, row * columns + column)
                    chunk += grad
                    chunk_xhat += grad * xhat(values, table, row, column, columns, sites, own_site)
                    row += parts
                sum_xhat_hi, lost = two_sum(sum_xhat_hi, chunk_xhat)
                sum_xhat_lo += lost
                sum_hi, lost = two_sum(sum_hi, chunk)
                sum_lo += lost
            index = part * columns + column
            if normed:
                store_one(sums, index, joined(sum_xhat_hi, sum_xhat_lo))
                index += parts * columns
            store_one(sums, index, joined(sum_hi, sum_lo))

    return Kernel(kernel, ("address",) * 4 + ("index",) * 6, _COLUMNS)


_cell_sums = functools.cache(make_cell_sums)
_finish = functools.cache(make_parameter_gradients)


def column_sums(
    x: DeviceArray,
    grads: Any,
    values: Any = None,
    table: Table | None = None,
    site: int = 0,
    width: int | None = None,
) -> tuple[Any, Any]:
    """Return for each column the sums of grad * xhat and of grad.

    The statistics of the values are in the table from a site on, each for `width` columns; None
    stands for all columns. Without values there is no norm, and the first result is None.
    """
    rows, columns = x.lib.shape(grads)
    normed = values is not None
    count = parts_of(rows, columns)
    kernel = _cell_sums(x.element, normed=normed)
    sums = new(x, (2 if normed else 1, count, columns))
    arrays = grads, values, table.array if table else None, sums
    sizes = rows, columns, count, table.sites if table else 0, site, width or columns
    launch(kernel, count * blocks_of_columns(columns), x, arrays, sizes)
    results = [new(x, (columns,)) for _ in range(2 if normed else 1)]
    finish = _finish(x.element, x.element)
    blocks = -(-columns // COLUMNS)
    launch(finish, len(results) * blocks, x, (sums, *results, None)[:3], (count, columns))
    return (results[0], results[1]) if normed else (None, results[0])


def operands_before(x: DeviceArray, steps: PackedSteps, state: Any, mask: Any) -> Any:
    """Return each row's operand of the weights: its input state, times the mask of dropout."""
    states = _states_before(x, steps, state)
    if mask is None:
        return states
    counts = steps.batch_sizes.tolist()
    of_rows = x.lib.concatenated([x.lib.rows(mask, 0, count) for count in counts])
    return dropped(x, states, of_rows)


def _states_before(x: DeviceArray, steps: PackedSteps, state: Any) -> Any:
    """Return each row's input state, from the history of states."""
    library = x.lib
    batch = library.shape(state)[0] - x.shape[0]
    if (steps.batch_sizes == batch).all():  # contiguous
        return library.rows(state, 0, x.shape[0])
    rows = step_rows(steps, batch)
    pairs = zip(rows.before.tolist(), rows.count.tolist(), strict=True)
    return library.concatenated([library.rows(state, at, at + count) for at, count in pairs])


def weight_gradients(x: DeviceArray, operands: Any, dxp: Any, dz: Any) -> dict[str, Any]:
    """Return the gradients of both weight matrices, from the gradients of their products.

    `operands` are the states that the weights are multiplied by.
    """
    dxp_t, dz_t = (x.lib.permuted(d, (1, 0)) for d in (dxp, dz))
    return {
        "weight_x": x.lib.matmul(dxp_t, x.array),
        "weight_h": x.lib.matmul(dz_t, operands),
    }


def gradients_without_steps(
    x: DeviceArray, weights: Weights, units: int, sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Return the gradients of all parameters, zeros, for sequences without steps.

    `sizes` gives the numbers for each unit of the parameters other than the weight matrices.
    """
    library = x.lib
    shapes: dict[str, Shape] = {name: (size * units,) for name, size in sizes.items()}
    shapes |= {"weight_x": library.shape(weights.x), "weight_h": library.shape(weights.h)}
    if weights.projection is not None:
        shapes["projection"] = library.shape(weights.projection)
    return {name: library.full(x.array, s, x.element.name, 0.0) for name, s in shapes.items()}
