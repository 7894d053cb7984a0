"""All steps of a normalized gated recurrent unit in one kernel, and back in another."""

from typing import Any, NamedTuple

from numnorm.backends.contract.recurrent import GRUForm
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import Kernel, cuda, device, grid_barrier
from numnorm.backends.cuda.recurrent.common.cell_norm import (
    NUMBERS,
    Parts,
    make_keep_statistics,
    make_kept_statistics,
    make_normalize,
)
from numnorm.backends.cuda.recurrent.gru.backward_kernel import SUMS, make_step_back
from numnorm.backends.cuda.recurrent.gru.forward_kernel import make_new_state
from numnorm.backends.cuda.recurrent.gru.gates import GATES, OF_GATES, OF_REST, make_gates, places
from numnorm.backends.cuda.recurrent.persistent.backward_kernel import make_backward
from numnorm.backends.cuda.recurrent.persistent.forward_kernel import make_forward
from numnorm.backends.cuda.recurrent.persistent.grid_statistics import make_gather, make_leave
from numnorm.backends.cuda.recurrent.persistent.grid_sums import slice_sums_of
from numnorm.backends.cuda.recurrent.persistent.plans import SliceShape
from numnorm.backends.cuda.threads.row_columns import make_write_columns, row_columns

# How many parts of a row have statistics of slices: those of the product with the state.
SLICE_PLACES = 2


class GRUParameters(NamedTuple):
    """The offsets of the gates and of the candidate's two parts, and the gammas."""

    offset: Any
    offset_x: Any
    offset_h: Any
    gamma_h: Any
    gamma_x: Any


class GRUArrays(NamedTuple):
    """The arrays of the forward pass.

    Attributes
    ----------
    keep : (rows, H)
        What zoneout keeps.
    products : (rows, 3H)
        Those with the state; 0 if they are not to be saved.
    statistics : (rows, places, NUMBERS)
        Another kernel writes those of the products with x before.
    """

    keep: Any
    products: Any
    statistics: Any


class GRUBackwardArrays(NamedTuple):
    """The arrays of the backward pass, in the order of the kernel of one step."""

    z: Any
    xp: Any
    state: Any
    table: Any
    keep: Any
    dy: Any
    dh: Any
    dxp: Any
    grad_z: Any
    grad_x: Any


def _make_normalized(form: GRUForm, element: Element, shape: SliceShape) -> Any:
    """Return a device function that normalizes a thread's units of both products.

    ``normalized(both, rest, tables, place, rows, scalings)``: the tables are ``slices,
    statistics``.
    """
    if form.norm is None:

        @device
        def plain(both, rest, tables, place, rows, scalings):
            pass

        return plain
    formula, working, numbers = form.norm.formula, element.working, 2 * NUMBERS
    of_both, of_rest = Parts(1, OF_GATES.sections), Parts(1, OF_REST.sections)
    leave_both, leave_rest = (make_leave(formula, element, shape, p) for p in (of_both, of_rest))
    gather_both, gather_rest = (make_gather(formula, element, shape, p) for p in (of_both, of_rest))
    normalize_both, normalize_rest = (
        make_normalize(element, shape.of_units, parts) for parts in (OF_GATES, OF_REST)
    )
    keep, kept = make_keep_statistics(element, 1), make_kept_statistics(element, 1)
    all_places = places(form)

    @device
    def normalized(both, rest, tables, place, rows, scalings):
        found = cuda.local.array(numbers, working)
        found_rest = cuda.local.array(numbers, working)
        slices, statistics = tables
        active, sliced, row, batch = place.limit > 0, place.sliced, rows.row, rows.batch
        kept(statistics, rows.xrow, all_places, 2, found[NUMBERS:])
        kept(statistics, rows.xrow, all_places, 3, found_rest[NUMBERS:])
        leave_both(both, sliced, 0, active, slices, row, batch, scalings[0], found)
        leave_rest(rest, sliced, 1, active, slices, row, batch, scalings[1], found_rest)
        grid_barrier()
        gather_both(sliced, 0, active, slices, row, batch, scalings[0], found)
        gather_rest(sliced, 1, active, slices, row, batch, scalings[1], found_rest)
        if active and place.column == 0:
            keep(statistics, rows.xrow, all_places, 0, found)
            keep(statistics, rows.xrow, all_places, 1, found_rest)
        normalize_both(both, found, place.column, place.limit)
        normalize_rest(rest, found_rest, place.column, place.limit)

    return normalized


def make_gru_forward(form: GRUForm, element: Element, shape: SliceShape) -> Kernel:
    """Return the kernel of all steps of a gated recurrent unit."""
    write = make_write_columns(element, row_columns(element, shape.of_units))
    normalized, working = _make_normalized(form, element, shape), element.working
    gates_of, new_state = (
        make(form, element, shape.of_units) for make in (make_gates, make_new_state)
    )
    size = element.itemsize

    @device
    def take_step(values, before, addresses, numbers, scalings, place, rows, kept):
        both = cuda.local.array(4, working)
        rest = cuda.local.array(2, working)
        gates = cuda.local.array(4, working)
        new = cuda.local.array(1, working)
        inputs, arrays, weights = addresses
        width, column, limit, of_row = place.width, place.column, place.limit, place.width * size
        if arrays.products != 0:
            for gate in range(GATES):
                at = (rows.xrow * GATES + gate) * width
                write(arrays.products, at, column, limit, values[gate:])
        for gate in range(2):
            both[gate], both[2 + gate] = values[gate], values[GATES + gate]
        rest[0], rest[1] = values[2], values[GATES + 2]
        normalized(both, rest, (inputs.slices, arrays.statistics), place, rows, scalings)
        gates_of(both, rest, weights, numbers, column, width, gates)
        keep = arrays.keep + (rows.now - rows.batch) * of_row
        new_state(keep, rows.row, width, column, gates, before, new)
        write(inputs.state + rows.now * of_row, rows.row * width, column, limit, new)
        before[0] = new[0]

    return make_forward(GATES, element, shape, (GRUArrays, GRUParameters), take_step)


def make_gru_backward(form: GRUForm, element: Element, shape: SliceShape) -> Kernel:
    """Return the kernel of all steps of a gated recurrent unit back."""
    sums_of = slice_sums_of(element, shape.units)
    step_back = make_step_back(form, element, shape.of_units, sums_of)
    of_table, size = places(form) * NUMBERS * element.itemsize, element.itemsize

    @device
    def take_step_back(addresses, numbers, coefficients, place, rows):
        inputs, a, others = addresses
        of_row, row, slices = place.width * size, rows.row, rows.slices
        now, earlier = rows.start * of_row, rows.earlier * of_row
        wide = GATES * now
        step_back(
            (a.z + wide, a.xp + wide, a.state + earlier, a.table + rows.start * of_table), others,
            (a.dy + now, inputs.product, a.dh, a.keep + now),
            (inputs.dz + wide, a.dxp + wide, a.grad_z + wide, a.grad_x + wide),
            row, rows.later, place.width, place.column, place.limit, numbers, coefficients,
            (inputs.sums, row * SUMS * slices, slices, place.sliced[1], place.limit > 0),
        )  # fmt: skip

    return make_backward(GATES, element, shape, (GRUBackwardArrays, GRUParameters), take_step_back)
