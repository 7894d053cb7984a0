"""What reaches the products of a step of a recurrent cell, through the norms of its gates."""

import dataclasses
from typing import Any

from numnorm.backends.contract.norms import Norm
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import constant, cuda, device
from numnorm.backends.cuda.recurrent.common.cell_norm import NUMBERS, Parts, gain_of
from numnorm.backends.cuda.statistics.saved import make_means
from numnorm.backends.cuda.threads.group_reductions import SumsOf
from numnorm.backends.cuda.threads.row_columns import (
    make_column_weight,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape
from numnorm.backends.formulas.norms import input_gradient


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Which gates of each product are normalized.

    Parameters
    ----------
    gates : int
        How many gates a row of a product has.
    first, count : int
        The first of these, and how many they are.
    shared : bool
        Whether the same reaches those of both products.
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
    stretch: Stretch,
    sums_of: SumsOf,
) -> Any:
    """Return a device function that stores the gradients of a row's products.

    ``norm_backward(grads, values, found, weights, numbers, coefficients, smem, dz, dxp, row, width, at,
    limit)``: the slopes are those of what the norm makes of it, the values are normalized already,
    both in sections of a thread's units: the gates of the product with the state, and then of that
    with x. The weights are the gammas of both.
    """
    if norm is None:

        @device
        def nothing(
            grads, values, found, weights, numbers, coefficients, smem, dz, dxp, row, width, at, limit
        ):  # fmt: skip
            pass

        return nothing
    compute_type, both = element.compute_type, 2 * parts.count
    add_up, write = (
        make(norm, element, shape, parts, stretch)
        for make in (make_gate_norm_coefficients, make_gate_norm_gradient)
    )
    row_sums = sums_of(both)

    @device
    def norm_backward(
        grads, values, found, weights, numbers, coefficients, smem, dz, dxp, row, width, at, limit
    ):  # fmt: skip
        sums = cuda.local.array(both, compute_type)
        add_up(grads, values, weights, numbers, width, at, sums)
        row_sums(sums, smem)
        write(
            grads, values, found, sums, weights, numbers, coefficients, dz, dxp, row, width, at, limit
        )  # fmt: skip

    return norm_backward


def make_gate_norm_coefficients(
    norm: Norm, element: ElementType, shape: RowShape, parts: Parts, stretch: Stretch
) -> Any:
    """Return a device function of a thread's share of the sums: two for each part.

    ``add_up(grads, values, weights, numbers, width, at, sums)``
    """
    columns, zero = row_columns(element, shape), constant(element, 0.0)
    compute_type, slots, count, size = (
        element.compute_type,
        columns.slots,
        parts.count,
        parts.sections,
    )
    gain_at = make_column_weight(element, gain_of(norm, element), columns)
    backward, both, sections = device(norm.formula.backward), 2 * count, count * size
    start, each = stretch.first, stretch.count
    held = each if stretch.shared else sections

    @device
    def add_up(grads, values, weights, numbers, width, at, sums):
        gain = cuda.local.array(slots, compute_type)
        for n in range(both):
            sums[n] = zero
        for section in range(sections):
            gate, n = start + section % each, section // size
            gain_at(weights[section // each], numbers[0], gate * width, at, width, gain)
            for k in range(slots):
                xhat = values[section * slots + k]
                grad = backward(grads[section % held * slots + k], xhat, gain[k], numbers[1])
                sums[n] += grad
                sums[count + n] += grad * xhat

    return add_up


def make_gate_norm_gradient(
    norm: Norm, element: ElementType, shape: RowShape, parts: Parts, stretch: Stretch
) -> Any:
    """Return a device function that stores the gradients, once there are the sums of the row.

    ``write_gradient(grads, values, found, sums, weights, numbers, coefficients, dz, dxp, row, width, at,
    limit)``
    """
    columns, compute_type = row_columns(element, shape), element.compute_type
    slots, count, size = columns.slots, parts.count, parts.sections
    gain_at = make_column_weight(element, gain_of(norm, element), columns)
    write, means_of = make_write_columns(element, columns), make_means(element)
    backward, gradient = device(norm.formula.backward), device(input_gradient)
    gates, start, each, sections = stretch.gates, stretch.first, stretch.count, count * size
    held = each if stretch.shared else sections

    @device
    def write_gradient(
        grads, values, found, sums, weights, numbers, coefficients, dz, dxp, row, width, at, limit
    ):  # fmt: skip
        gain = cuda.local.array(slots, compute_type)
        for section in range(sections):
            gate, n = start + section % each, section // size
            scale, factor = found[n * NUMBERS], found[n * NUMBERS + 3]
            means = means_of(
                sums[n],
                sums[count + n],
                scale,
                factor,
                coefficients[0],
                coefficients[1],
                coefficients[2],
            )
            gain_at(weights[section // each], numbers[0], gate * width, at, width, gain)
            for k in range(slots):
                xhat = values[section * slots + k]
                grad = backward(grads[section % held * slots + k], xhat, gain[k], numbers[1])
                gain[k] = gradient(grad, xhat, means[0], means[1], factor) * scale
            write(dz if section < each else dxp, (row * gates + gate) * width, at, limit, gain)

    return write_gradient
