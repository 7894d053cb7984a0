"""Products of states with a block's rows of the weights, which stay in shared memory.

The elements that a product is summed over are dealt out to the warps, a piece of 16 bytes in turn;
a warp adds up its share for a tile of rows, and the shares of all warps are added in their order.
The order of a sum follows from the width alone, not from the rows that are made beside it.
"""

from typing import Any

from numnorm.backends.cuda.elements import Element
from numnorm.backends.cuda.persistent_plans import COLUMNS, SliceShape
from numnorm.backends.cuda.pieces import make_as_tuple
from numnorm.backends.cuda.target import (
    constant,
    cuda,
    device,
    make_load,
    make_load_one,
    make_store,
    make_store_one,
)
from numnorm.backends.cuda.team_sums import WARP


def make_padded(element: Element) -> Any:
    """Return a device function: how many elements a product is summed over, with zeros."""
    vector = element.vector
    return device(lambda width: (width + vector - 1) // vector * vector)


def make_take_weights(gates: int, element: Element, shape: SliceShape) -> Any:
    """Return a device function ``take_weights(memory, weights, first, width)``.

    It copies a slice, whose first unit is given, of the weights ``(gates * width, width)``; what
    is not there becomes 0. All gates of a unit lie beside each other, and then all units, of each
    element of the state.
    """
    load_one, store, as_tuple = (
        make_load_one(element),
        make_store(element, shared=True),
        make_as_tuple(element),
    )
    units, threads, vector, working = shape.units, shape.threads, element.vector, element.working
    padded_of, zero = make_padded(element), constant(element, 0.0)

    @device
    def take_weights(memory, weights, first, width):
        values = cuda.local.array(gates, working)
        padded = padded_of(width)
        for unit in range(units):
            k = cuda.threadIdx.x
            while k < padded:
                there = first + unit < width and k < width
                for gate in range(gates):
                    place = (gate * width + first + unit) * width + k
                    values[gate] = load_one(weights, place) if there else zero
                for part in range(0, gates, vector):
                    store(memory, (k * units + unit) * gates + part, as_tuple(values, part))
                k += threads

    return take_weights


def _make_stage(element: Element, shape: SliceShape) -> Any:
    """Return a device function ``stage(room, state, first, rows, width, pitch)``.

    It copies the first so many of a tile's rows, the first of which is given, and zeros for the
    others. A warp copies whole rows.
    """
    load, load_one = make_load(element), make_load_one(element)
    store, store_one = make_store(element, shared=True), make_store_one(element, shared=True)
    as_tuple, vector, zero = make_as_tuple(element), element.vector, constant(element, 0.0)
    each, warps, tile = -(-shape.tile // shape.warps), shape.warps, shape.tile
    working, padded_of = element.working, make_padded(element)

    @device
    def by_pieces(room, state, first, rows, width, pitch):
        nothing = cuda.local.array(vector, working)
        for j in range(vector):
            nothing[j] = zero
        none = as_tuple(nothing, 0)
        warp, at = cuda.threadIdx.x // WARP, cuda.threadIdx.x % WARP * vector
        while at < width:
            for n in range(each):
                row = warp + n * warps
                if row < tile:
                    found = load(state, (first + row) * width + at) if row < rows else none
                    store(room, row * pitch + at, found)
            at += WARP * vector

    @device
    def one_by_one(room, state, first, rows, width, pitch):
        warp, at, padded = cuda.threadIdx.x // WARP, cuda.threadIdx.x % WARP, padded_of(width)
        while at < padded:
            for n in range(each):
                row = warp + n * warps
                if row < tile:
                    there = row < rows and at < width
                    found = load_one(state, (first + row) * width + at) if there else zero
                    store_one(room, row * pitch + at, found)
            at += WARP

    return by_pieces if shape.whole else one_by_one


def _make_multiply(gates: int, element: Element, shape: SliceShape) -> Any:
    """Return a device function ``multiply(memory, room, shares, width, pitch)``.

    Each warp leaves its share of the products of a tile with all units of the slice.
    """
    load, store = make_load(element, shared=True), make_store(element, shared=True)
    vector, units, rows, tile = element.vector, shape.units, shape.rows, shape.tile
    warps, apart, as_tuple = shape.warps, WARP // shape.units, make_as_tuple(element)
    working, zero, padded_of = element.working, constant(element, 0.0), make_padded(element)
    of_rows, of_piece = rows * gates, vector * gates

    @device
    def multiply(memory, room, shares, width, pitch):
        sums = cuda.local.array(of_rows, working)
        weights = cuda.local.array(of_piece, working)
        for n in range(of_rows):
            sums[n] = zero
        warp, lane = cuda.threadIdx.x // WARP, cuda.threadIdx.x % WARP
        unit, row, padded = lane % units, lane // units, padded_of(width)
        at = warp * vector
        while at < padded:
            for n in range(0, of_piece, vector):
                place = ((at + n // gates) * units + unit) * gates + n % gates
                found = load(memory, place)
                for j in range(vector):
                    weights[n + j] = found[j]
            for n in range(rows):
                found = load(room, (row + n * apart) * pitch + at)
                for j in range(vector):
                    for gate in range(gates):
                        sums[n * gates + gate] += found[j] * weights[j * gates + gate]
            at += warps * vector
        for n in range(rows):
            place = ((warp * tile + row + n * apart) * units + unit) * gates
            for part in range(0, gates, vector):
                store(shares, place + part, as_tuple(sums, n * gates + part))

    return multiply


def _make_add_up(gates: int, element: Element, shape: SliceShape) -> Any:
    """Return a device function ``add_up(shares, row, unit, products)`` of all warps' shares."""
    load, zero, vector = make_load(element, shared=True), constant(element, 0.0), element.vector
    warps, tile, units = shape.warps, shape.tile, shape.units

    @device
    def add_up(shares, row, unit, products):
        for gate in range(gates):
            products[gate] = zero
        for warp in range(warps):
            place = ((warp * tile + row) * units + unit) * gates
            for part in range(0, gates, vector):
                found = load(shares, place + part)
                for j in range(vector):
                    products[part + j] += found[j]

    return add_up


def make_slice_products(gates: int, element: Element, shape: SliceShape) -> Any:
    """Return a device function ``products_of(memory, state, first, rows, width, products)``.

    A thread gets the products of all gates of its unit with its own row of the block's, the first
    of which is given, of an array ``(., width)``; 0 for a row behind the last of so many rows.
    All threads of a block take part. The weights are in the memory already, or come there before
    the first barrier.
    """
    add_up = _make_add_up(gates, element, shape)
    return _make_products(gates, element, shape, shape.units, gates, add_up)


def _make_products(
    count: int, element: Element, shape: SliceShape, units: int, columns: int, add_up: Any
) -> Any:
    """Return `make_slice_products`' function, for so many products of a thread.

    A thread multiplies with so many columns at a time; a row has so many `units`, each a thread.
    """
    stage, multiply = _make_stage(element, shape), _make_multiply(columns, element, shape)
    padded_of, tile, zero = make_padded(element), shape.tile, constant(element, 0.0)
    vector, size, groups = element.vector, element.itemsize, shape.units

    @device
    def products_of(memory, state, first, rows, width, products):
        unit, row = cuda.threadIdx.x % units, cuda.threadIdx.x // units
        padded = padded_of(width)
        pitch = padded + vector  # so that the rows of a tile lie in different banks
        room = memory + padded * (groups * columns * size)
        shares = room + pitch * (tile * size)
        for n in range(count):
            products[n] = zero
        start = 0
        while start < rows:
            stage(room, state, first + start, rows - start, width, pitch)
            cuda.syncthreads()
            multiply(memory, room, shares, width, pitch)
            cuda.syncthreads()
            if start <= row and row < start + tile:
                add_up(shares, row - start, unit, products)
            start += tile

    return products_of


# Products with the columns of a slice's units, which take the other way through the weights


def make_take_columns(element: Element, shape: SliceShape) -> Any:
    """Return a device function ``take_columns(memory, weights, first, rows, width)``.

    It copies the columns of a slice's units, from its first on, of the weights ``(rows, width)``,
    row by row; what is not there becomes 0.
    """
    load_one, store_one = make_load_one(element), make_store_one(element, shared=True)
    units, teams, zero, padded_of = (
        shape.units,
        shape.teams,
        constant(element, 0.0),
        make_padded(element),
    )

    @device
    def take_columns(memory, weights, first, rows, width):
        unit, row = cuda.threadIdx.x % units, cuda.threadIdx.x // units
        padded = padded_of(rows)
        while row < padded:
            there = first + unit < width and row < rows
            value = load_one(weights, row * width + first + unit) if there else zero
            store_one(memory, row * units + unit, value)
            row += teams

    return take_columns


def make_column_products(element: Element, shape: SliceShape) -> Any:
    """Return the like of `make_slice_products` for the columns, one product of each thread."""
    load_one, zero = make_load_one(element, shared=True), constant(element, 0.0)
    units, turned = shape.units, shape.turned
    warps, tile = turned.warps, turned.tile

    @device
    def add_up(shares, row, unit, products):
        products[0] = zero
        for warp in range(warps):
            products[0] += load_one(shares, (warp * tile + row) * units + unit)

    return _make_products(1, element, turned, units, COLUMNS, add_up)
