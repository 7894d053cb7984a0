"""All steps of a normalized plain recurrent network in one kernel, and back in another."""

from typing import Any, NamedTuple

from numnorm.backends.contract.recurrent import RNNForm
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import Kernel, cuda, device
from numnorm.backends.cuda.recurrent.common.cell_norm import (
    CELL,
    NUMBERS,
    make_keep_statistics,
    make_normalize,
)
from numnorm.backends.cuda.recurrent.persistent.backward_kernel import make_backward
from numnorm.backends.cuda.recurrent.persistent.forward_kernel import make_forward
from numnorm.backends.cuda.recurrent.persistent.grid_statistics import make_exchange
from numnorm.backends.cuda.recurrent.persistent.grid_sums import slice_sums_of
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.recurrent.rnn.backward_kernel import make_step_back
from numnorm.backends.cuda.recurrent.rnn.forward_kernel import make_new_state, make_write_state
from numnorm.backends.cuda.threads.row_columns import make_write_columns, row_columns

GATES = 1
# How many sums of a row have shares of slices, where the sums of products are normalized.
SUMS = 2


class RNNParameters(NamedTuple):
    """The offset and gamma."""

    offset: Any
    gamma: Any


class RNNArrays(NamedTuple):
    """The arrays of the forward pass, 0 for what is not to be saved.

    Attributes
    ----------
    keep : (rows, H)
        What zoneout keeps.
    sums : (rows, H)
        Both products added up; it may be xp.
    table : (rows, NUMBERS)
        The statistics.
    """

    keep: Any
    sums: Any
    table: Any


class RNNBackwardArrays(NamedTuple):
    """The arrays of the backward pass, in the order of the kernel of one step."""

    z: Any
    table: Any
    keep: Any
    dy: Any
    dh: Any
    grad: Any


def _make_normalized(form: RNNForm, element: Element, shape: SliceShape) -> Any:
    """Return a device function that normalizes the sum of both products.

    ``normalized(values, table, slices, place, rows, scaling)``: the table is 0 if the statistics
    are not to be saved.
    """
    if form.norm is None:

        @device
        def plain(values, table, slices, place, rows, scaling):
            pass

        return plain
    exchange = make_exchange(form.norm.formula, element, shape, CELL)
    normalize = make_normalize(element, shape.of_units, CELL)
    keep, working = make_keep_statistics(element, 1), element.working

    @device
    def normalized(values, table, slices, place, rows, scaling):
        found = cuda.local.array(NUMBERS, working)
        active = place.limit > 0
        exchange(values, place.sliced, 0, active, slices, rows.row, rows.batch, scaling, found)
        if active and table != 0 and place.column == 0:
            keep(table, rows.xrow, 1, 0, found)
        normalize(values, found, place.column, place.limit)

    return normalized


def make_rnn_forward(form: RNNForm, element: Element, shape: SliceShape) -> Kernel:
    """Return the kernel of all steps of a plain recurrent network."""
    write = make_write_columns(element, row_columns(element, shape.of_units))
    normalized, working = _make_normalized(form, element, shape), element.working
    new_state, write_state = (
        make(form, element, shape.of_units) for make in (make_new_state, make_write_state)
    )
    size = element.itemsize

    @device
    def take_step(values, before, addresses, numbers, scalings, place, rows, kept):
        weight = cuda.local.array(1, working)
        new = cuda.local.array(1, working)
        inputs, arrays, weights = addresses
        width, column, limit, of_row = place.width, place.column, place.limit, place.width * size
        values[0] += values[GATES]
        if arrays.sums != 0:
            write(arrays.sums, rows.xrow * width, column, limit, values)
        normalized(values, arrays.table, inputs.slices, place, rows, scalings[0])
        new_state(values, weights, numbers, column, width, weight, new)
        write_state(
            inputs.state + rows.now * of_row, inputs.state + rows.earlier * of_row,
            arrays.keep + (rows.now - rows.batch) * of_row, rows.row, width, column, limit, new,
        )  # fmt: skip

    return make_forward(GATES, element, shape, (RNNArrays, RNNParameters), take_step)


def make_rnn_backward(form: RNNForm, element: Element, shape: SliceShape) -> Kernel:
    """Return the kernel of all steps of a plain recurrent network back."""
    sums_of = slice_sums_of(element, shape.units)
    step_back = make_step_back(form, element, shape.of_units, sums_of)
    size = element.itemsize
    of_table = NUMBERS * size if form.norm else 0

    @device
    def take_step_back(addresses, numbers, coefficients, place, rows):
        inputs, a, others = addresses
        now, row, slices = rows.start * place.width * size, rows.row, rows.slices
        step_back(
            (a.z + now, a.table + rows.start * of_table), others,
            (a.dy + now, inputs.product, a.dh, a.keep + now),
            (inputs.dz + now, a.grad + now),
            row, rows.later, place.width, place.column, place.limit, numbers, coefficients[0],
            (inputs.sums, row * SUMS * slices, slices, place.sliced[1], place.limit > 0),
        )  # fmt: skip

    return make_backward(GATES, element, shape, (RNNBackwardArrays, RNNParameters), take_step_back)
