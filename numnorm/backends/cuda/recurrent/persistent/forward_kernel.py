"""The forward kernel of all steps of a recurrent cell: its blocks wait for each other.

A block has some units of some rows of the batch, from the first step to the last. What it needs of
the other blocks goes through the device's memory: the state of the step before, and of its slice
of a row that is normalized no more than four numbers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import Kernel, cuda, grid_barrier, shared_memory
from numnorm.backends.cuda.recurrent.common.product_norm import ProductNorm
from numnorm.backends.cuda.recurrent.common.step_parameters import (
    AdaNumbers,
    OfNorms,
    RowSpan,
    ScalingNumbers,
)
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.recurrent.persistent.slice_matmul import (
    make_slice_products,
    make_take_weights,
)
from numnorm.backends.cuda.recurrent.persistent.slice_threads import count_of, make_place_of
from numnorm.backends.cuda.threads.row_columns import make_read_columns, row_columns


class Inputs(NamedTuple):
    """What all steps read, and the states.

    Attributes
    ----------
    weights : (gates * H, H)
        Of the state.
    xp : (rows, gates * H)
        The products with x of all steps.
    state : (batch + rows, H)
        The states, first those given. The kernel writes the others.
    before : (batch, H)
        An LSTM's cells that are given, or else the states.
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
    batch_sizes: Any


class Arrays(NamedTuple):
    """The other arrays of all steps, 0 for what a cell does not have or is not to be saved.

    Attributes
    ----------
    mask_h, mask_c : (rows, H)
        Zoneout's masks.
    carried : (batch + rows, H)
        An LSTM's cells, those given first; or ``(batch, H)``, which become the last ones.
    products : (rows, gates * H)
        Those with the state; or both added up, where no norm is taken of each. This may be the
        array of the products with x.
    cell : (rows, H)
        An LSTM's cell before its norm, where the next step is handed another one.
    table : (rows, places, NUMBERS)
        The statistics. Another kernel writes those of products with x before.
    """

    mask_h: Any
    mask_c: Any
    carried: Any
    products: Any
    cell: Any
    table: Any


class Sizes(NamedTuple):
    """How many steps, rows, rows of the batch and of a group, slices and units.

    `kept` is 1 if an LSTM's cells of all steps are kept, else 0.
    """

    steps: Any
    rows: Any
    batch: Any
    group: Any
    slices: Any
    width: Any
    kept: Any = 1


class Rows(NamedTuple):
    """The rows of a step.

    Attributes
    ----------
    x : int
        The thread's row, among those of x.
    earlier, now : int
        Where the states begin that the step is handed, and those that it hands on.
    batch : int
        The number of rows of the batch.
    """

    x: Any
    earlier: Any
    now: Any
    batch: Any


class PersistentStep(NamedTuple):
    """What a step of one kind of cell makes of its products; each begins with the cell's form.

    Attributes
    ----------
    make_step : callable
        Makes ``step(values, before, addresses, ada, scalings, span, shard, rows, kept)`` for one
        unit of a row. The values are its products with the state and behind them those with x; it
        replaces what it is handed, `before`. The addresses are `Inputs`, `Arrays` and the weights.
    slice_places : callable
        Returns how many parts of a row have statistics of slices.
    product_norms : callable
        Returns the norms of the products.
    """

    make_step: Callable[[Any, ElementType, SliceShape], Any]
    slice_places: Callable[[Any], int]
    product_norms: Callable[[Any], tuple[ProductNorm, ...]]


def group_of(group: Any, kind: str = "address") -> Any:
    """Return a group of a kernel's parameters, all of one kind."""
    return group, (kind,) * len(group._fields)


def make_forward(
    gates: int, weights: Any, element: ElementType, shape: SliceShape, take_step: Any
) -> Kernel:
    """Return the kernel of all steps of a cell, to be launched by its plan.

    It takes `Inputs`, `Arrays`, the group of the cell's `weights`, `AdaNumbers`, of both norms
    `ScalingNumbers`, and `Sizes`.
    """
    place_of, compute_type = make_place_of(shape), element.compute_type
    read = make_read_columns(element, row_columns(element, shape.of_units))
    take_weights = make_take_weights(gates, element, shape)
    products_of, both = make_slice_products(gates, element, shape), 2 * gates

    def kernel(inputs, arrays, others, ada, scalings, sizes):
        values = cuda.local.array(both, compute_type)
        before = cuda.local.array(1, compute_type)
        memory, batch, width = shared_memory(), sizes.batch, sizes.width
        shard, at, first, mine = place_of(sizes.slices, sizes.group, batch, width)
        take_weights(memory, inputs.weights, at - shard[2], width)
        read(inputs.before, max(mine, 0) * width, at, width if mine >= 0 else 0, before)
        earlier, now = 0, batch
        for step in range(sizes.steps):
            count = count_of(inputs.batch_sizes, step, batch)
            row, limit = (mine, width) if 0 <= mine < count else (0, 0)
            xrow = now - batch + row
            for gate in range(gates):
                read(inputs.xp, (xrow * gates + gate) * width, at, limit, values[gates + gate :])
            if step > 0:
                grid_barrier()
            rows = min(sizes.group, count - first)
            products_of(memory, inputs.state, earlier + first, rows, width, values)
            take_step(
                values, before, (inputs, arrays, others), ada, scalings,
                RowSpan(row, width, at, limit), shard, Rows(xrow, earlier, now, batch), sizes.kept,
            )  # fmt: skip
            earlier, now = now, now + count

    scaling = group_of(ScalingNumbers, element.compute_name)
    parameters = (
        *map(group_of, (Inputs, Arrays, weights)), group_of(AdaNumbers, element.compute_name),
        (OfNorms, (scaling, scaling)), group_of(Sizes, "index"),
    )  # fmt: skip
    return Kernel(kernel, parameters, shape.threads)
