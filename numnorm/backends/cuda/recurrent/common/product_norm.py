"""The inputs of a cell's gates: the products W_h h with the state (z) and W_x x (xp), normalized.

A thread holds the same units of every gate, so all gates of a unit are in one thread. Its array
``values`` has a section of its units for each gate of z and, if each product has its own norm, then
for each gate of xp. The device functions take the groups of `step_parameters`.
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
    make_load_statistics,
    make_normalize,
    make_store_statistics,
)
from numnorm.backends.cuda.recurrent.common.gate_norm_gradient import GateRange
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
        The parts of a thread's values that are normalized.
    gates : GateRange
        The gates of these values.
    norm_each_product : bool
        Whether each product is normalized, else their sum.
    sites : int
        The number of sites in a row of the table of statistics.
    place, distance : int
        The first part's site in the table, and the distance from one part's site to the next.
    """

    norm: Norm | None
    parts: Parts
    gates: GateRange
    norm_each_product: bool
    sites: int
    first_site: int = 0
    distance: int = 1

    @property
    def sections(self) -> int:
        """The number of sections that a thread holds."""
        return self.gates.count * (2 if self.norm_each_product else 1)


def make_read_products(
    of: ProductNorm, element: ElementType, shape: RowShape, *, summed: bool = False
) -> Any:
    """Return a device function ``read_products(products, span, values)``.

    Unless each product has its own norm, the values are ``z + xp``; `summed` says that z is the sum
    already.
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


def _make_pivots(of: ProductNorm, element: ElementType) -> Any:
    """Return a device function ``pivots_of(products, span, pivots)``.

    It stores one value of each part as its pivot, the same one for all threads of a row.
    """
    gates, start, count = of.gates.gates, of.gates.first, of.parts.count
    load_one = make_load_one(element)

    @device
    def of_each(products, span, pivots):
        first = (span.row * gates + start) * span.width
        pivots[0], pivots[1] = load_one(products.z, first), load_one(products.xp, first)

    @device
    def of_sum(products, span, pivots):
        for n in range(count):
            first = (span.row * gates + start + n) * span.width
            pivots[n] = load_one(products.z, first) + load_one(products.xp, first)

    return of_each if of.norm_each_product else of_sum


def _make_write_sums(of: ProductNorm, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``write_sums(sums, span, values)``.

    It stores the values ``z + xp`` in the array at the address `sums`, unless the address is 0 (no
    array) or each product has its own norm.
    """
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

    It normalizes the values that `read_products` read, and saves the sums and the statistics of
    `StepSaved`. `scaling` and `smem` are as in `cell_norm`.
    """
    write_sums = _make_write_sums(of, element, shape)
    if of.norm is None:

        @device
        def plain(products, saved, span, values, scaling, smem):
            write_sums(saved.sums, span, values)

        return plain
    count, numbers, compute_type = of.parts.count, of.parts.count * NUMBERS, element.compute_type
    sites, first_site, distance = of.sites, of.first_site, of.distance
    statistics = make_cell_statistics(of.norm.formula, element, shape, of.parts)
    pivots_of, store_statistics = _make_pivots(of, element), make_store_statistics(element, 1)
    normalize = make_normalize(element, shape, of.parts)

    @device
    def normalize_products(products, saved, span, values, scaling, smem):
        stats = cuda.local.array(numbers, compute_type)
        pivots = cuda.local.array(count, compute_type)
        pivots_of(products, span, pivots)
        statistics(values, pivots, stats, span.at, span.width, scaling, smem)
        # Only now: the sums may overwrite the products, of which all threads have read the pivots.
        write_sums(saved.sums, span, values)
        if span.limit > 0 and saved.table != 0 and span.at == 0:
            for n in range(count):
                site = first_site + n * distance
                store_statistics(saved.table, span.row, sites, site, stats[n * NUMBERS :])
        normalize(values, stats, span.at, span.width)

    return normalize_products


def make_normalize_again(of: ProductNorm, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``normalize_again(table, span, values, stats)``.

    It loads the statistics from the table into `stats`, and normalizes the values by them.
    """
    if of.norm is None:
        return device(lambda table, span, values, stats: None)
    count, sites, first_site, distance = of.parts.count, of.sites, of.first_site, of.distance
    load_statistics = make_load_statistics(element, 1)
    normalize = make_normalize(element, shape, of.parts)

    @device
    def normalize_again(table, span, values, stats):
        for n in range(count):
            load_statistics(table, span.row, sites, first_site + n * distance, stats[n * NUMBERS :])
        normalize(values, stats, span.at, span.width)

    return normalize_again


def make_add_normalized(norm: Norm | None, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``add(values, gamma, numbers, first, at, limit, total)``.

    It adds the norm's result for one gate's normalized values to `total`, without the array beta,
    which is part of the bias. The gate's gamma begins at index `first`. `numbers` is `AdaNumbers`.
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
