"""The groups in which the kernels of one step of a cell take their parameters, for all cells.

In a kernel, a field with a shape is the address of the step's first row in the array, or 0 if the
cell has no such array. ``H`` is the number of units and ``gates`` the number of gates of a unit.
Host code puts arrays into the same groups.
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
    """The products ``(rows, gates * H)`` of the weights with the state (z) and with x (xp)."""

    z: Any
    xp: Any


class StepStates(NamedTuple):
    """Arrays ``(rows, H)``: the zoneout masks, the states before the step, and the new states.

    A new state may overwrite the state before.
    """

    mask_h: Any
    mask_c: Any
    h_before: Any
    c_before: Any
    h: Any
    c: Any


class StepSaved(NamedTuple):
    """Arrays that a step saves for the backward pass; 0 for an array that it does not save.

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
        The products. Unless each product has its own norm, z is their sum and xp 0.
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
    """Gradients of a step's new states, and the zoneout masks.

    Attributes
    ----------
    dy : (rows, H)
        The gradient of the step's output.
    product : (later, H)
        The gradient of h through the product of the next step, which has `later` rows.
    dh, dc : (rows, H)
        The gradients of h and of the cell by all other ways; before the first backward step, the
        gradients of the last states. The step overwrites them with the same gradients of its input
        states.
    mask_h, mask_c : (rows, H)
        The zoneout masks.
    """

    dy: Any
    product: Any
    dh: Any
    dc: Any
    mask_h: Any
    mask_c: Any


class Results(NamedTuple):
    """Gradients that a backward step stores.

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
    """The numbers in place of gamma and beta, where there is no array: AdaNorm's two, else 1, 0."""

    gain: Any
    bias: Any


class ScalingNumbers(NamedTuple):
    """How a norm scales its elements: `inv_count` is 1 / N, `root_eps` the square root of eps.

    `inv_divisor` is 1 over the divisor of the sum of squared deviations.
    """

    inv_count: Any
    inv_divisor: Any
    eps: Any
    eps_on_deviation: Any
    root_eps: Any


class GradientCoefficients(NamedTuple):
    """The coefficients of a norm's gradient; `inv_count` is 0 for a norm that is not centred."""

    inv_count: Any
    inv_divisor: Any
    eps_on_deviation: Any


class OfNorms(NamedTuple):
    """One group of numbers for each of a cell's two norms.

    `gates` is for the norm of the gates. `other` is for the norm of an LSTM's cell or of a GRU's
    candidate; a plain RNN has none.
    """

    gates: Any
    other: Any
