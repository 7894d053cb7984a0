"""The backward kernel of all steps of a recurrent cell: its blocks wait for each other.

A block has the same units of some rows from the last step to the first, as forward. Of the others
it needs what reaches the products of the step behind, and of a row that was normalized its sums.
"""

from typing import Any, NamedTuple

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import Kernel, grid_barrier, shared_memory
from numnorm.backends.cuda.recurrent.common.cell_norm import NUMBERS
from numnorm.backends.cuda.recurrent.common.cell_passes import FormFacts
from numnorm.backends.cuda.recurrent.common.step_kernels import StepKind
from numnorm.backends.cuda.recurrent.common.step_parameters import (
    AdaNumbers,
    FlowNumbers,
    Incoming,
    OfNorms,
    ReadBack,
    Results,
    RowSpan,
)
from numnorm.backends.cuda.recurrent.persistent.forward_kernel import Sizes, group_of
from numnorm.backends.cuda.recurrent.persistent.grid_sums import slice_sums_of
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.recurrent.persistent.slice_matmul import make_pass_on, make_take_columns
from numnorm.backends.cuda.recurrent.persistent.slice_threads import count_of, make_place_of


class BackwardInputs(NamedTuple):
    """What all steps back read besides the groups of one step.

    Attributes
    ----------
    weights : (gates * H, H)
        Of the state.
    sums : (batch * sums * slices,)
        Room for the shares of slices of the sums of a row.
    counts : (steps,) of int32
        The number of rows of each step; 0 if it is always the batch.
    """

    weights: Any
    sums: Any
    batch_sizes: Any


def sums_of_row(step: StepKind, spec: Any) -> int:
    """Return how many sums of a row have shares of slices."""
    return 2 * sum(step.parts(spec))


def make_backward(
    step: StepKind, gates: int, facts: FormFacts, spec: Any, element: ElementType, shape: SliceShape
) -> Kernel:
    """Return the kernel of all steps of a cell back, to be launched by its plan.

    It takes `BackwardInputs`; the groups of addresses that the kernel of one step takes, of the
    first row of all; `AdaNumbers`, of both norms `FlowNumbers`, and `Sizes`. `Incoming.product`
    becomes what the first states get through the products.
    """
    place_of, take_columns = make_place_of(shape), make_take_columns(element, shape)
    sections, sums_of = facts.other_sections, slice_sums_of(element, shape.units)
    pass_on = make_pass_on(gates, element, shape)
    step_back = step.make_step_back(spec, element, shape.of_units, sums_of)
    all_sums, of_gates = sums_of_row(step, spec), 2 * step.parts(spec)[0]
    size, of_table = element.itemsize, facts.sites * NUMBERS * element.itemsize

    def kernel(inputs, saved, others, incoming, results, ada, coefficients, sizes):
        memory, batch, width, slices = shared_memory(), sizes.batch, sizes.width, sizes.slices
        shard, at, first, mine = place_of(slices, sizes.group, batch, width)
        take_columns(memory, inputs.weights, at - shard[2], gates * width, width)
        start, later, of_row, product = sizes.rows, 0, width * size, incoming.product
        for t in range(sizes.steps, -1, -1):
            if t < sizes.steps:
                grid_barrier()
                rows = min(sizes.group, later - first)
                pass_on(memory, results.dz, start, rows, first, mine, at, width, product)
            if t > 0:
                count = count_of(inputs.batch_sizes, t - 1, batch)
                before = count_of(inputs.batch_sizes, max(t - 2, 0), batch)
                start -= count
                active = 0 <= mine < count
                row, limit = (mine, width) if active else (0, 0)
                now, earlier = start * of_row, (batch + start - before if t > 1 else 0) * of_row
                wide, inv_counts = gates * now, row * all_sums * slices
                step_back(
                    ReadBack(
                        saved.z + wide, saved.xp + wide, saved.cell + now, saved.before + earlier,
                        saved.table + start * of_table,
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
                        (inputs.sums, inv_counts, slices, shard[1], active),
                        (inputs.sums, inv_counts + of_gates * slices, slices, shard[1], active),
                    ),
                )  # fmt: skip
                later = count

    flow = group_of(FlowNumbers, element.compute_name)
    groups = BackwardInputs, ReadBack, step.weights, Incoming, Results
    parameters = (
        *map(group_of, groups), group_of(AdaNumbers, element.compute_name),
        (OfNorms, (flow, flow)), group_of(Sizes, "index"),
    )  # fmt: skip
    return Kernel(kernel, parameters, shape.threads)
