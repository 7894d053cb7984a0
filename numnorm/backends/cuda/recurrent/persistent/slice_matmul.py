"""Matmuls of states with a block's slice of the weights, which stays in shared memory.

The warps share the terms of each sum: each gets a vector of 16 bytes in turn. A warp computes its
partial sums of a tile of rows, and the partial sums are added in the order of the warps. The order
of a sum depends only on the width, not on the other rows.

A thread multiplies some columns of the weights at a time: those of all gates of a unit or, with
one gate, those of `COLUMNS` units. In shared memory these columns are interleaved, element by
element of the state, and split into vectors of 16 bytes. The n-th vectors of all threads of a row
are adjacent.
"""

import math
from typing import Any

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    constant,
    cuda,
    device,
    make_load,
    make_load_one,
    make_store,
    make_store_one,
)
from numnorm.backends.cuda.compiler.vector_access import make_as_tuple
from numnorm.backends.cuda.recurrent.persistent.plans import COLUMNS, SliceShape
from numnorm.backends.cuda.threads.reductions import WARP

# The most weights that a thread loads before it stores the first.
_AT_ONCE = 32


def make_padded(element: ElementType) -> Any:
    """Return the device function ``padded_of(width)`` of `padded_width`."""
    vector = element.vector
    return device(lambda width: (width + vector - 1) // vector * vector)


def make_take_weights(gates: int, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function ``take_weights(memory, weights, first, width)``.

    It copies the rows of a slice, whose first unit is `first`, of the weights ``(gates * width,
    width)`` to shared memory, padded with zeros.
    """
    load_one = make_load_one(element)
    store = make_store(element, shared=True)
    as_tuple = make_as_tuple(element)
    threads = shape.threads
    vector, compute_type = element.vector, element.compute_type
    padded_of = make_padded(element)
    zero = constant(element, 0.0)
    # The columns of a thread are the gates of one unit, or neighbouring units.
    columns, units_of, gates_of = (gates, 0, 1) if gates > 1 else (COLUMNS, 1, 0)
    lanes = shape.units * gates // columns
    lane_units = shape.units // lanes
    # The elements of the state whose weights fill whole vectors.
    each = vector // math.gcd(columns, vector)
    numbers = each * columns
    together = min(lanes, 1 << (_AT_ONCE // numbers).bit_length() - 1)
    size = together * numbers

    @device
    def take_weights(memory, weights, first, width):
        values = cuda.local.array(size, compute_type)
        padded = padded_of(width)
        for start in range(0, lanes, together):
            at = cuda.threadIdx.x * each
            while at < padded:
                # All loads are issued before the first store.
                for n in range(size):
                    lane, k, column = start + n // numbers, at + n % numbers // columns, n % columns
                    unit = first + lane * lane_units + column * units_of
                    active = unit < width and k < width
                    index = (column * gates_of * width + unit) * width + k
                    values[n] = load_one(weights, index) if active else zero
                for n in range(0, size, vector):
                    lane, number = start + n // numbers, at * columns + n % numbers
                    store(memory, number * lanes + lane * vector, as_tuple(values, n))
                at += threads * each

    return take_weights


def _make_stage(element: ElementType, shape: SliceShape) -> Any:
    """Return a device function ``stage(states, source, first, rows, width, pitch)``.

    It copies a tile of rows of a `source` to the shared memory `states`, where a row has `pitch`
    elements. The tile begins at row `first`; from its row number `rows` on it becomes zeros. A
    warp copies whole rows.
    """
    load, load_one = make_load(element), make_load_one(element)
    store, store_one = make_store(element, shared=True), make_store_one(element, shared=True)
    as_tuple = make_as_tuple(element)
    vector = element.vector
    zero = constant(element, 0.0)
    each = -(-shape.tile // shape.warps)
    warps, tile = shape.warps, shape.tile
    compute_type = element.compute_type
    padded_of = make_padded(element)

    @device
    def by_vectors(states, source, first, rows, width, pitch):
        zeros = cuda.local.array(vector, compute_type)
        for j in range(vector):
            zeros[j] = zero
        none = as_tuple(zeros, 0)
        warp, at = cuda.threadIdx.x // WARP, cuda.threadIdx.x % WARP * vector
        while at < width:
            for n in range(each):
                row = warp + n * warps
                if row < tile:
                    loaded = load(source, (first + row) * width + at) if row < rows else none
                    store(states, row * pitch + at, loaded)
            at += WARP * vector

    @device
    def one_by_one(states, source, first, rows, width, pitch):
        warp, at, padded = cuda.threadIdx.x // WARP, cuda.threadIdx.x % WARP, padded_of(width)
        while at < padded:
            for n in range(each):
                row = warp + n * warps
                if row < tile:
                    active = row < rows and at < width
                    loaded = load_one(source, (first + row) * width + at) if active else zero
                    store_one(states, row * pitch + at, loaded)
            at += WARP

    return by_vectors if shape.whole else one_by_one


def _make_multiply(columns: int, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function ``multiply(weights, states, partials, width, pitch)``.

    Each warp stores its partial sums of the products of a tile with all columns of the slice.
    """
    load = make_load(element, shared=True)
    store_partials = _make_store_partials(columns, element)
    vector = element.vector
    units, rows, tile = shape.units, shape.rows, shape.tile
    warps = shape.warps
    row_stride = WARP // shape.units
    compute_type = element.compute_type
    zero = constant(element, 0.0)
    padded_of = make_padded(element)
    sum_count, weight_count = rows * columns, vector * columns

    @device
    def multiply(weights, states, partials, width, pitch):
        sums = cuda.local.array(sum_count, compute_type)
        factors = cuda.local.array(weight_count, compute_type)
        for n in range(sum_count):
            sums[n] = zero
        warp, lane = cuda.threadIdx.x // WARP, cuda.threadIdx.x % WARP
        unit, row, padded = lane % units, lane // units, padded_of(width)
        at, first = warp * vector, unit * vector
        while at < padded:
            for n in range(0, weight_count, vector):
                loaded = load(weights, at * (columns * units) + first + n * units)
                for j in range(vector):
                    factors[n + j] = loaded[j]
            for n in range(rows):
                loaded = load(states, (row + n * row_stride) * pitch + at)
                for j in range(vector):
                    for column in range(columns):
                        sums[n * columns + column] += loaded[j] * factors[j * columns + column]
            at += warps * vector
        for n in range(rows):
            index = ((warp * tile + row + n * row_stride) * units + unit) * columns
            store_partials(partials, index, sums, n * columns)

    return multiply


def _make_store_partials(columns: int, element: ElementType) -> Any:
    """Return a device function ``store_partials(partials, index, sums, first)``."""
    store, store_one = make_store(element, shared=True), make_store_one(element, shared=True)
    vector = element.vector
    as_tuple = make_as_tuple(element)

    @device
    def at_once(partials, index, sums, first):
        for part in range(0, columns, vector):
            store(partials, index + part, as_tuple(sums, first + part))

    @device
    def one_by_one(partials, index, sums, first):
        for n in range(columns):
            store_one(partials, index + n, sums[first + n])

    return one_by_one if columns % vector else at_once


def _make_add_up(gates: int, units: int, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function ``add_up(partials, row, unit, products)``.

    It writes the `gates` products of a unit, the sums over all warps. A row has `units` units.
    """
    load, load_one = make_load(element, shared=True), make_load_one(element, shared=True)
    zero = constant(element, 0.0)
    vector = element.vector
    warps, tile = shape.warps, shape.tile

    @device
    def at_once(partials, row, unit, products):
        for gate in range(gates):
            products[gate] = zero
        for warp in range(warps):
            index = ((warp * tile + row) * units + unit) * gates
            for part in range(0, gates, vector):
                loaded = load(partials, index + part)
                for j in range(vector):
                    products[part + j] += loaded[j]

    @device
    def one_by_one(partials, row, unit, products):
        for gate in range(gates):
            products[gate] = zero
            for warp in range(warps):
                index = ((warp * tile + row) * units + unit) * gates
                products[gate] += load_one(partials, index + gate)

    return one_by_one if gates % vector else at_once


def make_slice_products(gates: int, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function ``products_of(memory, source, first, rows, width, products)``.

    A block multiplies `rows` rows of the array ``source (., width)``, from row `first` on. Each
    thread gets the products of its own row with all gates of its unit, or 0 without a row. All
    threads of a block take part. The weights must be in `memory` before the first barrier.
    """
    if gates == 1:
        return make_column_products(element, shape)
    return _make_products(gates, gates, element, shape, shape.units)


def _make_products(
    count: int, columns: int, element: ElementType, shape: SliceShape, units: int
) -> Any:
    """Return a device function like that of `make_slice_products`, for `count` products a thread.

    A thread multiplies `columns` columns at a time. A row has `units` threads.
    """
    add_up = _make_add_up(count, units, element, shape)
    stage = _make_stage(element, shape)
    multiply = _make_multiply(columns, element, shape)
    padded_of = make_padded(element)
    tile = shape.tile
    zero = constant(element, 0.0)
    vector, size = element.vector, element.itemsize
    groups = shape.units

    @device
    def products_of(memory, source, first, rows, width, products):
        unit, row = cuda.threadIdx.x % units, cuda.threadIdx.x // units
        padded = padded_of(width)
        pitch = padded + vector  # the rows of a tile are in different banks
        states = memory + padded * (groups * columns * size)
        partials = states + pitch * (tile * size)
        for n in range(count):
            products[n] = zero
        start = 0
        while start < rows:
            stage(states, source, first + start, rows - start, width, pitch)
            cuda.syncthreads()
            multiply(memory, states, partials, width, pitch)
            cuda.syncthreads()
            if start <= row and row < start + tile:
                add_up(partials, row - start, unit, products)
            start += tile

    return products_of


# Products with the columns of a slice's units, as the backward pass needs them


def make_take_columns(element: ElementType, shape: SliceShape) -> Any:
    """Return a device function ``take_columns(memory, weights, first, rows, width)``.

    It copies the columns of a slice, whose first unit is `first`, of the weights ``(rows, width)``
    to shared memory, padded with zeros.
    """
    load_one = make_load_one(element)
    store_one = make_store_one(element, shared=True)
    zero = constant(element, 0.0)
    padded_of = make_padded(element)
    vector = element.vector
    units, teams = shape.units, shape.teams
    lanes = shape.units // COLUMNS

    @device
    def take_columns(memory, weights, first, rows, width):
        unit, row = cuda.threadIdx.x % units, cuda.threadIdx.x // units
        lane, column, padded = unit // COLUMNS, unit % COLUMNS, padded_of(rows)
        offset = (column // vector * lanes + lane) * vector + column % vector
        while row < padded:
            active = first + unit < width and row < rows
            value = load_one(weights, row * width + first + unit) if active else zero
            store_one(memory, row * units + offset, value)
            row += teams

    return take_columns


def make_column_products(element: ElementType, shape: SliceShape) -> Any:
    """Return a device function like that of `make_slice_products`, for one product of a thread."""
    return _make_products(1, COLUMNS, element, shape.transposed, shape.units)


def make_pass_on(gates: int, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function that computes the gradient of states from that of their products.

    ``pass_on(memory, dz, start, rows, first, row, column, width, product)``: the rows of the step
    begin at row `start` of ``dz (., gates * width)``. The block has `rows` of them, from row
    `first` of the step on. A thread stores the gradient of its row, if not negative, and column.
    """
    products_of = make_column_products(element, shape)
    store_one = make_store_one(element)
    compute_type = element.compute_type

    @device
    def pass_on(memory, dz, start, rows, first, row, column, width, product):
        result = cuda.local.array(1, compute_type)
        products_of(memory, dz, start + first, rows, gates * width, result)
        if row >= 0 and column < width and row - first < rows:
            store_one(product, row * width + column, result[0])

    return pass_on
