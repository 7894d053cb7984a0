"""The gradients of the products of a recurrent cell's step, through the norms of its gates.

Arguments that the device functions share:

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
    compute_type, both = element.compute_type, 2 * parts.count
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
    columns, zero = row_columns(element, shape), constant(element, 0.0)
    slots, count, size = columns.slots, parts.count, parts.sections
    compute_type = element.compute_type
    gain_at = make_column_weight(element, gain_of(norm, element), columns)
    backward, both, sections = device(norm.formula.backward), 2 * count, count * size
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
    columns, compute_type = row_columns(element, shape), element.compute_type
    slots, count, size = columns.slots, parts.count, parts.sections
    gain_at = make_column_weight(element, gain_of(norm, element), columns)
    write, means_of = make_write_columns(element, columns), make_means(element)
    backward, gradient = device(norm.formula.backward), device(input_gradient)
    all_gates, start, each, sections = gates.gates, gates.first, gates.count, count * size
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
