"""The gates of a gated recurrent unit, from the normalized products with x and with the state.

A row of a product has z, r and the rest, one after the other: z and r are normalized together, and
a thread holds the rest of both products apart from them.
"""

from typing import Any

from numnorm.backends.contract.recurrent import GRUSpec
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import constant, cuda, device, make_tanh
from numnorm.backends.cuda.recurrent.common.cell_norm import Parts
from numnorm.backends.cuda.recurrent.common.gate_norm_gradient import Stretch
from numnorm.backends.cuda.recurrent.common.product_norm import ProductNorm, make_add_normalized
from numnorm.backends.cuda.threads.activations import make_sigmoid
from numnorm.backends.cuda.threads.row_columns import make_column_weight, row_columns
from numnorm.backends.cuda.threads.row_shape import RowShape
from numnorm.backends.formulas.cells import gru_candidate_input

GATES = 3
OF_GATES, OF_REST = Parts(2, 2), Parts(2, 1)


def sites(spec: GRUSpec) -> int:
    """Return how many statistics a row has: of each product those of both gates and of the rest."""
    return 0 if spec.norm is None else OF_GATES.count + OF_REST.count


def product_norms(spec: GRUSpec) -> tuple[ProductNorm, ProductNorm]:
    """Return the norms of both gates and of the rest."""
    of_gates, of_rest = Stretch(GATES, 0, 2), Stretch(GATES, 2, 1, shared=False)
    return (
        ProductNorm(spec.norm, OF_GATES, of_gates, True, sites(spec), 0, 2),
        ProductNorm(spec.norm, OF_REST, of_rest, True, sites(spec), 1, 2),
    )


def make_gates(spec: GRUSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``gates_of(both, rest, weights, numbers, at, width, gates)``.

    It makes of the normalized products four sections: 1 - z, r, the new state that they suggest,
    and what r lets pass of the old one: a state may be large, a new one not, so 1 - z has to have
    all its digits. The weights are ``offset, offset_x, offset_h, gamma_h, gamma_x``, and the
    numbers stand for gamma and beta where there is no array of them.
    """
    columns, compute_type, zero = (
        row_columns(element, shape),
        element.compute_type,
        constant(element, 0.0),
    )
    slots, sigmoid, tanh = columns.slots, make_sigmoid(element), make_tanh(element)
    offset_of = make_column_weight(element, element, columns)
    add = make_add_normalized(spec.norm, element, shape)
    candidate_input = device(gru_candidate_input)

    @device
    def gates_of(both, rest, weights, numbers, at, width, gates):
        offset, offset_x, offset_h, gamma_h, gamma_x = weights
        total = cuda.local.array(slots, compute_type)
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
            gates[2 * slots + k] = tanh(candidate_input(total[k], gates[slots + k], old[k]))

    return gates_of
