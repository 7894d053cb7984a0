"""The backward kernel of all steps of a recurrent cell: its blocks wait for each other.

A block has the same units of some rows from the last step to the first, as forward. Of the others
it needs what reaches the products of the step behind, and of a row that was normalized its sums.
"""

from typing import Any, NamedTuple

from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import Kernel, grid_barrier, shared_memory
from numnorm.backends.cuda.recurrent.persistent.forward_kernel import Place, Sizes, group_of
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.recurrent.persistent.slice_matmul import make_pass_on, make_take_columns
from numnorm.backends.cuda.recurrent.persistent.slice_threads import count_of, make_place_of


class BackwardInputs(NamedTuple):
    """The addresses that every backward kernel takes.

    Attributes
    ----------
    weights : (gates * H, H)
        Of the state.
    dz : (rows, gates * H)
        The gradients of the products with the state, which the kernel writes.
    product : (batch, H)
        What the states get through them; in the end the first states.
    sums : (batch * sums * slices,)
        Room for the shares of slices of the sums of a row.
    counts : (steps,) of int32
        The number of rows of each step; 0 if it is always the batch.
    """

    weights: Any
    dz: Any
    product: Any
    sums: Any
    counts: Any


class GradientCoefficients(NamedTuple):
    """The scaling of a norm, as the backward kernel of one step takes it."""

    inv_count: Any
    inv_divisor: Any
    eps_on_deviation: Any


class BackwardRows(NamedTuple):
    """The rows of a step on the way back.

    Attributes
    ----------
    row : int
        That of the thread, among those of the batch.
    start : int
        Where those of the step begin.
    earlier : int
        Where the states begin that the step was handed.
    later : int
        How many the step behind has.
    slices : int
        How many slices a row has.
    """

    row: Any
    start: Any
    earlier: Any
    later: Any
    slices: Any


def make_backward(
    gates: int, element: Element, shape: SliceShape, groups: tuple[Any, Any], step_back: Any
) -> Kernel:
    """Return the kernel of all steps back, to be launched by its plan.

    It takes `BackwardInputs`, and of its kind of cell the addresses of arrays and of parameters,
    whose classes are the groups; the numbers ``gain, bias``; two times `GradientCoefficients`; and
    `Sizes`.

    ``step_back(addresses, numbers, coefficients, place, rows)`` is a device function of one step.
    """
    place_of, take_columns = make_place_of(shape), make_take_columns(element, shape)
    pass_on = make_pass_on(gates, element, shape)

    def kernel(inputs, arrays, parameters, gain, bias, coefficients, other_coefficients, sizes):
        memory, batch, width, product = shared_memory(), sizes.batch, sizes.width, inputs.product
        sliced, column, first, mine = place_of(sizes.slices, sizes.group, batch, width)
        take_columns(memory, inputs.weights, column - sliced[2], gates * width, width)
        start, later = sizes.rows, 0
        for step in range(sizes.steps, -1, -1):
            if step < sizes.steps:
                grid_barrier()
                rows = min(sizes.group, later - first)
                pass_on(memory, inputs.dz, start, rows, first, mine, column, width, product)
            if step > 0:
                count = count_of(inputs.counts, step - 1, batch)
                before = count_of(inputs.counts, max(step - 2, 0), batch)
                start -= count
                row, limit = (mine, width) if 0 <= mine < count else (0, 0)
                earlier = batch + start - before if step > 1 else 0
                step_back(
                    (inputs, arrays, parameters), (gain, bias), (coefficients, other_coefficients),
                    Place(sliced, column, limit, width),
                    BackwardRows(row, start, earlier, later, sizes.slices),
                )  # fmt: skip
                later = count

    coefficients = group_of(GradientCoefficients, element.working_name)
    numbers = element.working_name, element.working_name, coefficients, coefficients
    kinds = group_of(BackwardInputs), *map(group_of, groups), *numbers, group_of(Sizes, "index")
    return Kernel(kernel, kinds, shape.threads)
