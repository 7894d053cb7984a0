"""The statistics of an LSTM's products with x, of all steps at once."""

from numnorm.backends.contract import LSTMForm
from numnorm.backends.cuda.cell_norms import (
    NUMBERS,
    ROOMS,
    Parts,
    make_cell_statistics,
    make_keep_statistics,
    room_for_parts,
)
from numnorm.backends.cuda.elements import Element
from numnorm.backends.cuda.lstm_gates import GATES, places
from numnorm.backends.cuda.row_columns import make_read_columns, row_columns
from numnorm.backends.cuda.row_shape import RowShape
from numnorm.backends.cuda.target import Kernel, cuda, make_load_one

_PARTS, _PLACE = Parts(1, GATES), 1  # all gates are one row; the product with the state is before


def make_lstm_statistics(form: LSTMForm, element: Element, shape: RowShape) -> Kernel:
    """Return the kernel, for forms that normalize each product.

    It takes the addresses of ``xp (rows, 4H)`` and of ``statistics (rows, places, NUMBERS)``, of
    which it writes those of x; then ``rows, width`` (H), and the scaling as numbers.
    """
    assert form.gates is not None and form.by_product
    columns, working = row_columns(element, shape), element.working
    read, load_one = make_read_columns(element, columns), make_load_one(element)
    statistics = make_cell_statistics(form.gates.formula, element, shape, _PARTS)
    keep, all_places = make_keep_statistics(element, 1), places(form)
    lanes, slots, team, teams = columns.lanes, columns.slots, shape.team, shape.teams
    size, of_all = GATES * columns.slots, ROOMS * room_for_parts(1, shape)

    def kernel(xp, table, rows, width, share, scale_share, eps, eps_on_deviation, root_eps):
        room = cuda.shared.array(of_all, working)
        values = cuda.local.array(size, working)
        origins = cuda.local.array(1, working)
        found = cuda.local.array(NUMBERS, working)
        row, at = (
            cuda.blockIdx.x * teams + cuda.threadIdx.x // team,
            cuda.threadIdx.x % team * lanes,
        )
        there = row < rows
        row = row if there else rows - 1
        origins[0] = load_one(xp, row * GATES * width)
        for gate in range(GATES):
            read(xp, (row * GATES + gate) * width, at, width, values[gate * slots :])
        scaling = share, scale_share, eps, eps_on_deviation, root_eps
        statistics(values, origins, found, at, width, scaling, room)
        if there and cuda.threadIdx.x % team == 0:
            keep(table, row, all_places, _PLACE, found)

    parameters = ("address",) * 2 + ("index",) * 2 + (element.working_name,) * 5
    return Kernel(kernel, parameters, shape.threads)
