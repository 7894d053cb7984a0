"""The arguments of the recurrent kernels, in groups; a member that a cell lacks is None.

Numba compiles them as named tuples. H is the number of units; `rows` are the rows of all steps.
"""

from typing import Any, NamedTuple


class StepRange(NamedTuple):
    """The packed steps, and the range from `begin` to `end` that a backward kernel runs."""

    offsets: Any
    batch_sizes: Any
    begin: Any
    end: Any


class Factors(NamedTuple):
    """The operands of the products.

    Attributes
    ----------
    x : array (rows, I)
        Without rows if `Saved` already holds the products with x.
    panels_x, panels_h : array
        The transposes of W_x and W_h, packed for `make_matmul`.
    """

    x: Any
    panels_x: Any
    panels_h: Any


class Parameters(NamedTuple):
    """The biases, and gamma and beta of each norm, which may be numbers.

    Attributes
    ----------
    offset : array (gates * H,)
        The sum of all that is added to the gates.
    offset_h : array (H,)
        What a GRU adds to the state's part of the candidate before the multiplication by r.
    gamma_h, beta_h, gamma_x, beta_x : array (gates * H,)
        For the product with the state, or for the sum of both products; for the product with x.
    gamma_c, beta_c : array (H,)
        For an LSTM's cell.
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
    """Mean and rstd of each normalized row of z, xp and the cell; of size 0 to save nothing."""

    mean_h: Any
    rstd_h: Any
    mean_x: Any
    rstd_x: Any
    mean_c: Any
    rstd_c: Any


class Saved(NamedTuple):
    """The arrays that the forward pass writes and the backward pass reads, ordered by step.

    If nothing is saved, arrays other than `state` hold one step, which the next overwrites.

    Attributes
    ----------
    z, xp : array (rows, gates * H)
        The products with the state and with x; their sum and None unless each is normalized.
    state : array (batch + rows, H)
        The initial states, then those of each step.
    carried : array (batch + rows, H)
        The initial cells of an LSTM, then the cells that each step passes to the next.
    cell : array (rows, H)
        The cells before their norm.
    statistics : Statistics
    """

    z: Any
    xp: Any
    state: Any
    carried: Any
    cell: Any
    statistics: Statistics


class Scaling(NamedTuple):
    """The epsilon of a norm and where it is added, and the divisor of the sum of squares."""

    eps: Any
    eps_on_deviation: Any
    divisor: Any


class Scalings(NamedTuple):
    """The scalings of a cell's two norms, see `CellKind.norms`."""

    first: Scaling
    second: Scaling


class Coefficients(NamedTuple):
    """The coefficients of a norm's gradient: 1 / N or 0, 1 / (N - ddof), epsilon on deviation."""

    inv_count: Any
    inv_divisor: Any
    eps_on_deviation: Any


class GradientCoefficients(NamedTuple):
    """The coefficients of a cell's two norms."""

    first: Coefficients
    second: Coefficients


class ZoneoutMasks(NamedTuple):
    """The zoneout masks (rows, H) of the state and of the cell, or None."""

    h: Any
    c: Any


class Gradients(NamedTuple):
    """The gradients that a backward kernel reads and writes.

    Attributes
    ----------
    dy : array (rows, H)
        For all states.
    dh, dc : array (batch, H)
        For the last states and cells; overwritten with the gradients of the initial ones.
    dz, dxp : array (rows of the step range, gates * H)
        The results, for both products, or for their sum and None.
    """

    dy: Any
    dh: Any
    dc: Any
    dz: Any
    dxp: Any


class Scratch(NamedTuple):
    """Scratch of a backward kernel: one row for each part, at the part's first batch row.

    Attributes
    ----------
    gates : array (batch, gates * H)
        Gradients of the gates' inputs.
    normalized, cell : array (batch, H)
        Gradients of the second norm's output, and of an LSTM's cell before its norm.
    """

    gates: Any
    normalized: Any
    cell: Any


class Sums(NamedTuple):
    """The sums of the parameters' gradients, one row for each group of batch rows.

    The groups depend on the shape alone, so the result does not depend on the threads.

    Attributes
    ----------
    sums, totals : array (groups, numbers)
        Sums in the compute dtype, which are flushed to totals in float64.
    size : int
        The number of batch rows in a group.
    """

    sums: Any
    totals: Any
    size: Any


class RowIndex(NamedTuple):
    """The indices of one row of one step.

    Attributes
    ----------
    i : int
        In the rows of all steps.
    b : int
        In the batch.
    before : int
        Of the previous state in `Saved.state`.
    batch : int
        The size of the batch.
    """

    i: Any
    b: Any
    before: Any
    batch: Any


class BackwardRowIndex(NamedTuple):
    """The indices of one row of one step in the backward pass.

    Attributes
    ----------
    i, b, before : int
        As in `RowIndex`.
    k : int
        In the rows of the step range.
    scratch : int
        In the scratch.
    distance : int
        From this row to the next one that the pass reads, which is prefetched.
    """

    i: Any
    b: Any
    before: Any
    k: Any
    scratch: Any
    distance: Any
