"""Products of states with a block's rows of the weights, which stay in shared memory.

The elements that a product is summed over are dealt out to the warps, a piece of 16 bytes in turn;
a warp adds up its share for a tile of rows, and the shares of all warps are added in their order.
The order of a sum follows from the width alone, not from the rows that are made beside it.

A thread multiplies with some columns of the block's weights at a time: those of all gates of a unit
or, where there is one gate, those of some units. Their numbers, for one element of the state after
the other, are cut into 16 bytes, and those of all threads that share a row lie beside each other.
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
from numnorm.backends.cuda.threads.group_reductions import WARP

# How many weights a thread asks for before it waits for the first.
_AT_ONCE = 32


def make_padded(element: ElementType) -> Any:
    """Return a device function: how many elements a product is summed over, with zeros."""
    vector = element.vector
    return device(lambda width: (width + vector - 1) // vector * vector)


def make_take_weights(gates: int, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function ``take_weights(memory, weights, first, width)``.

    It copies a slice, whose first unit is given, of the weights ``(gates * width, width)``; what
    is not there becomes 0.
    """
    load_one, store, as_tuple = (
        make_load_one(element),
        make_store(element, shared=True),
        make_as_tuple(element),
    )
    threads, vector, compute_type = shape.threads, element.vector, element.compute_type
    padded_of, zero = make_padded(element), constant(element, 0.0)
    # Of a thread's columns either all are of one unit, or each is of the next one.
    columns, units_of, gates_of = (gates, 0, 1) if gates > 1 else (COLUMNS, 1, 0)
    lanes = shape.units * gates // columns
    lane_units = shape.units // lanes
    # So many elements of the state have weights that fill 16 bytes, or several times that.
    each = vector // math.gcd(columns, vector)
    numbers = each * columns
    together = min(lanes, 1 << (_AT_ONCE // numbers).bit_length() - 1)
    size = together * numbers

    @device
    def take_weights(memory, weights, first, width):
        values = cuda.local.array(size, compute_type)
        pad_packed = padded_of(width)
        for some in range(0, lanes, together):
            at = cuda.threadIdx.x * each
            while at < pad_packed:
                # All are asked for before the first is stored.
                for n in range(size):
                    lane, k, column = some + n // numbers, at + n % numbers // columns, n % columns
                    unit = first + lane * lane_units + column * units_of
                    active = unit < width and k < width
                    place = (column * gates_of * width + unit) * width + k
                    values[n] = load_one(weights, place) if active else zero
                for n in range(0, size, vector):
                    lane, number = some + n // numbers, at * columns + n % numbers
                    store(memory, number * lanes + lane * vector, as_tuple(values, n))
                at += threads * each

    return take_weights


def _make_stage(element: ElementType, shape: SliceShape) -> Any:
    """Return a device function ``stage(smem, state, first, rows, width, pitch)``.

    It copies the first so many of a tile's rows, the first of which is given, and zeros for the
    others. A warp copies whole rows.
    """
    load, load_one = make_load(element), make_load_one(element)
    store, store_one = make_store(element, shared=True), make_store_one(element, shared=True)
    as_tuple, vector, zero = make_as_tuple(element), element.vector, constant(element, 0.0)
    each, warps, tile = -(-shape.tile // shape.warps), shape.warps, shape.tile
    compute_type, padded_of = element.compute_type, make_padded(element)

    @device
    def by_pieces(smem, state, first, rows, width, pitch):
        nothing = cuda.local.array(vector, compute_type)
        for j in range(vector):
            nothing[j] = zero
        none = as_tuple(nothing, 0)
        warp, at = cuda.threadIdx.x // WARP, cuda.threadIdx.x % WARP * vector
        while at < width:
            for n in range(each):
                row = warp + n * warps
                if row < tile:
                    found = load(state, (first + row) * width + at) if row < rows else none
                    store(smem, row * pitch + at, found)
            at += WARP * vector

    @device
    def one_by_one(smem, state, first, rows, width, pitch):
        warp, at, pad_packed = cuda.threadIdx.x // WARP, cuda.threadIdx.x % WARP, padded_of(width)
        while at < pad_packed:
            for n in range(each):
                row = warp + n * warps
                if row < tile:
                    active = row < rows and at < width
                    found = load_one(state, (first + row) * width + at) if active else zero
                    store_one(smem, row * pitch + at, found)
            at += WARP

    return by_pieces if shape.whole else one_by_one


def _make_multiply(columns: int, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function ``multiply(memory, smem, inv_counts, width, pitch)``.

    Each warp leaves its share of the products of a tile with all columns of the slice.
    """
    load, store = make_load(element, shared=True), _make_store_share(columns, element)
    vector, units, rows, tile = element.vector, shape.units, shape.rows, shape.tile
    warps, apart = shape.warps, WARP // shape.units
    compute_type, zero, padded_of = (
        element.compute_type,
        constant(element, 0.0),
        make_padded(element),
    )
    of_rows, of_piece = rows * columns, vector * columns

    @device
    def multiply(memory, smem, inv_counts, width, pitch):
        sums = cuda.local.array(of_rows, compute_type)
        weights = cuda.local.array(of_piece, compute_type)
        for n in range(of_rows):
            sums[n] = zero
        warp, lane = cuda.threadIdx.x // WARP, cuda.threadIdx.x % WARP
        unit, row, pad_packed = lane % units, lane // units, padded_of(width)
        at, mine = warp * vector, unit * vector
        while at < pad_packed:
            for n in range(0, of_piece, vector):
                found = load(memory, at * (columns * units) + mine + n * units)
                for j in range(vector):
                    weights[n + j] = found[j]
            for n in range(rows):
                found = load(smem, (row + n * apart) * pitch + at)
                for j in range(vector):
                    for column in range(columns):
                        sums[n * columns + column] += found[j] * weights[j * columns + column]
            at += warps * vector
        for n in range(rows):
            place = ((warp * tile + row + n * apart) * units + unit) * columns
            store(inv_counts, place, sums, n * columns)

    return multiply


def _make_store_share(columns: int, element: ElementType) -> Any:
    """Return a device function ``store_share(inv_counts, place, sums, first)`` of so many sums."""
    store, store_one = make_store(element, shared=True), make_store_one(element, shared=True)
    vector, as_tuple = element.vector, make_as_tuple(element)

    @device
    def at_once(inv_counts, place, sums, first):
        for part in range(0, columns, vector):
            store(inv_counts, place + part, as_tuple(sums, first + part))

    @device
    def one_by_one(inv_counts, place, sums, first):
        for n in range(columns):
            store_one(inv_counts, place + n, sums[first + n])

    return one_by_one if columns % vector else at_once


def _make_add_up(gates: int, units: int, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function ``add_up(inv_counts, row, unit, products)`` of all warps' shares.

    A row has so many units, each with so many products.
    """
    load, load_one = make_load(element, shared=True), make_load_one(element, shared=True)
    zero, vector = constant(element, 0.0), element.vector
    warps, tile = shape.warps, shape.tile

    @device
    def at_once(inv_counts, row, unit, products):
        for gate in range(gates):
            products[gate] = zero
        for warp in range(warps):
            place = ((warp * tile + row) * units + unit) * gates
            for part in range(0, gates, vector):
                found = load(inv_counts, place + part)
                for j in range(vector):
                    products[part + j] += found[j]

    @device
    def one_by_one(inv_counts, row, unit, products):
        for gate in range(gates):
            products[gate] = zero
            for warp in range(warps):
                place = ((warp * tile + row) * units + unit) * gates
                products[gate] += load_one(inv_counts, place + gate)

    return one_by_one if gates % vector else at_once


def make_slice_products(gates: int, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function ``products_of(memory, state, first, rows, width, products)``.

    A thread gets the products of all gates of its unit with its own row of the block's, the first
    of which is given, of an array ``(., width)``; 0 for a row behind the last of so many rows.
    All threads of a block take part. The weights are in the memory already, or come there before
    the first barrier.
    """
    if gates == 1:
        return make_column_products(element, shape)
    return _make_products(gates, gates, element, shape, shape.units)


def _make_products(
    count: int, columns: int, element: ElementType, shape: SliceShape, units: int
) -> Any:
    """Return `make_slice_products`' function, for so many products of a thread.

    A thread multiplies with so many columns at a time; a row has so many `units`, each a thread.
    """
    add_up = _make_add_up(count, units, element, shape)
    stage, multiply = _make_stage(element, shape), _make_multiply(columns, element, shape)
    padded_of, tile, zero = make_padded(element), shape.tile, constant(element, 0.0)
    vector, size, groups = element.vector, element.itemsize, shape.units

    @device
    def products_of(memory, state, first, rows, width, products):
        unit, row = cuda.threadIdx.x % units, cuda.threadIdx.x // units
        pad_packed = padded_of(width)
        pitch = pad_packed + vector  # so that the rows of a tile lie in different banks
        smem = memory + pad_packed * (groups * columns * size)
        inv_counts = smem + pitch * (tile * size)
        for n in range(count):
            products[n] = zero
        start = 0
        while start < rows:
            stage(smem, state, first + start, rows - start, width, pitch)
            cuda.syncthreads()
            multiply(memory, smem, inv_counts, width, pitch)
            cuda.syncthreads()
            if start <= row and row < start + tile:
                add_up(inv_counts, row - start, unit, products)
            start += tile

    return products_of


# Products with the columns of a slice's units, which take the other way through the weights


def make_take_columns(element: ElementType, shape: SliceShape) -> Any:
    """Return a device function ``take_columns(memory, weights, first, rows, width)``.

    It copies the columns of a slice's units, from its first on, of the weights ``(rows, width)``,
    row by row; what is not there becomes 0.
    """
    load_one, store_one = make_load_one(element), make_store_one(element, shared=True)
    zero, padded_of, vector = constant(element, 0.0), make_padded(element), element.vector
    units, teams, lanes = shape.units, shape.teams, shape.units // COLUMNS

    @device
    def take_columns(memory, weights, first, rows, width):
        unit, row = cuda.threadIdx.x % units, cuda.threadIdx.x // units
        lane, column, pad_packed = unit // COLUMNS, unit % COLUMNS, padded_of(rows)
        behind = (column // vector * lanes + lane) * vector + column % vector
        while row < pad_packed:
            active = first + unit < width and row < rows
            value = load_one(weights, row * width + first + unit) if active else zero
            store_one(memory, row * units + behind, value)
            row += teams

    return take_columns


def make_column_products(element: ElementType, shape: SliceShape) -> Any:
    """Return the like of `make_slice_products` for the columns, one product of each thread."""
    return _make_products(1, COLUMNS, element, shape.turned, shape.units)


def make_pass_on(gates: int, element: ElementType, shape: SliceShape) -> Any:
    """Return a device function of what the states of a step get through the products behind it.

    ``pass_on(memory, dz, start, rows, first, row, column, width, product)``: of so many of the
    block's rows, from its first on, of a step whose rows begin at the start of ``dz (., gates *
    width)``. A thread stores that of its row and column; a negative row is none.
    """
    products_of, store_one = make_column_products(element, shape), make_store_one(element)
    compute_type = element.compute_type

    @device
    def pass_on(memory, dz, start, rows, first, row, column, width, product):
        found = cuda.local.array(1, compute_type)
        products_of(memory, dz, start + first, rows, gates * width, found)
        if row >= 0 and column < width and row - first < rows:
            store_one(product, row * width + column, found[0])

    return pass_on
