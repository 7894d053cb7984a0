"""The backward kernel of all steps of a normalized LSTM: its blocks wait for each other.

A block has the same units of some rows from the last step to the first, as forward. Of the others
it needs what reaches the gates in the step behind, and of a row that was normalized its sums.
"""

from numnorm.backends.contract.recurrent import LSTMForm
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
from numnorm.backends.cuda.recurrent.lstm.gates import GATES, gate_parts, places
from numnorm.backends.cuda.recurrent.lstm.step import LSTMWeights, make_step_back
from numnorm.backends.cuda.recurrent.persistent.grid_sums import slice_sums_of
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.recurrent.persistent.slice_matmul import make_pass_on, make_take_columns
from numnorm.backends.cuda.recurrent.persistent.slice_threads import count_of, make_place_of


def slice_sums(form: LSTMForm) -> tuple[int, int]:
    """Return of how many sums of a row blocks leave their shares: of its cell, and its gates."""
    return 2 * (form.cell is not None), 2 * gate_parts(form).count


def make_lstm_persistent_backward(form: LSTMForm, element: Element, shape: SliceShape) -> Kernel:
    """Return the kernel of all steps back, to be launched by its plan.

    It takes as addresses, each of the first row of all:

    - ``weights (4H, H)`` of the state;
    - ``z, xp, cell, carried, table``, as they were saved, and the offset, the parameters and what
      zoneout keeps, as the kernel of one step;
    - ``dy``; ``product (batch, H)``, which becomes what the first states get through the products;
      ``dh, dc (batch, H)`` and the results, as the kernel of one step;
    - ``sums``, room for the shares of all slices of the sums of the rows of the batch;
    - ``counts``, the int32 number of rows of each step; 0 if it is the batch in all;

    then ``steps, rows, batch, group, slices, width``, and the numbers of the kernel of one step.
    """
    place_of, size = make_place_of(shape), element.itemsize
    of_statistics = places(form) * NUMBERS * size
    take_columns = make_take_columns(element, shape)
    pass_on = make_pass_on(GATES, element, shape)
    sums_of = slice_sums_of(element, shape.units)
    step_back = make_step_back(form, element, shape.of_units, sums_of)
    of_cell, of_gates = slice_sums(form)

    def kernel(
        weights, z, xp, cell, carried, table, offset, gamma_h, gamma_x, gamma_c, beta_c,
        keep_h, keep_c, dy, product, dh, dc, dz, dxp, slopes, dn, sums, counts,
        steps, all_rows, batch, group, slices, width, gain, bias,
        mean_share, scale_share, eps_on_deviation,
        cell_mean_share, cell_scale_share, cell_eps_on_deviation,
    ):  # fmt: skip
        memory = shared_memory()
        sliced, column, first, mine = place_of(slices, group, batch, width)
        part = sliced[1]
        take_columns(memory, weights, column - sliced[2], GATES * width, width)
        others = LSTMWeights(offset, gamma_h, gamma_x, gamma_c, beta_c)
        flows = OfNorms(
            (mean_share, scale_share, eps_on_deviation),
            (cell_mean_share, cell_scale_share, cell_eps_on_deviation),
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
                shares = row * (of_cell + of_gates) * slices
                rooms = (
                    (sums, shares + of_cell * slices, slices, part, there),
                    (sums, shares, slices, part, there),
                )
                wide = GATES * now
                step_back(
                    ReadBack(
                        z + wide, xp + wide, cell + now, carried + earlier,
                        table + start * of_statistics,
                    ),
                    others, Incoming(dy + now, product, dh, dc, keep_h + now, keep_c + now),
                    Results(dz + wide, dxp + wide, slopes + wide, dn + now),
                    RowSpan(row, width, column, limit), later, (gain, bias), flows, rooms,
                )  # fmt: skip
                later = count

    parameters = ("address",) * 23 + ("index",) * 6 + (element.working_name,) * 8
    return Kernel(kernel, parameters, shape.threads)
