"""The backward kernel of all steps of a normalized gated recurrent unit.

Its blocks wait for each other, as those of an LSTM do: for what reaches the products of the step
behind, and once for all norms.
"""

from numnorm.backends.contract.recurrent import GRUForm
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import Kernel, grid_barrier, shared_memory
from numnorm.backends.cuda.recurrent.common.cell_norm import NUMBERS
from numnorm.backends.cuda.recurrent.common.step_parameters import (
    Incoming,
    OfNorms,
    ReadBack,
    Results,
    RowSpan,
)
from numnorm.backends.cuda.recurrent.gru.gates import GATES, places
from numnorm.backends.cuda.recurrent.gru.step import SUMS, GRUWeights, make_step_back
from numnorm.backends.cuda.recurrent.persistent.grid_sums import slice_sums_of
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.recurrent.persistent.slice_matmul import make_pass_on, make_take_columns
from numnorm.backends.cuda.recurrent.persistent.slice_threads import count_of, make_place_of


def make_gru_persistent_backward(form: GRUForm, element: Element, shape: SliceShape) -> Kernel:
    """Return the kernel of all steps back, to be launched by its plan.

    It takes as addresses, each of the first row of all:

    - ``weights (3H, H)`` of the state;
    - ``z, xp, state, table``, as they were saved, and the offsets, the gammas and ``keep``, as the
      kernel of one step;
    - ``dy``; ``product (batch, H)``, which becomes what the first states get through the products;
      ``dh (batch, H)`` and the results, as the kernel of one step;
    - ``sums``, room for the shares of all slices of the sums of the rows of the batch;
    - ``counts``, the int32 number of rows of each step; 0 if it is the batch in all;

    then ``steps, rows, batch, group, slices, width``, and the numbers of the kernel of one step.
    """
    place_of, size = make_place_of(shape), element.itemsize
    take_columns, pass_on = (
        make_take_columns(element, shape),
        make_pass_on(GATES, element, shape),
    )
    sums_of = slice_sums_of(element, shape.units)
    step_back = make_step_back(form, element, shape.of_units, sums_of)
    of_table = places(form) * NUMBERS * size

    def kernel(
        weights, z, xp, state, table, offset, offset_x, offset_h, gamma_h, gamma_x, keep,
        dy, product, dh, dz, dxp, slopes_z, slopes_x, sums, counts,
        steps, all_rows, batch, group, slices, width, gain, bias,
        mean_share, scale_share, eps_on_deviation,
        rest_mean_share, rest_scale_share, rest_eps_on_deviation,
    ):  # fmt: skip
        memory = shared_memory()
        sliced, column, first, mine = place_of(slices, group, batch, width)
        take_columns(memory, weights, column - sliced[2], GATES * width, width)
        others = GRUWeights(offset, offset_x, offset_h, gamma_h, gamma_x)
        flows = OfNorms(
            (mean_share, scale_share, eps_on_deviation),
            (rest_mean_share, rest_scale_share, rest_eps_on_deviation),
        )
        start, later, of_row = all_rows, 0, width * size
        for step in range(steps, -1, -1):
            if step < steps:
                grid_barrier()
                rows = min(group, later - first)
                pass_on(memory, dz, start, rows, first, mine, column, width, product)
            if step > 0:
                count = count_of(counts, step - 1, batch)
                before = count_of(counts, max(step - 2, 0), batch)
                start -= count
                there = 0 <= mine < count
                row, limit = (mine, width) if there else (0, 0)
                now, earlier = start * of_row, (batch + start - before if step > 1 else 0) * of_row
                wide = GATES * now
                step_back(
                    ReadBack(z + wide, xp + wide, 0, state + earlier, table + start * of_table),
                    others, Incoming(dy + now, product, dh, 0, keep + now, 0),
                    Results(dz + wide, dxp + wide, slopes_z + wide, slopes_x + wide),
                    RowSpan(row, width, column, limit), later, (gain, bias), flows,
                    ((sums, row * SUMS * slices, slices, sliced[1], there),),
                )  # fmt: skip
                later = count

    parameters = ("address",) * 20 + ("index",) * 6 + (element.working_name,) * 8
    return Kernel(kernel, parameters, shape.threads)
