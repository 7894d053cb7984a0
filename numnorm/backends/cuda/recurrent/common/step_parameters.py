"""The groups in which the kernels of one step of a cell take their parameters, for all cells.

In a kernel, a field with a shape is the address of the step's first row in the array; the address
is 0 if the cell has no such array. ``H`` is the number of units, ``gates`` the number of gates of
a unit, and `rows` the number of rows of the step. Host code puts arrays into the same groups.
"""

from typing import Any, NamedTuple


class RowSpan(NamedTuple):
    """The part of a row that a thread works on.

    Attributes
    ----------
    row, width : int
        The row's index, and the number of units of a row.
    at : int
        The thread's first unit.
    limit : int
        A thread stores only units below it: the width, or 0 for a thread without a row.
    """

    row: Any
    width: Any
    at: Any
    limit: Any


class Products(NamedTuple):
    """The products that the gates of a forward step are computed from. Read.

    Attributes
    ----------
    z : (rows, gates * H)
        The product W_h h with the state.
    xp : (rows, gates * H)
        The product W_x x.
    """

    z: Any
    xp: Any


class StepStates(NamedTuple):
    """The states around a forward step. A new state may overwrite the state before.

    Attributes
    ----------
    mask_h, mask_c : (rows, H)
        The zoneout masks of h and of an LSTM's cell. Read.
    h_before, c_before : (rows, H)
        The states before the step. Read.
    h, c : (rows, H)
        The new states. Written.
    """

    mask_h: Any
    mask_c: Any
    h_before: Any
    c_before: Any
    h: Any
    c: Any


class StepSaved(NamedTuple):
    """Arrays that a forward step writes for the backward pass; the address is 0 to save nothing.

    Attributes
    ----------
    sums : (rows, gates * H)
        ``z + xp``, unless each product has its own norm. May be the array of xp.
    cell : (rows, H)
        An LSTM's cell before its norm, if the next step gets another cell.
    table : (rows, sites, NUMBERS)
        The statistics.
    """

    sums: Any
    cell: Any
    table: Any


class ReadBack(NamedTuple):
    """Arrays of the forward pass that a backward step reads.

    Attributes
    ----------
    z, xp : (rows, gates * H)
        The products. Unless each product has its own norm, z is their sum and there is no xp.
    cell : (rows, H)
        An LSTM's cell before its norm.
    before : (rows, H)
        The step's input state: the cell of an LSTM, else h.
    table : (rows, sites, NUMBERS)
        The statistics.
    """

    z: Any
    xp: Any
    cell: Any
    before: Any
    table: Any


class Incoming(NamedTuple):
    """The gradients that a backward step starts from, and the zoneout masks.

    Attributes
    ----------
    dy : (rows, H)
        The gradient of the step's output. Read.
    product : (later, H)
        The gradient of h through the product of the next step, which has `later` rows. Read.
    dh, dc : (rows, H)
        The gradients of h and of the cell by all other ways; before the first backward step, the
        gradients of the last states. Read, then overwritten with the same gradients of the step's
        input states.
    mask_h, mask_c : (rows, H)
        The zoneout masks. Read.
    """

    dy: Any
    product: Any
    dh: Any
    dc: Any
    mask_h: Any
    mask_c: Any


class Results(NamedTuple):
    """Gradients that a backward step writes.

    Attributes
    ----------
    dz, dxp : (rows, gates * H)
        The gradients of both products, if they are normalized.
    gates : (rows, gates * H)
        The gradients of the gates' inputs: of the norm's result or, without a norm, of z.
    other : array
        More gradients, which the sums over all steps read. LSTM ``(rows, H)``: of the norm's result
        for the cell, if that norm has parameters. GRU ``(rows, 3H)``: as `gates`, for the product
        with x.
    """

    dz: Any
    dxp: Any
    gates: Any
    other: Any


class AdaNumbers(NamedTuple):
    """The numbers that a norm uses where it has no arrays gamma and beta.

    Attributes
    ----------
    gain, bias : number
        The two numbers of AdaNorm in place of gamma and beta; 1 and 0 for other norms.
    """

    gain: Any
    bias: Any


class ScalingNumbers(NamedTuple):
    """How a norm in a forward step turns its sums into a mean and a deviation.

    Attributes
    ----------
    inv_count : number
        1 / N for a norm of N elements.
    inv_divisor : number
        1 over the divisor of the sum of squared deviations.
    eps, eps_on_deviation : number
        What is added to the variance and to the deviation.
    root_eps : number
        The square root of eps.
    """

    inv_count: Any
    inv_divisor: Any
    eps: Any
    eps_on_deviation: Any
    root_eps: Any


class GradientCoefficients(NamedTuple):
    """The numbers in the gradient of a norm in a backward step.

    Attributes
    ----------
    inv_count : number
        1 / N for a norm of N elements, 0 if it is not centred.
    inv_divisor, eps_on_deviation : number
        As in `ScalingNumbers`.
    """

    inv_count: Any
    inv_divisor: Any
    eps_on_deviation: Any


class OfNorms(NamedTuple):
    """One group of numbers for each of a cell's two norms.

    Attributes
    ----------
    gates : group
        For the norm of the gates.
    other : group
        For the norm of an LSTM's cell or of a GRU's candidate. A plain RNN does not use it.
    """

    gates: Any
    other: Any
