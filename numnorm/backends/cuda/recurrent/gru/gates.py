"""The gates of a gated recurrent unit, from the normalized products with x and with the state.

A row of a product has a section for each of z, r and the candidate. z and r are normalized as one
row, the candidate as another. A thread holds them in two arrays: ``pair`` has z and r of the
product W_h h with the state, then of the product W_x x; ``candidate`` has the candidate's sections
of both.
"""

from typing import Any

from numnorm.backends.contract.recurrent import GRUSpec
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import constant, cuda, device, make_tanh
from numnorm.backends.cuda.recurrent.common.cell_norm import Parts
from numnorm.backends.cuda.recurrent.common.gate_norm_gradient import GateRange
from numnorm.backends.cuda.recurrent.common.product_norm import ProductNorm, make_add_normalized
from numnorm.backends.cuda.threads.activations import make_sigmoid
from numnorm.backends.cuda.threads.row_columns import make_column_weight, row_columns
from numnorm.backends.cuda.threads.row_shape import RowShape
from numnorm.backends.formulas.cells import gru_candidate_input

GATES = 3
PAIR, CANDIDATE = Parts(2, 2), Parts(2, 1)


def sites(spec: GRUSpec) -> int:
    """Return the number of sites: for each product, one of z and r and one of the candidate."""
    return 0 if spec.norm is None else PAIR.count + CANDIDATE.count


def product_norms(spec: GRUSpec) -> tuple[ProductNorm, ProductNorm]:
    """Return the norms of z with r, and of the candidate."""
    pair, candidate = GateRange(GATES, 0, 2), GateRange(GATES, 2, 1, shared=False)
    return (
        ProductNorm(spec.norm, PAIR, pair, True, sites(spec), 0, 2),
        ProductNorm(spec.norm, CANDIDATE, candidate, True, sites(spec), 1, 2),
    )


def make_gates(spec: GRUSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``gates_of(pair, candidate, weights, numbers, at, width, gates)``.

    It computes four sections of `gates` from the normalized products: 1 - z, r, the candidate, and
    the candidate's input from the state, which r multiplies. 1 - z is accurate, not z, because it
    multiplies the old state, which may be large. `weights` is `GRUWeights`, `numbers` is
    `AdaNumbers`, `at` the thread's first unit, and `width` the number of units.
    """
    columns, zero = row_columns(element, shape), constant(element, 0.0)
    compute_type = element.compute_type
    slots, sigmoid, tanh = columns.slots, make_sigmoid(element), make_tanh(element)
    offset_of = make_column_weight(element, element, columns)
    add = make_add_normalized(spec.norm, element, shape)
    candidate_input = device(gru_candidate_input)

    @device
    def gates_of(pair, candidate, weights, numbers, at, width, gates):
        offset, offset_x, offset_h, gamma_h, gamma_x = weights
        total = cuda.local.array(slots, compute_type)
        for gate in range(2):
            first = gate * width
            offset_of(offset, zero, first, at, width, total)
            add(pair[gate * slots :], gamma_h, numbers, first, at, width, total)
            add(pair[(2 + gate) * slots :], gamma_x, numbers, first, at, width, total)
            for k in range(slots):
                gates[gate * slots + k] = sigmoid(total[k] if gate else -total[k])
        first, from_h = 2 * width, gates[3 * slots :]
        offset_of(offset_h, zero, 0, at, width, from_h)
        add(candidate, gamma_h, numbers, first, at, width, from_h)
        offset_of(offset_x, zero, 0, at, width, total)
        add(candidate[slots:], gamma_x, numbers, first, at, width, total)
        for k in range(slots):
            gates[2 * slots + k] = tanh(candidate_input(total[k], gates[slots + k], from_h[k]))

    return gates_of
