"""Batch norm inside a recurrent cell: the statistics of the columns of one step's rows.

Of each column they are the four numbers that `cell_norms` has of a part of a row. All of a pass
lie in one table, for each place of the cell its steps' columns: first the gates of the product
with the state, then those of the product with x, then the cell. The moments lie likewise.
"""

import functools
from typing import Any

from numnorm.backends.contract import LSTMForm
from numnorm.backends.cuda.cell_norms import (
    NUMBERS,
    make_is_poor,
    make_keep_statistics,
    make_kept_statistics,
)
from numnorm.backends.cuda.column_statistics import make_unscaled
from numnorm.backends.cuda.column_teams import (
    LANES,
    STRIPS,
    make_column_sums,
    make_largest_of_columns,
    room_for_folds,
)
from numnorm.backends.cuda.elements import FLOAT64, Element
from numnorm.backends.cuda.lstm_gates import GATES
from numnorm.backends.cuda.row_statistics import make_inverse_deviation, make_power_of_two
from numnorm.backends.cuda.target import (
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.team_sums import make_team_largest


def normalized_products(form: LSTMForm) -> int:
    """Return of how many products with a norm, or of their sum, the gates are made."""
    return (form.gates is not None) + form.by_product


def columns_of(form: LSTMForm, units: int) -> dict[str, int]:
    """Return where the columns of each place begin, in a table for one step."""
    wide = GATES * units
    return {"h": 0, "x": wide, "c": normalized_products(form) * wide}


def room_for_statistics(count: int) -> int:
    """Return how many numbers a block's threads share for statistics of so many columns each."""
    return room_for_folds(2 * count)


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


def make_value(element: Element) -> Any:
    """Return a device function ``value(source, row, n)`` of a row's n-th column in this thread.

    The source is ``first, second, at, section, span``: the addresses of the product with the state
    and that with x, or of a single array; the thread's unit; how many there are; and the elements
    of a row.
    """
    load_one = make_load_one(element)

    @device
    def value(source, row, n):
        first, second, at, section, span = source
        place = row * span + n % GATES * section + at
        return load_one(first if n < GATES else second, place)

    return value


def _make_spread(element: Element, count: int) -> Any:
    """Return a device function ``spread(source, rows, found, squares, share, room)``.

    It finds high and low of each column, into `found`, where its scale is, and its `squares`, the
    sum of its squared deviations. A constant column gives exactly that constant.
    """
    value, working, zero = make_value(element), element.working, constant(element, 0.0)
    column_sums, both = make_column_sums(element, count), 2 * count
    column_both = make_column_sums(element, both)

    @device
    def spread(source, rows, found, squares, share, room):
        sums = cuda.local.array(both, working)
        for n in range(both):
            sums[n] = zero
        strip = cuda.threadIdx.x // LANES
        row = strip
        while row < rows:
            for n in range(count):
                scale = found[n * NUMBERS]
                sums[n] += value(source, row, n) * scale - value(source, 0, n) * scale
            row += STRIPS
        column_sums(sums, room)
        for n in range(count):
            high = value(source, 0, n) * found[n * NUMBERS] + sums[n] * share
            found[n * NUMBERS + 1], sums[n] = high, zero
        row = strip
        while row < rows:
            for n in range(count):
                deviation = value(source, row, n) * found[n * NUMBERS] - found[n * NUMBERS + 1]
                sums[n] += deviation
                sums[count + n] += deviation * deviation
            row += STRIPS
        column_both(sums, room)
        for n in range(count):
            low = sums[n] * share
            m2 = sums[count + n] - sums[n] * low
            found[n * NUMBERS + 2] = low
            # max() would turn a NaN into 0.
            squares[n] = zero if m2 < zero else m2

    return spread


def _make_rescale(element: Element, count: int) -> Any:
    """Return a device function ``rescale(source, rows, found, squares, scaling, room)``.

    It makes the scale of each column whose squares left the range of the working type a power of
    two that brings its largest absolute value, or epsilon, near 1.
    """
    value, working = make_value(element), element.working
    largest_of, is_poor = make_largest_of_columns(element, count), make_is_poor(element)
    power_of_two, infinity = make_power_of_two(element), constant(element, float("inf"))

    @device
    def rescale(source, rows, found, squares, scaling, room):
        largest = cuda.local.array(count, working)
        for n in range(count):
            largest[n] = scaling[4] if is_poor(squares[n], scaling) else infinity
        row = cuda.threadIdx.x // LANES
        while row < rows:
            for n in range(count):
                largest[n] = max(largest[n], abs(value(source, row, n)))
            row += STRIPS
        largest_of(largest, room)
        for n in range(count):
            found[n * NUMBERS] = power_of_two(largest[n])

    return rescale


@functools.cache
def make_batch_statistics(element: Element, count: int) -> Any:
    """Return a device function ``statistics(source, rows, found, squares, share, eps, room)``.

    It finds the statistics of so many columns of each thread, and leaves the sums of their squared
    deviations, times the square of their scale, in `squares`. `eps` is epsilon and its root. All
    threads of a block take part.
    """
    spread, rescale = _make_spread(element, count), _make_rescale(element, count)
    inverse_deviation, is_poor = make_inverse_deviation(element), make_is_poor(element)
    # All columns of a block are those of any LANES neighbours.
    any_of = make_team_largest(element, LANES)
    zero, one = constant(element, 0.0), constant(element, 1.0)

    @device
    def statistics(source, rows, found, squares, share, eps, room):
        scaling = share, share, eps[0], zero, eps[1]
        for n in range(count):
            found[n * NUMBERS] = one
        spread(source, rows, found, squares, share, room)
        poor = zero
        for n in range(count):
            poor = one if is_poor(squares[n], scaling) else poor
        if any_of(poor, room) > zero:
            rescale(source, rows, found, squares, scaling, room)
            spread(source, rows, found, squares, share, room)
        for n in range(count):
            scale = found[n * NUMBERS]
            scaled_eps = eps[0] if scale == one else eps[1] * scale * (eps[1] * scale)
            found[n * NUMBERS + 3] = inverse_deviation(squares[n] * share, scaled_eps, zero)

    return statistics


@functools.cache
def make_keep_column(element: Element) -> Any:
    """Return a device function that stores the statistics of a thread's n-th column.

    ``keep_column(found, squares, n, table, moments, column)``: the moments are the addresses of
    means and variances, 0 if those are not wanted, and what turns squares into a variance.
    """
    keep, store_one = make_keep_statistics(element, 1), make_store_one(FLOAT64)
    unscaled = make_unscaled(element)

    @device
    def keep_column(found, squares, n, table, moments, column):
        means, variances, to_variance = moments
        at = n * NUMBERS
        keep(table, column, 1, 0, found[at:])
        if means != 0:
            mean, m2 = unscaled(found[at + 1], found[at + 2], squares[n], found[at])
            store_one(means, column, mean)
            store_one(variances, column, m2 * to_variance)

    return keep_column


@functools.cache
def make_kept_column(element: Element) -> Any:
    """Return a device function ``kept_column(found, n, table, column)``: the statistics again."""
    kept = make_kept_statistics(element, 1)

    @device
    def kept_column(found, n, table, column):
        kept(table, column, 1, 0, found[n * NUMBERS :])

    return kept_column
