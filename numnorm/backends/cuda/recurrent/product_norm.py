"""The inputs of a cell's gates: the products W_h h with the state (z) and W_x x (xp), normalized.

A thread holds the same units of every gate, so all gates of a unit are in one thread. Its array
``values`` has a section of its units for each gate of z and, if each product has its own norm, then
for each gate of xp. The device functions take the parameter groups of `step_kernels`.

Arguments that the device functions of the gradients share:

``grads``
    The gradients of the norms' results, in sections of the thread's units.
``values``
    The normalized products: the sections of the gates of z, then those of xp.
``stats``
    The statistics of the parts.
``gammas, ada, coefficients``
    The addresses of both products' gammas, `AdaNumbers` and `GradientCoefficients`.
``sums``
    For each part the sum of g, then for each part the sum of g * xhat; g is the gradient of xhat.
``span``
    The `RowSpan`, here as four arguments ``row, width, at, limit``.
"""

import dataclasses
from typing import Any

from numnorm.backends.contract.norms import Norm
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import constant, cuda, device, make_load_one
from numnorm.backends.cuda.recurrent.cell_norm import (
    NUMBERS,
    Parts,
    gain_of,
    make_cell_statistics,
    make_load_statistics,
    make_normalize,
    make_store_statistics,
)
from numnorm.backends.cuda.statistics.row_statistics import make_means
from numnorm.backends.cuda.threads.reductions import SumsOf
from numnorm.backends.cuda.threads.row_columns import (
    make_column_weight,
    make_read_columns,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape
from numnorm.backends.formulas.norms import input_gradient

# Gradients


@dataclasses.dataclass(frozen=True)
class GateRange:
    """The range of gates of each product that a norm takes.

    Parameters
    ----------
    gates : int
        The number of gates in a row of a product.
    first, count : int
        The first gate of the range, and the number of gates in it.
    shared : bool
        Whether both products' norms get the same gradients, so that `grads` has them once.
    """

    gates: int
    first: int
    count: int
    shared: bool = True


def make_gate_norm_backward(
    norm: Norm | None,
    element: ElementType,
    shape: RowShape,
    parts: Parts,
    gates: GateRange,
    sums_of: SumsOf,
) -> Any:
    """Return a device function that stores the gradients of a row's products.

    ``norm_backward(grads, values, stats, gammas, ada, coefficients, smem, dz, dxp, *span)``: `smem`
    is the shared memory of the sums, `dz` and `dxp` are the addresses of the results. Without a
    norm it does nothing.
    """
    if norm is None:

        @device
        def nothing(
            grads, values, stats, gammas, ada, coefficients, smem, dz, dxp, row, width, at, limit
        ):
            pass

        return nothing
    compute_type = element.compute_type
    both = 2 * parts.count
    add_up, write = (
        make(norm, element, shape, parts, gates)
        for make in (make_gate_norm_sums, make_gate_norm_gradient)
    )
    row_sums = sums_of(both)

    @device
    def norm_backward(
        grads, values, stats, gammas, ada, coefficients, smem, dz, dxp, row, width, at, limit
    ):
        sums = cuda.local.array(both, compute_type)
        add_up(grads, values, gammas, ada, width, at, sums)
        row_sums(sums, smem)
        write(grads, values, stats, sums, gammas, ada, coefficients, dz, dxp, row, width, at, limit)

    return norm_backward


def make_gate_norm_sums(
    norm: Norm, element: ElementType, shape: RowShape, parts: Parts, gates: GateRange
) -> Any:
    """Return a device function of the thread's part of the sums.

    ``add_up(grads, values, gammas, ada, width, at, sums)``
    """
    columns = row_columns(element, shape)
    zero = constant(element, 0.0)
    slots = columns.slots
    count, size = parts.count, parts.sections
    compute_type = element.compute_type
    gain_at = make_column_weight(element, gain_of(norm, element), columns)
    backward = device(norm.formula.backward)
    both, sections = 2 * count, count * size
    start, each = gates.first, gates.count
    grad_sections = each if gates.shared else sections

    @device
    def add_up(grads, values, gammas, ada, width, at, sums):
        gain = cuda.local.array(slots, compute_type)
        for n in range(both):
            sums[n] = zero
        for section in range(sections):
            gate, n = start + section % each, section // size
            gain_at(gammas[section // each], ada[0], gate * width, at, width, gain)
            for k in range(slots):
                xhat = values[section * slots + k]
                grad = backward(grads[section % grad_sections * slots + k], xhat, gain[k], ada[1])
                sums[n] += grad
                sums[count + n] += grad * xhat

    return add_up


def make_gate_norm_gradient(
    norm: Norm, element: ElementType, shape: RowShape, parts: Parts, gates: GateRange
) -> Any:
    """Return a device function that stores the gradients, from the sums over the row.

    ``write_gradient(grads, values, stats, sums, gammas, ada, coefficients, dz, dxp, *span)``
    """
    columns = row_columns(element, shape)
    compute_type = element.compute_type
    slots = columns.slots
    count, size = parts.count, parts.sections
    gain_at = make_column_weight(element, gain_of(norm, element), columns)
    write = make_write_columns(element, columns)
    means_of = make_means(element)
    backward, gradient = device(norm.formula.backward), device(input_gradient)
    all_gates, start, each = gates.gates, gates.first, gates.count
    sections = count * size
    grad_sections = each if gates.shared else sections

    @device
    def write_gradient(
        grads, values, stats, sums, gammas, ada, coefficients, dz, dxp, row, width, at, limit
    ):
        gain = cuda.local.array(slots, compute_type)
        inv_count, inv_divisor, eps_on_deviation = coefficients
        for section in range(sections):
            gate, n = start + section % each, section // size
            scale, factor = stats[n * NUMBERS], stats[n * NUMBERS + 3]
            means = means_of(
                sums[n], sums[count + n], scale, factor, inv_count, inv_divisor, eps_on_deviation
            )
            gain_at(gammas[section // each], ada[0], gate * width, at, width, gain)
            for k in range(slots):
                xhat = values[section * slots + k]
                grad = backward(grads[section % grad_sections * slots + k], xhat, gain[k], ada[1])
                gain[k] = gradient(grad, xhat, means[0], means[1], factor) * scale
            write(dz if section < each else dxp, (row * all_gates + gate) * width, at, limit, gain)

    return write_gradient


# Normalized products


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
    columns = row_columns(element, shape)
    compute_type = element.compute_type
    read = make_read_columns(element, columns)
    slots = columns.slots
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
    gates, start = of.gates.gates, of.gates.first
    count = of.parts.count
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
    columns = row_columns(element, shape)
    count = of.gates.count
    has_sums = not of.norm_each_product
    write = make_write_columns(element, columns)
    slots = columns.slots
    gates = of.gates.gates

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
    count = of.parts.count
    numbers = of.parts.count * NUMBERS
    compute_type = element.compute_type
    sites, first_site, distance = of.sites, of.first_site, of.distance
    statistics = make_cell_statistics(of.norm.formula, element, shape, of.parts)
    pivots_of = _make_pivots(of, element)
    store_statistics = make_store_statistics(element, 1)
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
    count = of.parts.count
    sites, first_site, distance = of.sites, of.first_site, of.distance
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
    columns = row_columns(element, shape)
    compute_type = element.compute_type
    gain = make_column_weight(element, gain_of(norm, element), columns)
    slots = columns.slots
    apply = device(norm.formula.forward if norm else lambda xhat, g, b: xhat)

    @device
    def add(values, gamma, numbers, first, at, limit, total):
        weight = cuda.local.array(slots, compute_type)
        gain(gamma, numbers[0], first, at, limit, weight)
        for k in range(slots):
            total[k] += apply(values[k], weight[k], numbers[1])

    return add
