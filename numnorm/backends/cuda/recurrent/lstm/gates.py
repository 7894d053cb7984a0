"""The gates of an LSTM, f, i, o and g, from the normalized products with x and with the state."""

from typing import Any

from numnorm.backends.contract.recurrent import LSTMSpec
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import constant, cuda, device, make_tanh
from numnorm.backends.cuda.recurrent.common.cell_norm import Parts
from numnorm.backends.cuda.recurrent.common.gate_norm_gradient import GateRange
from numnorm.backends.cuda.recurrent.common.product_norm import ProductNorm, make_add_normalized
from numnorm.backends.cuda.threads.activations import make_sigmoid
from numnorm.backends.cuda.threads.row_columns import make_column_weight, row_columns
from numnorm.backends.cuda.threads.row_shape import RowShape

GATES = 4


def gate_parts(spec: LSTMSpec) -> Parts:
    """Return the parts of a row's products that are normalized; none if the gates have no norm."""
    if spec.gates is None:
        return Parts(0, GATES)
    return Parts(GATES, 1) if spec.separate else Parts(2, GATES)


def sites(spec: LSTMSpec) -> int:
    """Return the number of sites in a row of the table; the cell's site is the last."""
    return gate_parts(spec).count + (spec.cell is not None)


def product_norm(spec: LSTMSpec) -> ProductNorm:
    """Return the norm of the products."""
    gates = GateRange(GATES, 0, GATES)
    return ProductNorm(spec.gates, gate_parts(spec), gates, spec.norm_each_product, sites(spec))


def normalized_units(spec: LSTMSpec, units: int) -> int:
    """Return the number of elements that the gates' norm normalizes as one row."""
    return units if spec.separate else GATES * units


def make_gates(spec: LSTMSpec, element: ElementType, shape: RowShape) -> Any:
    """Return a device function ``gates_of(values, weights, numbers, at, width, limit, gates)``.

    It computes the gates f, i, o and g from the normalized products `values`. `weights` has the
    addresses ``offset, gamma_h, gamma_x``, and `numbers` is `AdaNumbers`.
    """
    columns, zero = row_columns(element, shape), constant(element, 0.0)
    slots, compute_type = columns.slots, element.compute_type
    norm_each_product = spec.norm_each_product
    offset_of = make_column_weight(element, element, columns)
    add, sigmoid = make_add_normalized(spec.gates, element, shape), make_sigmoid(element)
    tanh = make_tanh(element)

    @device
    def gates_of(values, weights, numbers, at, width, limit, gates):
        offset, gamma_h, gamma_x = weights
        total = cuda.local.array(slots, compute_type)
        for gate in range(GATES):
            first = gate * width
            offset_of(offset, zero, first, at, limit, total)
            add(values[gate * slots :], gamma_h, numbers, first, at, limit, total)
            if norm_each_product:
                from_x = values[(GATES + gate) * slots :]
                add(from_x, gamma_x, numbers, first, at, limit, total)
            for k in range(slots):
                gates[gate * slots + k] = tanh(total[k]) if gate == 3 else sigmoid(total[k])

    return gates_of
