"""What the recurrent kernels take: groups of arguments, and the interface of one kind of cell.

Numba compiles the groups as named tuples; a member that a cell lacks is None. H is the number of
units; `rows` are the rows of all steps.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.norms import Norm
from numnorm.backends.cpu.memory.host_arrays import Array


class StepRange(NamedTuple):
    """The packed steps that a backward kernel runs. Read.

    Attributes
    ----------
    offsets, batch_sizes : array (steps,)
        The first row and the number of rows of each step.
    begin, end : int
        The kernel runs the steps from `begin` to `end` - 1, the last one first.
    """

    offsets: Any
    batch_sizes: Any
    begin: Any
    end: Any


class Factors(NamedTuple):
    """The operands of the matrix products of a forward kernel. Read.

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
    """The biases, and gamma and beta of each norm. Read.

    AdaNorm has a number in place of each gamma and beta.

    Attributes
    ----------
    offset : array (gates * H,)
        The sum of all that is added to the gates.
    offset_h : array (H,)
        What a GRU adds to the state's part of the candidate before the multiplication by r.
    gamma_h, beta_h : array (gates * H,)
        For the product with the state, or for the sum of both products.
    gamma_x, beta_x : array (gates * H,)
        For the product with x, if it has its own norm.
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
    """The mean and rstd of each normalized row, written forward and read backward.

    Attributes
    ----------
    mean_h, rstd_h : array (rows * norms,)
        For z, where each row has one or more norms, one after the other. All arrays have size 0 to
        save nothing.
    mean_x, rstd_x : array (rows * norms,)
        For xp.
    mean_c, rstd_c : array (rows,)
        For an LSTM's cell.
    """

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
        The products W_h h with the state and W_x x; their sum and None unless each is normalized.
    state : array (batch + rows, H)
        The initial states, then the states of each step. With projections H is their width here.
    dropped : array (batch + rows, H)
        The same with dropout, which are multiplied by the weights.
    carried : array (batch + rows, H)
        The initial cells of an LSTM, then the cells that each step passes to the next.
    cell : array (rows, H)
        The cells before their norm; of a GRU whose reset gate scales the state, the scaled states.
    outputs : array (rows, H)
        What an LSTM with projections projects.
    statistics : Statistics
        The statistics of all norms.
    """

    z: Any
    xp: Any
    state: Any
    dropped: Any
    carried: Any
    cell: Any
    outputs: Any
    statistics: Statistics


class Scaling(NamedTuple):
    """How a norm in the forward pass turns its sums into a deviation.

    Attributes
    ----------
    eps, eps_on_deviation : number
        What is added to the variance and to the deviation.
    divisor : number
        The sum of squared deviations is divided by it.
    """

    eps: Any
    eps_on_deviation: Any
    divisor: Any


class Scalings(NamedTuple):
    """The `Scaling` of each of a cell's two norms, in the order of `CellKind.norms`."""

    first: Scaling
    second: Scaling


class Coefficients(NamedTuple):
    """The numbers in the gradient of a norm.

    Attributes
    ----------
    inv_count : number
        1 / N for a norm of N elements, 0 if it is not centred.
    inv_divisor : number
        1 / (N - ddof).
    eps_on_deviation : number
        What is added to the deviation.
    """

    inv_count: Any
    inv_divisor: Any
    eps_on_deviation: Any


class GradientCoefficients(NamedTuple):
    """The `Coefficients` of each of a cell's two norms, in the order of `CellKind.norms`."""

    first: Coefficients
    second: Coefficients


class Masks(NamedTuple):
    """The masks of zoneout and dropout; None without them. Read.

    Attributes
    ----------
    h, c : array (rows, H) or None
        Of zoneout, for the state and for an LSTM's cell.
    dropout : array (batch, H) or None
        The factors of the state in its product with the weights.
    """

    h: Any
    c: Any
    dropout: Any


class Gradients(NamedTuple):
    """The gradients that a backward kernel reads and writes.

    Attributes
    ----------
    dy : array (rows, H)
        For all states. Read.
    dh, dc : array (batch, H)
        For the last states and cells. Read, then overwritten with those of the initial ones.
    dz, dxp : array (rows of the step range, gates * H)
        For both products, or for their sum and None. Written.
    projected : array (rows of the step range, H)
        For the projections of an LSTM. Written.
    """

    dy: Any
    dh: Any
    dc: Any
    dz: Any
    dxp: Any
    projected: Any


class Scratch(NamedTuple):
    """Scratch that a backward kernel writes and reads: one row for each part of the batch rows.

    A part's row has the index of the part's first batch row.

    Attributes
    ----------
    gates : array (batch, gates * H)
        Gradients of the gates' inputs.
    normalized, cell : array (batch, H)
        Gradients of the second norm's output, and of an LSTM's cell before its norm.
    outputs : array (batch, H) or None
        Gradients of what an LSTM projects, one row for each row of the batch.
    """

    gates: Any
    normalized: Any
    cell: Any
    outputs: Any


class Sums(NamedTuple):
    """The sums of the parameters' gradients, one row for each group of batch rows. Written.

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
    """Where a forward kernel finds one row of one step.

    Attributes
    ----------
    i : int
        Its index in the rows of all steps.
    b : int
        Its index in the batch.
    before : int
        The index of its previous state in `Saved.state`.
    batch : int
        The size of the batch.
    """

    i: Any
    b: Any
    before: Any
    batch: Any


class BackwardRowIndex(NamedTuple):
    """Where a backward kernel finds one row of one step.

    Attributes
    ----------
    i, b, before : int
        As in `RowIndex`.
    k : int
        Its index in the rows of the step range.
    scratch : int
        The index of its part's row in `Scratch`.
    distance : int
        From this row to the next one that the pass reads, which is prefetched.
    """

    i: Any
    b: Any
    before: Any
    k: Any
    scratch: Any
    distance: Any


# The kind of a cell


# A cell's two norms, each with the length of the rows that it normalizes.
Norms = tuple[tuple[Norm | None, int], tuple[Norm | None, int]]


class CellKind(NamedTuple):
    """A kind of recurrent cell.

    Attributes
    ----------
    name : str
    gates : int
        The width of a product, in units.
    sums : int
        The width of a row of `Sums`, in units.
    norms_each_product : callable
        ``norms_each_product(spec)``: whether each product is normalized by itself.
    accumulates : callable
        ``accumulates(spec)``: whether dh already holds a direct part of the previous state's
        gradient (zoneout, or a GRU's direct path from the old state) when the matmul runs. It then
        adds to dh, otherwise it overwrites dh.
    keeps_cell_apart : callable
        ``keeps_cell_apart(spec)``: whether the cell before its norm differs from the carried one.
    norms : callable
        ``norms(spec, width) -> Norms``
    statistics : callable
        ``statistics(spec)``: the numbers of norms in a row of z, of xp and of the cell.
    parameters : callable
        ``parameters(spec, given, ada) -> Parameters``
    gradients : callable
        ``gradients(totals, width)``: the parameters' gradients by name.
    make_row : callable
        ``make_row(spec, element_type)`` returns two compiled functions of one row of one step,
        ``row(z, xp, saved, parameters, scalings, masks, scratch, index)``, with a `RowIndex`.
        The first is called for all rows of a step, then the second, so that the processor starts
        a row while it waits for the statistics of the previous one.
    make_row_gradient : callable
        ``make_row_gradient(spec, element_type)`` returns a compiled function of one row's
        gradient, with a `BackwardRowIndex`:
        ``row(saved, parameters, coefficients, masks, gradients, scratch, sums, index)``
    resets_before : callable
        ``resets_before(spec)``: whether the first half stores the state times a reset gate in
        `Saved.cell`, whose product is then the last H columns of z.
    projects : callable
        ``projects(spec)``: whether the second half stores `Saved.outputs`, and the state is their
        product with further weights.
    make_second_gradient : callable
        The same as `make_row_gradient`, for what follows the gradient of that product.
    """

    name: str
    gates: int
    sums: int
    norms_each_product: Callable[[Any], bool]
    accumulates: Callable[[Any], bool]
    keeps_cell_apart: Callable[[Any], bool]
    norms: Callable[[Any, int], Norms]
    statistics: Callable[[Any], tuple[int, int, int]]
    parameters: Callable[[Any, Any, tuple[float, float]], Parameters]
    gradients: Callable[[Array, int], dict[str, Array]]
    make_row: Callable[[Any, Any], tuple[Callable[..., None], Callable[..., None]]]
    make_row_gradient: Callable[[Any, Any], Callable[..., None]]
    resets_before: Callable[[Any], bool] = lambda spec: False
    projects: Callable[[Any], bool] = lambda spec: False
    make_second_gradient: Callable[[Any, Any], Any] = lambda spec, element_type: None


# A cell's parameters as arguments


def added_up(size: int, dtype: Any, *values: Array | None) -> Array:
    """Return the sum of all values that are not None, which the kernels then add once."""
    total = np.zeros(size)
    with np.errstate(all="ignore"):  # a sum may leave the range of the dtype
        for value in values:
            if value is not None:
                total += value
        return total.astype(dtype)


def norm_pair(
    norm: Norm | None, gamma: Any, beta: Any, size: int, dtype: Any, ada: tuple[float, float]
) -> tuple[Any, Any]:
    """Return gamma and beta of a norm for the kernels: arrays, numbers for AdaNorm, or None."""
    if norm is None:
        return None, None
    if norm.parameters == 0:
        return dtype.type(ada[0]), dtype.type(ada[1])
    return np.ones(size, dtype) if gamma is None else gamma, beta
