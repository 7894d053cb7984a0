"""What enters the gates of a cell: the products with x and with the state, normalized.

A thread holds the same units of every gate, so that the gates of a unit meet in one thread. Its
values are in sections of its units: the gates of the product with the state and then, where a norm
is taken of each product, those of the product with x.
"""

import dataclasses
from typing import Any

from numnorm.backends.contract.norms import Norm
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import cuda, device, make_load_one
from numnorm.backends.cuda.recurrent.common.cell_norm import (
    NUMBERS,
    Parts,
    gain_of,
    make_cell_statistics,
    make_keep_statistics,
    make_kept_statistics,
    make_normalize,
)
from numnorm.backends.cuda.recurrent.common.gate_norm_gradient import Stretch
from numnorm.backends.cuda.threads.row_columns import (
    make_column_weight,
    make_read_columns,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape


@dataclasses.dataclass(frozen=True)
class ProductNorm:
    """A norm of some gates of the products.

    Parameters
    ----------
    norm : Norm or None
    parts : Parts
        What of a thread's values is normalized together.
    gates : Stretch
        Which gates these are.
    by_product : bool
        Whether it is taken of each product, else of their sum.
    places : int
        How many statistics a row of the table has.
    place, distance : int
        Where the table has those of the first part, and how far behind those of each next one.
    """

    norm: Norm | None
    parts: Parts
    gates: Stretch
    norm_each_product: bool
    sites: int
    place: int = 0
    distance: int = 1

    @property
    def sections(self) -> int:
        """How many sections of its units a thread holds."""
        return self.gates.count * (2 if self.norm_each_product else 1)


def make_read_products(
    of: ProductNorm, element: ElementType, shape: RowShape, *, summed: bool = False
) -> Any:
    """Return a device function ``read_products(products, span, values)``.

    Where no norm is taken of each product, the values are their sum; `summed` if z is that already.
    """
    columns, compute_type = row_columns(element, shape), element.compute_type
    read, slots = make_read_columns(element, columns), columns.slots
    gates, start, count = of.gates.gates, of.gates.first, of.gates.count

    @device
    def of_array(array, span, values):
        for gate in range(count):
            first = (span.row * gates + start + gate) * span.width
            read(array, first, span.at, span.width, values[gate * slots :])

    @device
    def of_z(products, span, values):
        of_array(products.z, span, values)

    @device
    def of_each(products, span, values):
        of_array(products.z, span, values)
        of_array(products.xp, span, values[count * slots :])

    @device
    def of_sum(products, span, values):
        other = cuda.local.array(slots, compute_type)
        of_array(products.z, span, values)
        for gate in range(count):
            first = (span.row * gates + start + gate) * span.width
            read(products.xp, first, span.at, span.width, other)
            for k in range(slots):
                values[gate * slots + k] += other[k]

    if of.norm_each_product:
        return of_each
    return of_z if summed else of_sum


def _make_origins(of: ProductNorm, element: ElementType) -> Any:
    """Return a device function ``origins_of(products, span, origins)``: a value of each part."""
    load_one, gates, start, count = (
        make_load_one(element),
        of.gates.gates,
        of.gates.first,
        of.parts.count,
    )

    @device
    def of_each(products, span, origins):
        first = (span.row * gates + start) * span.width
        origins[0], origins[1] = load_one(products.z, first), load_one(products.xp, first)

    @device
    def of_sum(products, span, origins):
        for n in range(count):
            first = (span.row * gates + start + n) * span.width
            origins[n] = load_one(products.z, first) + load_one(products.xp, first)

    return of_each if of.norm_each_product else of_sum


def _make_write_sums(of: ProductNorm, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``write_sums(sums, span, values)``, unless there are none."""
    columns, count, has_sums = row_columns(element, shape), of.gates.count, not of.norm_each_product
    write, slots, gates = make_write_columns(element, columns), columns.slots, of.gates.gates

    @device
    def write_sums(sums, span, values):
        if has_sums and sums != 0:
            for gate in range(count):
                first = (span.row * gates + gate) * span.width
                write(sums, first, span.at, span.limit, values[gate * slots :])

    return write_sums


def make_normalize_products(of: ProductNorm, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``normalize(products, saved, span, values, scaling, smem)``.

    It normalizes what was read of the products, and saves their sums and the statistics.
    """
    write_sums = _make_write_sums(of, element, shape)
    if of.norm is None:

        @device
        def plain(products, saved, span, values, scaling, smem):
            write_sums(saved.sums, span, values)

        return plain
    count, numbers, compute_type = of.parts.count, of.parts.count * NUMBERS, element.compute_type
    statistics = make_cell_statistics(of.norm.formula, element, shape, of.parts)
    origins_of, keep = _make_origins(of, element), make_keep_statistics(element, 1)
    normalize, sites = make_normalize(element, shape, of.parts), of.sites
    place, distance = of.place, of.distance

    @device
    def normalize_products(products, saved, span, values, scaling, smem):
        found = cuda.local.array(numbers, compute_type)
        origins = cuda.local.array(count, compute_type)
        origins_of(products, span, origins)
        statistics(values, origins, found, span.at, span.width, scaling, smem)
        # Not before: the sums may be written over the products that all threads have origins of.
        write_sums(saved.sums, span, values)
        if span.limit > 0 and saved.table != 0 and span.at == 0:
            for n in range(count):
                keep(saved.table, span.row, sites, place + n * distance, found[n * NUMBERS :])
        normalize(values, found, span.at, span.width)

    return normalize_products


def make_normalize_again(of: ProductNorm, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``normalize_again(table, span, values, found)``.

    It normalizes what was read of the products, and finds their statistics.
    """
    if of.norm is None:
        return device(lambda table, span, values, found: None)
    kept, normalize = make_kept_statistics(element, 1), make_normalize(element, shape, of.parts)
    count, sites, place, distance = of.parts.count, of.sites, of.place, of.distance

    @device
    def normalize_again(table, span, values, found):
        for n in range(count):
            kept(table, span.row, sites, place + n * distance, found[n * NUMBERS :])
        normalize(values, found, span.at, span.width)

    return normalize_again


def make_add_normalized(norm: Norm | None, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``add(values, gamma, numbers, first, at, limit, total)``.

    It adds what a norm makes of one gate's normalized values, whose gamma begins at `first`. The
    numbers stand for gamma and beta where there is no array of them.
    """
    columns, compute_type = row_columns(element, shape), element.compute_type
    gain, slots = make_column_weight(element, gain_of(norm, element), columns), columns.slots
    apply = device(norm.formula.forward if norm else lambda xhat, g, b: xhat)

    @device
    def add(values, gamma, numbers, first, at, limit, total):
        weight = cuda.local.array(slots, compute_type)
        gain(gamma, numbers[0], first, at, limit, weight)
        for k in range(slots):
            total[k] += apply(values[k], weight[k], numbers[1])

    return add
