"""The interface between the kernels that all recurrent cells share and one kind of cell."""

from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.norms import Norm
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.recurrent.kernels.arguments import Parameters

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
