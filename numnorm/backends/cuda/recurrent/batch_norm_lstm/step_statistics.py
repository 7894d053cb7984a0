"""Batch norm inside a recurrent cell: the statistics of the columns of one step's rows.

Of each column they are the four numbers that `cell_norms` has of a part of a row. All of a pass
lie in one table, for each place of the cell its steps' columns: first the gates of the product
with the state, then those of the product with x, then the cell. The moments lie likewise.
"""

import functools
from typing import Any

from numnorm.backends.contract.recurrent import LSTMForm
from numnorm.backends.cuda.compiler.element_type import FLOAT64, Element
from numnorm.backends.cuda.compiler.target import (
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.recurrent.batch_norm_lstm.column_threads import (
    LANES,
    STRIPS_OF_WARP,
    make_column_sums,
    make_largest_of_columns,
)
from numnorm.backends.cuda.recurrent.common.cell_norm import (
    make_is_poor,
    make_keep_statistics,
    make_kept_statistics,
)
from numnorm.backends.cuda.recurrent.lstm.gates import GATES
from numnorm.backends.cuda.statistics.column_moments import make_unscaled
from numnorm.backends.cuda.statistics.row_normalizer import (
    make_inverse_deviation,
    make_power_of_two,
)
from numnorm.backends.cuda.threads.group_reductions import make_team_largest


def normalized_products(form: LSTMForm) -> int:
    """Return of how many products with a norm, or of their sum, the gates are made."""
    return (form.gates is not None) + form.by_product


def columns_of(form: LSTMForm, units: int) -> dict[str, int]:
    """Return where the columns of each place begin, in a table for one step."""
    wide = GATES * units
    return {"h": 0, "x": wide, "c": normalized_products(form) * wide}


@device
def place_of_gate(n: Any, step: Any, steps: Any, width: Any) -> Any:
    """Return where in a table the units of the n-th gate, of one product or the other, begin."""
    return ((n // GATES * steps + step) * GATES + n % GATES) * width


@functools.cache
def make_place_of_cell(products: int) -> Any:
    """Return a device function ``place_of_cell(step, steps, width)`` for the units of the cell."""
    behind = GATES * products

    @device
    def place_of_cell(step, steps, width):
        return (behind * steps + step) * width

    return place_of_cell


def _make_spread(element: Element, warps: int) -> Any:
    """Return a device function ``spread(column, rows, found, share, room)``.

    It finds high and low of a column, into `found`, where its scale is, and returns the sum of its
    squared deviations. A constant column gives exactly that constant.
    """
    load_one, working, zero = make_load_one(element), element.working, constant(element, 0.0)
    sum_of, both_of = (make_column_sums(element, count, warps) for count in (1, 2))
    strips = warps * STRIPS_OF_WARP

    @device
    def spread(column, rows, found, share, room):
        sums = cuda.local.array(2, working)
        array, at, span = column
        strip, scale = cuda.threadIdx.x // LANES % strips, found[0]
        row, origin, sums[0] = strip, load_one(array, at) * scale, zero
        while row < rows:
            sums[0] += load_one(array, row * span + at) * scale - origin
            row += strips
        sum_of(sums, room)
        row, high = strip, origin + sums[0] * share
        sums[0], sums[1] = zero, zero
        while row < rows:
            deviation = load_one(array, row * span + at) * scale - high
            sums[0] += deviation
            sums[1] += deviation * deviation
            row += strips
        both_of(sums, room)
        low = sums[0] * share
        found[1], found[2] = high, low
        m2 = sums[1] - sums[0] * low
        # max() would turn a NaN into 0.
        return zero if m2 < zero else m2

    return spread


def _make_largest(element: Element, warps: int) -> Any:
    """Return a device function ``largest(column, rows, least, room)`` of absolute values."""
    load_one, working = make_load_one(element), element.working
    largest_of, strips = make_largest_of_columns(element, 1, warps), warps * STRIPS_OF_WARP

    @device
    def largest(column, rows, least, room):
        found = cuda.local.array(1, working)
        array, at, span = column
        row, found[0] = cuda.threadIdx.x // LANES % strips, least
        while row < rows:
            found[0] = max(found[0], abs(load_one(array, row * span + at)))
            row += strips
        largest_of(found, room)
        return found[0]

    return largest


@functools.cache
def make_batch_statistics(element: Element, warps: int) -> Any:
    """Return a device function ``statistics(column, rows, found, share, eps, room)``.

    It finds the statistics of a thread's column, and returns the sum of its squared deviations,
    times the square of its scale. The column is ``array, at, span``: an address, the element in the
    first row, and the elements of a row; `eps` is epsilon and its root. All threads of a warp or
    of the block take part.
    """
    spread, largest = _make_spread(element, warps), _make_largest(element, warps)
    inverse_deviation, is_poor = make_inverse_deviation(element), make_is_poor(element)
    # LANES neighbours have all columns that meet at a barrier.
    any_of, power_of_two = make_team_largest(element, LANES), make_power_of_two(element)
    zero, one = constant(element, 0.0), constant(element, 1.0)
    infinity = constant(element, float("inf"))

    @device
    def statistics(column, rows, found, share, eps, room):
        scaling = share, share, eps[0], zero, eps[1]
        found[0] = one
        squares = spread(column, rows, found, share, room)
        poor = is_poor(squares, scaling)
        if any_of(one if poor else zero, room) > zero:
            # Where its squares left the range, the scale brings a column's largest value, or
            # epsilon, near 1; else it is 1.
            found[0] = power_of_two(largest(column, rows, eps[1] if poor else infinity, room))
            squares = spread(column, rows, found, share, room)
        scale = found[0]
        scaled_eps = eps[0] if scale == one else eps[1] * scale * (eps[1] * scale)
        found[3] = inverse_deviation(squares * share, scaled_eps, zero)
        return squares

    return statistics


@functools.cache
def make_keep_column(element: Element) -> Any:
    """Return a device function ``keep_column(found, squares, table, moments, column)``.

    It stores the statistics of a column; the moments are the addresses of means and variances, 0
    if those are not wanted, and what turns squares into a variance.
    """
    keep, store_one = make_keep_statistics(element, 1), make_store_one(FLOAT64)
    unscaled = make_unscaled(element)

    @device
    def keep_column(found, squares, table, moments, column):
        means, variances, to_variance = moments
        keep(table, column, 1, 0, found)
        if means != 0:
            mean, m2 = unscaled(found[1], found[2], squares, found[0])
            store_one(means, column, mean)
            store_one(variances, column, m2 * to_variance)

    return keep_column


@functools.cache
def make_kept_column(element: Element) -> Any:
    """Return a device function ``kept_column(table, column, found)``: the statistics again."""
    kept = make_kept_statistics(element, 1)

    @device
    def kept_column(table, column, found):
        kept(table, column, 1, 0, found)

    return kept_column
