"""What the kernels and the passes of all recurrent cells need to know of one kind."""

from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.norms import Norm
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.recurrent.kernels.arguments import Parameters

# A cell's first norm and its second, each with the length of the rows that it is taken of.
Norms = tuple[tuple[Norm | None, int], tuple[Norm | None, int]]


class CellKind(NamedTuple):
    """A kind of recurrent cell.

    Attributes
    ----------
    name : str
    gates : int
        How many numbers for each unit a product has.
    sums : int
        How many numbers for each unit the gradients of the parameters are summed in.
    norms_each_product : callable
        ``norms_each_product(spec)``: whether both products are normalized, each by itself.
    accumulates : callable
        ``accumulates(spec)``: whether a row's gradient leaves something of the state before it,
        to which that of the product with the state is added.
    keeps_cell_apart : callable
        ``keeps_cell_apart(spec)``: whether the cell before its norm is not what is carried on.
    norms : callable
        ``norms(spec, width) -> Norms``
    statistics : callable
        ``statistics(spec)``: how many rows are normalized for each row of z, xp and the cell.
    parameters : callable
        ``parameters(spec, given, ada) -> Parameters``
    gradients : callable
        ``gradients(totals, width)``: the sums by the names of the parameters.
    make_row : callable
        ``make_row(spec, element_type)`` returns two compiled functions of one row of one step:
        ``row(z, xp, saved, parameters, scalings, masks, scratch, place)``
        All rows of a step are handed to the first, then all to the second, so that the processor
        begins with a row while it waits for the sums of the last.
    make_row_gradient : callable
        ``make_row_gradient(spec, element_type)`` returns that of its gradient:
        ``row(saved, parameters, coefficients, masks, gradients, scratch, sums, place)``
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
