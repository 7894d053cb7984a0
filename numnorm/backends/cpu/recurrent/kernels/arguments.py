"""The arguments of the kernels of recurrent cells, in groups; None where a cell lacks one."""

from typing import Any, NamedTuple


class StepRange(NamedTuple):
    """The steps that a backward kernel takes, from `begin` to `end`; else as `PackedSteps`."""

    offsets: Any
    batch_sizes: Any
    begin: Any
    end: Any


class Factors(NamedTuple):
    """What is multiplied.

    Attributes
    ----------
    x : array (rows, I)
        To be multiplied step by step; of no rows if these products are given.
    panels_x, panels_h : array
        The packed transposes of W_x and W_h.
    """

    x: Any
    panels_x: Any
    panels_h: Any


class Parameters(NamedTuple):
    """What is added to the products, and gamma and beta of each norm, which may be numbers.

    Attributes
    ----------
    offset : array (gates * H,)
    offset_h : array (H,)
        What a GRU adds to the product with the state before r resets it.
    gamma_h, beta_h, gamma_x, beta_x : array (gates * H,)
        Of the product with the state, or of the sum of both; and of that with x.
    gamma_c, beta_c : array (H,)
        Of an LSTM's cell.
    """

    offset: Any
    offset_h: Any = None
    gamma_h: Any = None
    beta_h: Any = None
    gamma_x: Any = None
    beta_x: Any = None
    gamma_c: Any = None
    beta_c: Any = None


class Statistics(NamedTuple):
    """Mean and rstd of each normalized row: of z, xp and the cell; of size 0 to save nothing."""

    mean_h: Any
    rstd_h: Any
    mean_x: Any
    rstd_x: Any
    mean_c: Any
    rstd_c: Any


class Saved(NamedTuple):
    """What the forward pass leaves to the backward pass, rows in the order of the steps.

    If nothing is saved, all but `state` may have the rows of one step, which the next overwrites.

    Attributes
    ----------
    z, xp : array (rows, gates * H)
        The products with the state and with x; their sum and None where no norm is taken of each.
    state : array (batch + rows, H)
        The states; first those given.
    carried : array (batch + rows, H)
        The cell as each step of an LSTM was handed it; first those given.
    cell : array (rows, H)
        The cell before its norm.
    statistics : Statistics
    """

    z: Any
    xp: Any
    state: Any
    carried: Any
    cell: Any
    statistics: Statistics


class Scaling(NamedTuple):
    """How a row is scaled; the divisor is that of its sum of squares."""

    eps: Any
    eps_on_deviation: Any
    divisor: Any


class Scalings(NamedTuple):
    """The scaling of a cell's first norm and of its second: see `CellKind.norms`."""

    first: Scaling
    second: Scaling


class Coefficients(NamedTuple):
    """What a norm's gradient is made with: 1 / N or 0, 1 / (N - ddof), epsilon on the deviation."""

    inv_count: Any
    inv_divisor: Any
    eps_on_deviation: Any


class GradientCoefficients(NamedTuple):
    """Those of a cell's first norm and of its second."""

    first: Coefficients
    second: Coefficients


class ZoneoutMasks(NamedTuple):
    """The shares (rows, H) of the state and of the cell that a step keeps."""

    h: Any
    c: Any


class Gradients(NamedTuple):
    """The gradients that a backward kernel is given, and those that it finds.

    Attributes
    ----------
    dy : array (rows, H)
        Of all states.
    dh, dc : array (batch, H)
        Of the last state and cell; they become those of the first.
    dz, dxp : array (rows of these steps, gates * H)
        The results: of both products, or of their sum and None.
    """

    dy: Any
    dh: Any
    dc: Any
    dz: Any
    dxp: Any


class Scratch(NamedTuple):
    """Memory of a backward kernel for one row of each part, at the part's first row.

    Attributes
    ----------
    gates : array (batch, gates * H)
        Gradients of what enters the gates.
    normalized, cell : array (batch, H)
        Gradients of what a second norm returns, and of an LSTM's cell.
    """

    gates: Any
    normalized: Any
    cell: Any


class Sums(NamedTuple):
    """The sums for the parameters, of some rows of the batch each: they follow from the shape.

    Attributes
    ----------
    sums, totals : array (groups, numbers)
        In the working dtype and in float64.
    size : int
        How many rows a group has.
    """

    sums: Any
    totals: Any
    size: Any


class Place(NamedTuple):
    """Where a row of a step is found.

    Attributes
    ----------
    i : int
        Among the rows of all steps.
    b : int
        In the batch.
    before : int
        Among the states, given ones first: the state that the row was handed.
    batch : int
        How many rows the batch has.
    """

    i: Any
    b: Any
    before: Any
    batch: Any


class BackwardPlace(NamedTuple):
    """Where a row of a step is found in the backward pass.

    Attributes
    ----------
    i, b, before : int
        As `Place`.
    k : int
        Among the rows of these steps.
    scratch : int
        The row of the scratch memory.
    distance : int
        How many rows further the row lies that comes next, to be prefetched.
    """

    i: Any
    b: Any
    before: Any
    k: Any
    scratch: Any
    distance: Any
