"""What an LSTM with batch norm computes between two norms: kernels with a thread for each unit."""

from typing import Any, NamedTuple

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
    make_tanh,
)
from numnorm.backends.cuda.recurrent.lstm.gates import GATES
from numnorm.backends.cuda.threads.activations import make_sigmoid
from numnorm.backends.formulas.cells import (
    lstm_cell,
    lstm_cell_gradient,
    lstm_state,
    lstm_state_gradient,
)

_THREADS = 128
_SIZES = ("index",) * 2


class StateGradients(NamedTuple):
    """The addresses of the gradients of a step's states, ``(rows, H)`` each.

    Attributes
    ----------
    dy : address
        From outside.
    later : address
        From the next step, which has the first so many rows.
    last : address
        Of the last states, for the rows that end here.
    """

    dy: Any
    later: Any
    last: Any


def make_gates_and_cell(element: ElementType) -> Kernel:
    """Return the kernel of a step's gates and of the cell before its norm.

    It takes as addresses what enters the gates, ``z (rows, 4H)``, ``xp``, the like to be added, or
    0, and ``offset (4H,)``; the cell before; and the results ``gates (rows, 4H), cell (rows, H)``;
    then ``count``, the number of cells, and ``width`` (H).
    """
    load, store, compute_type = (
        make_load_one(element),
        make_store_one(element),
        element.compute_type,
    )
    sigmoid, tanh, new_cell = make_sigmoid(element), make_tanh(element), device(lstm_cell)

    def kernel(z, xp, offset, c_prev, gates, cell, count, width):
        values = cuda.local.array(GATES, compute_type)
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            unit = i % width
            first = (i - unit) * GATES + unit
            for gate in range(GATES):
                at = gate * width
                value = load(z, first + at) + load(offset, unit + at)
                if xp != 0:
                    value += load(xp, first + at)
                values[gate] = tanh(value) if gate == 3 else sigmoid(value)
                store(gates, first + at, values[gate])
            store(cell, i, new_cell(values[0], values[1], values[3], load(c_prev, i)))

    return Kernel(kernel, ("address",) * 6 + _SIZES, _THREADS)


def make_state(element: ElementType) -> Kernel:
    """Return the kernel of a step's state: ``gates, normal, h, count, width``.

    `normal` is the normalized cell.
    """
    load, store = make_load_one(element), make_store_one(element)
    tanh, new_state = make_tanh(element), device(lstm_state)

    def kernel(gates, normal, h, count, width):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            unit = i % width
            o = load(gates, (i - unit) * GATES + unit + 2 * width)
            store(h, i, new_state(o, tanh(load(normal, i))))

    return Kernel(kernel, ("address",) * 3 + _SIZES, _THREADS)


def make_state_gradient(element: ElementType, *, carries: bool) -> Kernel:
    """Return the kernel of the gradients of the normalized cell and of the output gate.

    It takes as addresses ``gates, normal``, as the forward pass left them, `StateGradients`,
    ``dc``, the gradient of the cell that is handed on, and the results ``dgates, dnormal``;
    then ``later``, how many states the next step has, ``count`` and ``width``. Where the normalized
    cell is the one that is handed on (`carries`), its gradient is added here.
    """
    load, store, tanh = make_load_one(element), make_store_one(element), make_tanh(element)
    gradient_of, one = device(lstm_state_gradient), constant(element, 1.0)

    def kernel(gates, normal, gradients, dc, dgates, dnormal, later, count, width):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            unit = i % width
            at = (i - unit) * GATES + unit + 2 * width
            dh = load(gradients.dy, i) + load(gradients.later if i < later else gradients.last, i)
            of_normal, of_gate = gradient_of(dh, load(gates, at), tanh(load(normal, i)), one)
            store(dnormal, i, of_normal + load(dc, i) if carries else of_normal)
            store(dgates, at, of_gate)

    gradients = StateGradients, ("address",) * 3
    parameters = "address", "address", gradients, *("address",) * 3, "index", *_SIZES
    return Kernel(kernel, parameters, _THREADS)


def make_cell_gradient(element: ElementType, *, carries: bool) -> Kernel:
    """Return the kernel of the gradients of the other gates and of the cell before.

    It takes as addresses ``gates``, the cell before, ``dcell``, ``dc``, which becomes the gradient
    of the cell before, and the result ``dgates``; then ``count`` and ``width``. Where the cell is
    handed on as it is, not normalized, its gradient is added here.
    """
    load, store = make_load_one(element), make_store_one(element)
    gradient, one = device(lstm_cell_gradient), constant(element, 1.0)

    def kernel(gates, c_prev, dcell, dc, dgates, count, width):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            unit = i % width
            at = (i - unit) * GATES + unit
            f, i_gate, g = load(gates, at), load(gates, at + width), load(gates, at + 3 * width)
            of_cell = load(dcell, i) if carries else load(dcell, i) + load(dc, i)
            df, di, dg, of_prev = gradient(of_cell, load(c_prev, i), f, i_gate, g, one)
            store(dgates, at, df)
            store(dgates, at + width, di)
            store(dgates, at + 3 * width, dg)
            store(dc, i, of_prev)

    return Kernel(kernel, ("address",) * 5 + _SIZES, _THREADS)
