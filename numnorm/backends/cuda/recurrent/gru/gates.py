"""The gates of a gated recurrent unit, and what enters them: the products, normalized.

A row of a product has z, r and the rest, one after the other: z and r are normalized together. A
thread holds the same units of each, in sections: z and r of the product with the state, then of
that with x; and apart from them the rest of both.
"""

from typing import Any

from numnorm.backends.contract.recurrent import GRUForm
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import constant, cuda, device, tangent
from numnorm.backends.cuda.recurrent.common.cell_norm import Parts, gain_of
from numnorm.backends.cuda.threads.activations import make_sigmoid
from numnorm.backends.cuda.threads.row_columns import (
    make_column_weight,
    make_read_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape

GATES = 3
OF_GATES, OF_REST = Parts(2, 2), Parts(2, 1)


def places(form: GRUForm) -> int:
    """Return how many statistics a row has: of each product those of both gates and of the rest."""
    return 0 if form.norm is None else OF_GATES.count + OF_REST.count


def make_read_products(element: Element, shape: RowShape) -> Any:
    """Return a device function ``read_products(z, xp, row, width, at, both, rest)``."""
    columns = row_columns(element, shape)
    read, slots = make_read_columns(element, columns), columns.slots

    @device
    def read_products(z, xp, row, width, at, both, rest):
        first = row * GATES * width
        for gate in range(2):
            read(z, first + gate * width, at, width, both[gate * slots :])
            read(xp, first + gate * width, at, width, both[(2 + gate) * slots :])
        read(z, first + 2 * width, at, width, rest)
        read(xp, first + 2 * width, at, width, rest[slots:])

    return read_products


def make_gates(form: GRUForm, element: Element, shape: RowShape) -> Any:
    """Return a device function ``gates_of(both, rest, weights, numbers, at, width, gates)``.

    It makes of the normalized products four sections: 1 - z, r, the new state that they suggest,
    and what r lets pass of the old one: a state may be large, a new one not, so 1 - z has to have
    all its digits. The weights are ``offset, offset_x, offset_h, gamma_h, gamma_x``, and the
    numbers stand for gamma and beta where there is no array of them.
    """
    columns, working, zero = row_columns(element, shape), element.working, constant(element, 0.0)
    slots, sigmoid, tanh = columns.slots, make_sigmoid(element), tangent(element)
    offset_of = make_column_weight(element, element, columns)
    gain = make_column_weight(element, gain_of(form.norm, element), columns)
    apply = device(form.norm.formula.forward if form.norm else lambda xhat, g, b: xhat)

    @device
    def add(values, gamma, numbers, first, at, width, total):
        weight = cuda.local.array(slots, working)
        gain(gamma, numbers[0], first, at, width, weight)
        for k in range(slots):
            total[k] += apply(values[k], weight[k], numbers[1])

    @device
    def gates_of(both, rest, weights, numbers, at, width, gates):
        offset, offset_x, offset_h, gamma_h, gamma_x = weights
        total = cuda.local.array(slots, working)
        for gate in range(2):
            first = gate * width
            offset_of(offset, zero, first, at, width, total)
            add(both[gate * slots :], gamma_h, numbers, first, at, width, total)
            add(both[(2 + gate) * slots :], gamma_x, numbers, first, at, width, total)
            for k in range(slots):
                gates[gate * slots + k] = sigmoid(total[k] if gate else -total[k])
        first, old = 2 * width, gates[3 * slots :]
        offset_of(offset_h, zero, 0, at, width, old)
        add(rest, gamma_h, numbers, first, at, width, old)
        offset_of(offset_x, zero, 0, at, width, total)
        add(rest[slots:], gamma_x, numbers, first, at, width, total)
        for k in range(slots):
            gates[2 * slots + k] = tanh(total[k] + gates[slots + k] * old[k])

    return gates_of
