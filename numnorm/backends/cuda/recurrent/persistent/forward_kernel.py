"""The forward kernel of a recurrent cell: one cooperative launch takes all steps.

A block has the same units of the same rows of the batch from the first step to the last. Blocks
exchange two things through global memory: the states of the previous step, and four numbers of
statistics for each slice of a normalized row.
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
from numnorm.backends.cuda.recurrent.persistent.slice_threads import batch_size_of, make_locate
from numnorm.backends.cuda.threads.row_columns import make_read_columns, row_columns


class Inputs(NamedTuple):
    """The inputs of all steps (read), the states and scratch.

    Attributes
    ----------
    weights : (gates * H, H)
        The weights of the state.
    xp : (rows, gates * H)
        The products W_x x of all steps. Read.
    state : (batch + rows, H)
        The initial states, and behind them the states that the kernel writes.
    before : (batch, H)
        The initial cells of an LSTM, or the initial states of another cell.
    slices : (batch * sites * slices, NUMBERS)
        Scratch for the statistics of slices.
    batch_sizes : (steps,) of int32
        The number of rows of each step; the address is 0 if every step has all rows of the batch.
    """

    weights: Any
    xp: Any
    state: Any
    before: Any
    slices: Any
    batch_sizes: Any


class Arrays(NamedTuple):
    """The other arrays of all steps; the address is 0 for an array that is missing or not saved.

    Attributes
    ----------
    mask_h, mask_c : (rows, H)
        The zoneout masks.
    carried : (batch + rows, H) or (batch, H)
        The cells of an LSTM: the initial ones and behind them those of all steps, or only the
        initial ones, which the last ones replace.
    products : (rows, gates * H)
        Written: the products W_h h with the state or, unless each product has its own norm, their
        sums with the products W_x x, whose array this may be.
    cell : (rows, H)
        The cell of an LSTM before its norm, if the next step gets a different one.
    table : (rows, sites, NUMBERS)
        The statistics. An earlier kernel writes those of the products with x.
    """

    mask_h: Any
    mask_c: Any
    carried: Any
    products: Any
    cell: Any
    table: Any


class Sizes(NamedTuple):
    """The numbers that the kernel of all steps takes.

    Attributes
    ----------
    steps, rows : index
        The numbers of steps and of rows of all steps.
    batch, group : index
        The numbers of rows of the batch, and of a group of batch rows.
    slices, width : index
        The numbers of slices of the units and of units.
    save_cells : index
        1 if the cells of all steps of an LSTM are saved, else 0.
    """

    steps: Any
    rows: Any
    batch: Any
    group: Any
    slices: Any
    width: Any
    save_cells: Any = 1


class Rows(NamedTuple):
    """The rows of a step.

    Attributes
    ----------
    x : int
        The thread's row in x.
    earlier, now : int
        The first rows of the old and of the new states in `Inputs.state`.
    batch : int
        The number of rows of the batch.
    """

    x: Any
    earlier: Any
    now: Any
    batch: Any


class PersistentStep(NamedTuple):
    """The functions of one kind of cell. The first argument of each is the spec of the cell.

    Attributes
    ----------
    make_step : callable
        Returns a device function ``step(values, before, addresses, ada, scalings, span, shard,
        rows, save_cells)``, which computes one unit of a row from its products. `values` has the
        products with the state and behind them those with x. `before` has the unit's old cell or
        state, which the function replaces by the new one. The addresses are `Inputs`, `Arrays` and
        the other weights.
    slice_sites : callable
        Returns the number of parts of a row that have statistics of slices.
    product_norms : callable
        Returns the norms of the products.
    """

    make_step: Callable[[Any, ElementType, SliceShape], Any]
    slice_sites: Callable[[Any], int]
    product_norms: Callable[[Any], tuple[ProductNorm, ...]]


def group_of(group: Any, kind: str = "address") -> Any:
    """Return a NamedTuple as a kernel's parameter, its fields all of one kind."""
    return group, (kind,) * len(group._fields)


def make_forward(
    gates: int, weights: Any, element: ElementType, shape: SliceShape, take_step: Any
) -> Kernel:
    """Return the forward kernel of all steps, to be launched by a plan with this shape.

    ``kernel(inputs, arrays, others, ada, scalings, sizes)`` takes `Inputs`, `Arrays`, the other
    weights as the NamedTuple `weights`, `AdaNumbers`, `ScalingNumbers` of both norms, and `Sizes`.
    """
    locate, compute_type = make_locate(shape), element.compute_type
    read = make_read_columns(element, row_columns(element, shape.of_units))
    take_weights = make_take_weights(gates, element, shape)
    products_of, both = make_slice_products(gates, element, shape), 2 * gates

    def kernel(inputs, arrays, others, ada, scalings, sizes):
        values = cuda.local.array(both, compute_type)
        before = cuda.local.array(1, compute_type)
        memory, batch, width = shared_memory(), sizes.batch, sizes.width
        shard, at, first, own = locate(sizes.slices, sizes.group, batch, width)
        take_weights(memory, inputs.weights, at - shard[2], width)
        read(inputs.before, max(own, 0) * width, at, width if own >= 0 else 0, before)
        earlier, now = 0, batch
        for step in range(sizes.steps):
            count = batch_size_of(inputs.batch_sizes, step, batch)
            row, limit = (own, width) if 0 <= own < count else (0, 0)
            xrow = now - batch + row
            for gate in range(gates):
                read(inputs.xp, (xrow * gates + gate) * width, at, limit, values[gates + gate :])
            if step > 0:
                grid_barrier()
            rows = min(sizes.group, count - first)
            products_of(memory, inputs.state, earlier + first, rows, width, values)
            take_step(
                values, before, (inputs, arrays, others), ada, scalings,
                RowSpan(row, width, at, limit), shard, Rows(xrow, earlier, now, batch),
                sizes.save_cells,
            )  # fmt: skip
            earlier, now = now, now + count

    scaling = group_of(ScalingNumbers, element.compute_name)
    parameters = (
        *map(group_of, (Inputs, Arrays, weights)), group_of(AdaNumbers, element.compute_name),
        (OfNorms, (scaling, scaling)), group_of(Sizes, "index"),
    )  # fmt: skip
    return Kernel(kernel, parameters, shape.threads, grid_barriers=True)
