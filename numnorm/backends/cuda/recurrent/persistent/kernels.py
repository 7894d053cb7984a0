"""The kernels of a recurrent cell in which one cooperative launch takes all steps.

A block has the same units of the same rows of the batch in all steps. Blocks exchange two things
through global memory. Forward, these are the states of the previous step, and four numbers of
statistics for each slice of a normalized row; backward, the gradients of the products with the
state, and the partial sums of rows that were normalized.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.contract.norms import Norm
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    cuda,
    device,
    grid_barrier,
    load_index,
    make_load_one,
    shared_memory,
)
from numnorm.backends.cuda.recurrent.cell_kind import SpecFacts
from numnorm.backends.cuda.recurrent.cell_norm import (
    NUMBERS,
    SMEM_PER_WARP,
    Parts,
    make_cell_statistics,
    make_store_statistics,
    smem_for_parts,
)
from numnorm.backends.cuda.recurrent.persistent.grid_statistics import slice_sums_of
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.recurrent.persistent.slice_matmul import (
    make_pass_on,
    make_slice_products,
    make_take_columns,
    make_take_weights,
)
from numnorm.backends.cuda.recurrent.product_norm import ProductNorm
from numnorm.backends.cuda.recurrent.step_kernels import (
    AdaNumbers,
    GradientCoefficients,
    Incoming,
    OfNorms,
    ReadBack,
    Results,
    RowSpan,
    ScalingNumbers,
    StepKind,
)
from numnorm.backends.cuda.threads.row_columns import make_read_columns, row_columns
from numnorm.backends.cuda.threads.row_shape import RowShape

# The threads of a slice, and the size of a step


def make_locate(shape: SliceShape) -> Any:
    """Return a device function ``locate(slices, group, batch, width)`` for a thread.

    There are `slices` of the units, and groups of `group` rows of the batch. It returns ``shard,
    unit, first, row``: the first row of the block's group and the thread's row, -1 if it has none.
    The shard is ``(slices, slice, unit in the slice, units of the slice, units of the last)``.
    """
    units = shape.units

    @device
    def locate(slices, group, batch, width):
        part, first = cuda.blockIdx.x % slices, cuda.blockIdx.x // slices * group
        unit, team = cuda.threadIdx.x % units, cuda.threadIdx.x // units
        last = width - (slices - 1) * units
        shard = slices, part, unit, units if part < slices - 1 else last, last
        row = first + team if team < group and first + team < batch else -1
        return shard, part * units + unit, first, row

    return locate


@device
def batch_size_of(batch_sizes: Any, step: Any, batch: Any) -> Any:
    """Return the number of rows of a step: without an array of them, that of the batch."""
    return load_index(batch_sizes, step) if batch_sizes != 0 else batch


# Forward


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
    locate = make_locate(shape)
    compute_type = element.compute_type
    read = make_read_columns(element, row_columns(element, shape.of_units))
    take_weights = make_take_weights(gates, element, shape)
    products_of = make_slice_products(gates, element, shape)
    both = 2 * gates

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


# Statistics of the products with x, for all steps at once


def make_product_statistics(
    norm: Norm, count: int, element: ElementType, shape: RowShape
) -> Kernel:
    """Return the kernel for a norm that takes `count` gates of a row together.

    ``kernel(xp, table, rows, width, gates, first, sites, site, scaling)`` takes the addresses of
    ``xp (rows, gates * H)`` and of ``table (rows, sites, NUMBERS)``, the number of rows, H, the
    number of gates of a product, the first of the `count` gates, the number of statistics of a
    row, the number of those that the kernel writes, and `ScalingNumbers`.
    """
    columns = row_columns(element, shape)
    compute_type = element.compute_type
    read = make_read_columns(element, columns)
    load_one = make_load_one(element)
    statistics = make_cell_statistics(norm.formula, element, shape, Parts(1, count))
    save_stats = make_store_statistics(element, 1)
    team, teams = shape.team, shape.teams
    lanes, slots = columns.lanes, columns.slots
    size, smem_size = count * columns.slots, SMEM_PER_WARP * smem_for_parts(1, shape)

    def kernel(xp, table, rows, width, gates, first, sites, site, scaling):
        smem = cuda.shared.array(smem_size, compute_type)
        values = cuda.local.array(size, compute_type)
        origins = cuda.local.array(1, compute_type)
        stats = cuda.local.array(NUMBERS, compute_type)
        row = cuda.blockIdx.x * teams + cuda.threadIdx.x // team
        at = cuda.threadIdx.x % team * lanes
        active = row < rows
        row = row if active else rows - 1
        start = (row * gates + first) * width
        origins[0] = load_one(xp, start)
        for gate in range(count):
            read(xp, start + gate * width, at, width, values[gate * slots :])
        statistics(values, origins, stats, at, width, scaling, smem)
        if active and cuda.threadIdx.x % team == 0:
            save_stats(table, row, sites, site, stats)

    scaling = group_of(ScalingNumbers, element.compute_name)
    return Kernel(kernel, (*("address",) * 2, *("index",) * 6, scaling), shape.threads)


# Backward


class BackwardInputs(NamedTuple):
    """What the kernel reads besides the parameter groups of one backward step.

    Attributes
    ----------
    weights : (gates * H, H)
        The weights of the state.
    sums : (batch * sums * slices,)
        Scratch for each slice's part of the sums of a row.
    batch_sizes : (steps,) of int32
        The number of rows of each step; the address is 0 if every step has all rows of the batch.
    """

    weights: Any
    sums: Any
    batch_sizes: Any


def sums_of_row(step: StepKind, spec: Any) -> int:
    """Return how many sums over a row a step needs: two for each normalized part."""
    return 2 * sum(step.parts(spec))


def make_backward(
    step: StepKind, gates: int, facts: SpecFacts, spec: Any, element: ElementType, shape: SliceShape
) -> Kernel:
    """Return the backward kernel of all steps, to be launched by a plan with this shape.

    ``kernel(inputs, saved, others, incoming, results, ada, coefficients, sizes)`` takes
    `BackwardInputs`; the groups of addresses that the kernel of one step takes, here of the first
    row of all steps; `AdaNumbers`; `GradientCoefficients` of both norms; and `Sizes`. At the end
    `Incoming.product` is the gradient of the first states through the products.
    """
    locate = make_locate(shape)
    take_columns = make_take_columns(element, shape)
    sections = facts.other_sections
    sums_of = slice_sums_of(element, shape.units)
    pass_on = make_pass_on(gates, element, shape)
    step_back = step.make_step_back(spec, element, shape.of_units, sums_of)
    row_sums = sums_of_row(step, spec)
    gate_sums = 2 * step.parts(spec)[0]
    size = element.itemsize
    table_row = facts.sites * NUMBERS * element.itemsize

    def kernel(inputs, saved, others, incoming, results, ada, coefficients, sizes):
        memory, batch, width, slices = shared_memory(), sizes.batch, sizes.width, sizes.slices
        shard, at, first, own = locate(slices, sizes.group, batch, width)
        take_columns(memory, inputs.weights, at - shard[2], gates * width, width)
        start, later, of_row, product = sizes.rows, 0, width * size, incoming.product
        for t in range(sizes.steps, -1, -1):
            if t < sizes.steps:
                grid_barrier()
                rows = min(sizes.group, later - first)
                pass_on(memory, results.dz, start, rows, first, own, at, width, product)
            if t > 0:
                count = batch_size_of(inputs.batch_sizes, t - 1, batch)
                before = batch_size_of(inputs.batch_sizes, max(t - 2, 0), batch)
                start -= count
                active = 0 <= own < count
                row, limit = (own, width) if active else (0, 0)
                now, earlier = start * of_row, (batch + start - before if t > 1 else 0) * of_row
                wide, partials = gates * now, row * row_sums * slices
                step_back(
                    ReadBack(
                        saved.z + wide, saved.xp + wide, saved.cell + now, saved.before + earlier,
                        saved.table + start * table_row,
                    ),
                    others,
                    Incoming(
                        incoming.dy + now, product, incoming.dh, incoming.dc,
                        incoming.mask_h + now, incoming.mask_c + now,
                    ),
                    Results(
                        results.dz + wide, results.dxp + wide, results.gates + wide,
                        results.other + sections * now,
                    ),
                    RowSpan(row, width, at, limit), later, ada, coefficients,
                    (
                        (inputs.sums, partials, slices, shard[1], active),
                        (inputs.sums, partials + gate_sums * slices, slices, shard[1], active),
                    ),
                )  # fmt: skip
                later = count

    coefficients = group_of(GradientCoefficients, element.compute_name)
    groups = BackwardInputs, ReadBack, step.weights, Incoming, Results
    parameters = (
        *map(group_of, groups), group_of(AdaNumbers, element.compute_name),
        (OfNorms, (coefficients, coefficients)), group_of(Sizes, "index"),
    )  # fmt: skip
    return Kernel(kernel, parameters, shape.threads, grid_barriers=True)
