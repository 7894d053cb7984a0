"""The gates of an LSTM with batch norm: a thread has those of one unit, for some of the rows."""

from typing import Any

from numnorm.backends.contract import LSTMForm
from numnorm.backends.cuda.activations import make_sigmoid
from numnorm.backends.cuda.batch_cell_statistics import (
    make_kept_column,
    make_value,
    normalized_products,
    place_of_gate,
)
from numnorm.backends.cuda.cell_norms import normalized
from numnorm.backends.cuda.elements import Element
from numnorm.backends.cuda.lstm_gates import GATES
from numnorm.backends.cuda.target import device, make_load_one, tangent


def weights_of_gates(form: LSTMForm) -> int:
    """Return how many numbers a unit's gates are made with: biases, and gains of each product."""
    return GATES * (1 + normalized_products(form))


def make_read_weights(form: LSTMForm, element: Element) -> Any:
    """Return a device function ``read_weights(offset, gamma_h, gamma_x, unit, width, weights)``."""
    load_one, products = make_load_one(element), normalized_products(form)

    @device
    def read_weights(offset, gamma_h, gamma_x, unit, width, weights):
        for gate in range(GATES):
            at = gate * width + unit
            weights[gate] = load_one(offset, at)
            if products > 0:
                weights[GATES + gate] = load_one(gamma_h, at)
            if products > 1:
                weights[2 * GATES + gate] = load_one(gamma_x, at)

    return read_weights


def make_kept_gates(form: LSTMForm, element: Element) -> Any:
    """Return a device function of the statistics of a unit's gates, from the table.

    ``kept_gates(found, table, step, steps, width, unit)``.
    """
    kept_column, count = make_kept_column(element), GATES * normalized_products(form)

    @device
    def kept_gates(found, table, step, steps, width, unit):
        for n in range(count):
            kept_column(found, n, table, place_of_gate(n, step, steps, width) + unit)

    return kept_gates


def make_gates_of_row(form: LSTMForm, element: Element) -> Any:
    """Return a device function ``gates_of_row(source, row, found, weights, gates)``."""
    value, products = make_value(element), normalized_products(form)
    sigmoid, tanh = make_sigmoid(element), tangent(element)

    @device
    def gates_of_row(source, row, found, weights, gates):
        for gate in range(GATES):
            total = value(source, row, gate)
            if products > 0:
                total = normalized(total, found, gate) * weights[GATES + gate]
            if products > 1:
                other = normalized(value(source, row, GATES + gate), found, GATES + gate)
                total += other * weights[2 * GATES + gate]
            total += weights[gate]
            gates[gate] = tanh(total) if gate == 3 else sigmoid(total)

    return gates_of_row
