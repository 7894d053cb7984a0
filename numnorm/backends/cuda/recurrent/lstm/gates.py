"""What enters the gates of an LSTM: the products with x and with the state, normalized.

A thread holds the same units of every gate, so that the gates of a unit meet in one thread. Its
values are in sections of its units: the gates f, i, o and g of the product with the state and
then, where a norm is taken of each product, those of the product with x.
"""

from typing import Any

from numnorm.backends.contract.recurrent import LSTMForm
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import constant, cuda, device, make_load_one, tangent
from numnorm.backends.cuda.recurrent.common.cell_norm import Parts, gain_of
from numnorm.backends.cuda.threads.activations import make_sigmoid
from numnorm.backends.cuda.threads.row_columns import (
    make_column_weight,
    make_read_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape

GATES = 4


def gate_parts(form: LSTMForm) -> Parts:
    """Return what of a row's products is normalized together; no parts where there is no norm."""
    if form.gates is None:
        return Parts(0, GATES)
    return Parts(GATES, 1) if form.separate else Parts(2, GATES)


def sections(form: LSTMForm) -> int:
    """Return how many sections of its units a thread holds of the products."""
    return 2 * GATES if form.by_product else GATES


def places(form: LSTMForm) -> int:
    """Return how many statistics a row has, those of the cell last."""
    return gate_parts(form).count + (form.cell is not None)


def normalized_units(form: LSTMForm, units: int) -> int:
    """Return how many elements are normalized together on their way to the gates."""
    return units if form.separate else GATES * units


def make_read_products(form: LSTMForm, element: Element, shape: RowShape, *, summed: bool) -> Any:
    """Return a device function ``read_products(z, xp, row, width, at, limit, values)``.

    Where no norm is taken of each product, the values are their sum; `summed` if z is that already.
    Units from `limit` on become 0.
    """
    columns = row_columns(element, shape)
    read, slots, working = make_read_columns(element, columns), columns.slots, element.working

    @device
    def of_z(z, xp, row, width, at, limit, values):
        for gate in range(GATES):
            read(z, (row * GATES + gate) * width, at, limit, values[gate * slots :])

    @device
    def of_each(z, xp, row, width, at, limit, values):
        of_z(z, xp, row, width, at, limit, values)
        of_z(xp, z, row, width, at, limit, values[GATES * slots :])

    @device
    def of_sum(z, xp, row, width, at, limit, values):
        other = cuda.local.array(slots, working)
        of_z(z, xp, row, width, at, limit, values)
        for gate in range(GATES):
            read(xp, (row * GATES + gate) * width, at, limit, other)
            for k in range(slots):
                values[gate * slots + k] += other[k]

    if form.by_product:
        return of_each
    return of_z if summed else of_sum


def make_origins(form: LSTMForm, element: Element) -> Any:
    """Return a device function ``origins_of(z, xp, row, width, origins)``: a value of each part."""
    load_one = make_load_one(element)

    @device
    def of_each(z, xp, row, width, origins):
        first = row * GATES * width
        origins[0], origins[1] = load_one(z, first), load_one(xp, first)

    @device
    def of_gates(z, xp, row, width, origins):
        for gate in range(GATES):
            first = (row * GATES + gate) * width
            origins[gate] = load_one(z, first) + load_one(xp, first)

    return of_each if form.by_product else of_gates


def make_gates(form: LSTMForm, element: Element, shape: RowShape) -> Any:
    """Return a device function that makes gates of the normalized products.

    ``gates_of(values, weights, numbers, at, width, limit, gates)``: the weights are ``offset,
    gamma_h, gamma_x``, and the numbers stand for gamma and beta where there is no array of them.
    """
    columns, working, zero = (
        row_columns(element, shape),
        element.working,
        constant(element, 0.0),
    )
    slots, by_product = columns.slots, form.by_product
    offset_of = make_column_weight(element, element, columns)
    gain = make_column_weight(element, gain_of(form.gates, element), columns)
    apply = device(form.gates.formula.forward if form.gates else lambda xhat, g, b: xhat)
    sigmoid, tanh = make_sigmoid(element), tangent(element)

    @device
    def gates_of(values, weights, numbers, at, width, limit, gates):
        offset, gamma_h, gamma_x = weights
        weight = cuda.local.array(slots, working)
        total = cuda.local.array(slots, working)
        for gate in range(GATES):
            offset_of(offset, zero, gate * width, at, limit, total)
            gain(gamma_h, numbers[0], gate * width, at, limit, weight)
            for k in range(slots):
                total[k] += apply(values[gate * slots + k], weight[k], numbers[1])
            if by_product:
                gain(gamma_x, numbers[0], gate * width, at, limit, weight)
                for k in range(slots):
                    of_x = values[(GATES + gate) * slots + k]
                    total[k] += apply(of_x, weight[k], numbers[1])
            for k in range(slots):
                gates[gate * slots + k] = tanh(total[k]) if gate == 3 else sigmoid(total[k])

    return gates_of
