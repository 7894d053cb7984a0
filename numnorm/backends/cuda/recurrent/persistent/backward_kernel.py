"""The backward kernel of a recurrent cell: one cooperative launch takes all steps.

A block has the same units of the same rows from the last step to the first, as in the forward
kernel. Blocks exchange two things through global memory: the gradients of the products with the
state, and the partial sums of rows that were normalized.
"""

from typing import Any, NamedTuple

from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import Kernel, grid_barrier, shared_memory
from numnorm.backends.cuda.recurrent.common.cell_norm import NUMBERS
from numnorm.backends.cuda.recurrent.common.cell_passes import SpecFacts
from numnorm.backends.cuda.recurrent.common.step_kernels import StepKind
from numnorm.backends.cuda.recurrent.common.step_parameters import (
    AdaNumbers,
    GradientCoefficients,
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
from numnorm.backends.cuda.recurrent.persistent.slice_threads import batch_size_of, make_locate


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
    locate, take_columns = make_locate(shape), make_take_columns(element, shape)
    sections, sums_of = facts.other_sections, slice_sums_of(element, shape.units)
    pass_on = make_pass_on(gates, element, shape)
    step_back = step.make_step_back(spec, element, shape.of_units, sums_of)
    row_sums, gate_sums = sums_of_row(step, spec), 2 * step.parts(spec)[0]
    size, table_row = element.itemsize, facts.sites * NUMBERS * element.itemsize

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
