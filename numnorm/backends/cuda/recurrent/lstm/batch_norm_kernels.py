"""The kernels between the batch norms of an LSTM's step, with a thread for each unit of each row.

All of them take ``count``, the number of threads, and ``width``, the number of units (H), as their
last arguments. The gates are f, i, o and g.
"""

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
    """The gradients that a backward step starts from, as addresses. Read.

    Attributes
    ----------
    dy : (rows, H)
        The gradients of the step's output.
    later : (later rows, H)
        The gradients from the next step, for the rows that it has.
    last : (rows, H)
        The gradients of the last states, for the rows that end with this step.
    """

    dy: Any
    later: Any
    last: Any


def make_gates_and_cell(element: ElementType) -> Kernel:
    """Return the kernel of a step's gates and of the cell before its norm.

    It takes as addresses ``z (rows, 4H)``, ``xp (rows, 4H)`` (0: no array) and ``offset (4H,)``,
    whose sum is the gates' input; ``c_prev``, the cell before the step; and the results
    ``gates (rows, 4H), cell (rows, H)``.
    """
    load, store = make_load_one(element), make_store_one(element)
    compute_type = element.compute_type
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
    """Return the kernel of a step's state: ``gates, normal, h``; normal is the normalized cell."""
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

    It takes as addresses ``gates, normal`` of the forward pass, `StateGradients`, ``dc``, the
    gradient of the cell that the next step gets, and the results ``dgates, dnormal``; then
    ``later``, the number of states of the next step. If the next step gets the normalized cell
    (`carries`), the kernel adds dc to ``dnormal``.
    """
    load, store, tanh = make_load_one(element), make_store_one(element), make_tanh(element)
    gradient_of, one = device(lstm_state_gradient), constant(element, 1.0)

    def kernel(gates, normal, gradients, dc, dgates, dnormal, later, count, width):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            unit = i % width
            at = (i - unit) * GATES + unit + 2 * width
            dh = load(gradients.dy, i) + load(gradients.later if i < later else gradients.last, i)
            dn, do = gradient_of(dh, load(gates, at), tanh(load(normal, i)), one)
            store(dnormal, i, dn + load(dc, i) if carries else dn)
            store(dgates, at, do)

    gradients = StateGradients, ("address",) * 3
    parameters = "address", "address", gradients, *("address",) * 3, "index", *_SIZES
    return Kernel(kernel, parameters, _THREADS)


def make_cell_gradient(element: ElementType, *, carries: bool) -> Kernel:
    """Return the kernel of the gradients of f, i and g and of the cell before the step.

    It takes as addresses ``gates, c_prev``, ``dcell``, the gradient of the new cell, ``dc``, which
    becomes the gradient of the cell before, and the result ``dgates``. If the next step gets the
    cell before its norm (not `carries`), the kernel adds dc to the gradient of the new cell.
    """
    load, store = make_load_one(element), make_store_one(element)
    gradient, one = device(lstm_cell_gradient), constant(element, 1.0)

    def kernel(gates, c_prev, dcell, dc, dgates, count, width):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            unit = i % width
            at = (i - unit) * GATES + unit
            f, i_gate, g = load(gates, at), load(gates, at + width), load(gates, at + 3 * width)
            dnew = load(dcell, i) if carries else load(dcell, i) + load(dc, i)
            df, di, dg, dprev = gradient(dnew, load(c_prev, i), f, i_gate, g, one)
            store(dgates, at, df)
            store(dgates, at + width, di)
            store(dgates, at + 3 * width, dg)
            store(dc, i, dprev)

    return Kernel(kernel, ("address",) * 5 + _SIZES, _THREADS)
