"""The forward kernel of all steps of a recurrent cell: its blocks wait for each other.

A block has some units of some rows of the batch, from the first step to the last. What it needs of
the other blocks goes through the device's memory: the state of the step before, and of its slice
of a row that is normalized no more than four numbers.
"""

from typing import Any, NamedTuple

from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import Kernel, cuda, grid_barrier, shared_memory
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.recurrent.persistent.slice_matmul import (
    make_slice_products,
    make_take_weights,
)
from numnorm.backends.cuda.recurrent.persistent.slice_threads import count_of, make_place_of
from numnorm.backends.cuda.threads.row_columns import make_read_columns, row_columns


class Inputs(NamedTuple):
    """The addresses that every forward kernel takes.

    Attributes
    ----------
    weights : (gates * H, H)
        Of the state.
    xp : (rows, gates * H)
        The products with x of all steps.
    state : (batch + rows, H)
        The states, first those given. The kernel writes the others.
    before : (batch, H)
        What a cell hands on besides the state, or else the state.
    slices : (batch * places * slices, NUMBERS)
        Room for the statistics of slices.
    counts : (steps,) of int32
        The number of rows of each step; 0 if it is always the batch.
    """

    weights: Any
    xp: Any
    state: Any
    before: Any
    slices: Any
    counts: Any


class Sizes(NamedTuple):
    """How many steps, rows, rows of the batch and of a group, slices and units.

    `kept` is 1 if what a cell hands on besides the state is kept of each step, else 0.
    """

    steps: Any
    rows: Any
    batch: Any
    group: Any
    slices: Any
    width: Any
    kept: Any = 1


class ScalingNumbers(NamedTuple):
    """The scaling of a norm, as the forward kernel of one step takes it."""

    inv_count: Any
    inv_divisor: Any
    eps: Any
    eps_on_deviation: Any
    root_eps: Any


class Place(NamedTuple):
    """Which unit a thread has: its slice, as `make_place_of` returns it, and its column.

    The limit is the width (H), or 0 for a thread without a row in this step.
    """

    sliced: Any
    column: Any
    limit: Any
    width: Any


class Rows(NamedTuple):
    """The rows of a step.

    Attributes
    ----------
    row : int
        That of the thread, among those of the batch.
    xrow : int
        The same, among those of x.
    earlier, now : int
        Where the states begin that the step is handed, and those that it hands on.
    batch : int
        The number of rows of the batch.
    """

    row: Any
    xrow: Any
    earlier: Any
    now: Any
    batch: Any


def group_of(group: Any, kind: str = "address") -> Any:
    """Return a group of a kernel's parameters, all of one kind."""
    return group, (kind,) * len(group._fields)


def make_forward(
    gates: int, element: Element, shape: SliceShape, groups: tuple[Any, Any], take_step: Any
) -> Kernel:
    """Return the kernel of all steps of a cell, to be launched by its plan.

    It takes `Inputs`, and of its kind of cell the addresses of arrays and of parameters, whose
    classes are the groups; the numbers ``gain, bias``; two times `ScalingNumbers`; and `Sizes`.

    ``take_step(values, before, addresses, numbers, scalings, place, rows, kept)`` is a device
    function of what follows from the products of a step, of one unit of a row: the values are the
    products with the state and behind them those with x. It also replaces `before`.
    """
    place_of, working = make_place_of(shape), element.working
    read = make_read_columns(element, row_columns(element, shape.of_units))
    take_weights = make_take_weights(gates, element, shape)
    products_of, both = make_slice_products(gates, element, shape), 2 * gates

    def kernel(inputs, arrays, parameters, gain, bias, scaling, other_scaling, sizes):
        values = cuda.local.array(both, working)
        before = cuda.local.array(1, working)
        memory, batch, width = shared_memory(), sizes.batch, sizes.width
        sliced, column, first, mine = place_of(sizes.slices, sizes.group, batch, width)
        take_weights(memory, inputs.weights, column - sliced[2], width)
        read(inputs.before, max(mine, 0) * width, column, width if mine >= 0 else 0, before)
        earlier, now = 0, batch
        for step in range(sizes.steps):
            count = count_of(inputs.counts, step, batch)
            row, limit = (mine, width) if 0 <= mine < count else (0, 0)
            xrow = now - batch + row
            for gate in range(gates):
                at = (xrow * gates + gate) * width
                read(inputs.xp, at, column, limit, values[gates + gate :])
            if step > 0:
                grid_barrier()
            rows = min(sizes.group, count - first)
            products_of(memory, inputs.state, earlier + first, rows, width, values)
            take_step(
                values, before, (inputs, arrays, parameters), (gain, bias),
                (scaling, other_scaling), Place(sliced, column, limit, width),
                Rows(row, xrow, earlier, now, batch), sizes.kept,
            )  # fmt: skip
            earlier, now = now, now + count

    scaling = group_of(ScalingNumbers, element.working_name)
    numbers = element.working_name, element.working_name, scaling, scaling
    kinds = group_of(Inputs), *map(group_of, groups), *numbers, group_of(Sizes, "index")
    return Kernel(kernel, kinds, shape.threads)
