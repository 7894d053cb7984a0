"""The gates of an LSTM with batch norm: a thread has those of one unit, for some of the rows."""

from typing import Any

from numnorm.backends.contract.recurrent import LSTMForm
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import cuda, device, make_load_one, tangent
from numnorm.backends.cuda.recurrent.batch_norm_lstm.step_statistics import (
    make_kept_column,
    normalized_products,
    place_of_gate,
)
from numnorm.backends.cuda.recurrent.common.cell_norm import NUMBERS
from numnorm.backends.cuda.recurrent.lstm.gates import GATES
from numnorm.backends.cuda.threads.activations import make_sigmoid

# What a thread holds of a gate of a product: its scale, its mean, and the factor of what is left.
_TERMS = 3


def terms_of(form: LSTMForm) -> int:
    """Return how many terms a unit's gates are made with, the offsets of the gates first."""
    return GATES * (1 + _TERMS * normalized_products(form))


def make_read_terms(form: LSTMForm, element: Element) -> Any:
    """Return a device function ``read_terms(table, weights, place, terms)`` of a thread's unit.

    The weights are ``offset, gamma_h, gamma_x``, and the place is ``step, steps, width, unit``.
    """
    load_one, kept_column = make_load_one(element), make_kept_column(element)
    count, working = GATES * normalized_products(form), element.working

    @device
    def read_terms(table, weights, place, terms):
        found = cuda.local.array(NUMBERS, working)
        offset, gamma_h, gamma_x = weights
        step, steps, width, unit = place
        for gate in range(GATES):
            terms[gate] = load_one(offset, gate * width + unit)
        for n in range(count):
            gate = n % GATES
            gain = load_one(gamma_h if n < GATES else gamma_x, gate * width + unit)
            kept_column(table, place_of_gate(n, step, steps, width) + unit, found)
            at, factor = GATES + n * _TERMS, found[3] * gain
            terms[at], terms[at + 1], terms[at + 2] = found[0], found[1], factor
            # What rounding the mean lost is the same in all rows.
            terms[gate] -= found[2] * factor

    return read_terms


def make_gates_of_row(form: LSTMForm, element: Element) -> Any:
    """Return a device function ``gates_of_row(z, xp, row, width, unit, terms, gates)``."""
    load_one, products = make_load_one(element), normalized_products(form)
    sigmoid, tanh = make_sigmoid(element), tangent(element)

    @device
    def term(value, n, terms):
        at = GATES + n * _TERMS
        return (value * terms[at] - terms[at + 1]) * terms[at + 2]

    @device
    def gates_of_row(z, xp, row, width, unit, terms, gates):
        for gate in range(GATES):
            at = (row * GATES + gate) * width + unit
            total = load_one(z, at)
            if products > 0:
                total = term(total, gate, terms)
            if products > 1:
                total += term(load_one(xp, at), GATES + gate, terms)
            total += terms[gate]
            gates[gate] = tanh(total) if gate == 3 else sigmoid(total)

    return gates_of_row
