"""The groups in which the kernels of a cell's step take their parameters, whatever its kind.

Addresses are those of what belongs to the step's first row; 0 for what a cell does not have.
"""

from typing import Any, NamedTuple


class RowSpan(NamedTuple):
    """What of a row a thread has.

    Attributes
    ----------
    row, width : int
        Which row, and how many units there are.
    at : int
        The thread's first unit.
    limit : int
        From which unit on nothing is stored; 0 for a thread behind the last row.
    """

    row: Any
    width: Any
    at: Any
    limit: Any


class Products(NamedTuple):
    """The products ``(rows, gates * H)``: with the state, and with x."""

    z: Any
    xp: Any


class StepStates(NamedTuple):
    """Arrays ``(rows, H)``: zoneout's masks, the states before the step, and the new ones.

    The new ones may take the place of those before.
    """

    mask_h: Any
    mask_c: Any
    h_before: Any
    c_before: Any
    h: Any
    c: Any


class StepSaved(NamedTuple):
    """What a step saves for the way back; 0 for what is not to be saved.

    Attributes
    ----------
    sums : (rows, gates * H)
        Both products added up, where no norm is taken of each; this may be the array of the
        products with x.
    cell : (rows, H)
        The cell before its norm, where the next step is handed another one.
    table : (rows, places, NUMBERS)
        The statistics.
    """

    sums: Any
    cell: Any
    table: Any


class ReadBack(NamedTuple):
    """What a step back reads of the way there.

    Attributes
    ----------
    z, xp : (rows, gates * H)
        The products, the first their sum where no norm is taken of each.
    cell : (rows, H)
        The cell before its norm.
    before : (rows, H)
        The last of the states that the step was handed.
    table : (rows, places, NUMBERS)
        The statistics.
    """

    z: Any
    xp: Any
    cell: Any
    before: Any
    table: Any


class Incoming(NamedTuple):
    """What reaches the new states of a step.

    Attributes
    ----------
    dy : (rows, H)
        The gradient of the state by itself.
    product : (later, H)
        What the state gets from the product of the next step, which has the first `later` rows.
    dh, dc : (rows, H)
        What the states get past that product, at first the gradients of the last states. They
        become what the states before get past this step's product.
    mask_h, mask_c : (rows, H)
        Zoneout's masks.
    """

    dy: Any
    product: Any
    dh: Any
    dc: Any
    mask_h: Any
    mask_c: Any


class Results(NamedTuple):
    """What a step back stores.

    Attributes
    ----------
    dz, dxp : (rows, gates * H)
        The gradients of both products, where they are normalized.
    gates : (rows, gates * H)
        Those of what enters the gates, without a norm of the product with the state, too.
    other : array
        What else the sums over all steps need: of an LSTM ``(rows, H)``, the gradients of the
        normalized cell if its norm has parameters, of a GRU ``(rows, 3H)``, the like of `gates`
        for the product with x.
    """

    dz: Any
    dxp: Any
    gates: Any
    other: Any


class AdaNumbers(NamedTuple):
    """AdaNorm's two numbers, which stand for gamma and beta; else 1 and 0."""

    gain: Any
    bias: Any


class ScalingNumbers(NamedTuple):
    """How a norm scales so many elements, as `make_cell_statistics` takes it."""

    inv_count: Any
    inv_divisor: Any
    eps: Any
    eps_on_deviation: Any
    root_eps: Any


class FlowNumbers(NamedTuple):
    """How a gradient flows through a norm, as in the backward kernel of rows."""

    inv_count: Any
    inv_divisor: Any
    eps_on_deviation: Any


class OfNorms(NamedTuple):
    """The same of both norms in a cell.

    The other norm is that of an LSTM's cell or of a GRU's candidate; a plain cell has none.
    """

    gates: Any
    other: Any
