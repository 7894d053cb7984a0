"""The forward kernel of an LSTM with batch norm: what follows from the products of one step.

No unit depends on another: a block takes some of them, for all rows.
"""

from typing import Any

from numnorm.backends.contract.recurrent import LSTMForm
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    cuda,
    device,
    make_load_one,
    make_store_one,
    tangent,
)
from numnorm.backends.cuda.recurrent.batch_norm_lstm.column_threads import (
    LANES,
    STRIPS,
    THREADS,
    WARPS,
    room_for_folds,
)
from numnorm.backends.cuda.recurrent.batch_norm_lstm.gates import (
    make_gates_of_row,
    make_read_terms,
    terms_of,
)
from numnorm.backends.cuda.recurrent.batch_norm_lstm.step_statistics import (
    make_batch_statistics,
    make_keep_column,
    make_kept_column,
    make_place_of_cell,
    normalized_products,
    place_of_gate,
)
from numnorm.backends.cuda.recurrent.common.cell_norm import NUMBERS, normalized
from numnorm.backends.cuda.recurrent.lstm.gates import GATES
from numnorm.backends.cuda.threads.group_reductions import WARP


def _make_add_products(element: Element) -> Any:
    """Return a device function ``add_products(z, sums, unit, width, limit)``, of a thread's rows.

    It adds the products with the state to those with x.
    """
    load_one, store_one = make_load_one(element), make_store_one(element)

    @device
    def add_products(z, sums, unit, width, limit):
        row = cuda.threadIdx.x // LANES
        while row < limit:
            for gate in range(GATES):
                at = (row * GATES + gate) * width + unit
                store_one(sums, at, load_one(sums, at) + load_one(z, at))
            row += STRIPS

    return add_products


def _make_find_products(form: LSTMForm, element: Element) -> Any:
    """Return a device function of the statistics of a block's gates, which it leaves in the table.

    ``find_products(z, xp, limit, tables, place, share, eps, room)``: the tables are that of
    statistics, and the moments; the place is ``step, steps, width, unit``. Each warp takes one gate
    of one product.
    """
    statistics, keep_column = make_batch_statistics(element, 1), make_keep_column(element)
    count, working = GATES * normalized_products(form), element.working

    @device
    def find_products(z, xp, limit, tables, place, share, eps, room):
        found = cuda.local.array(NUMBERS, working)
        step, steps, width, unit = place
        table, moments = tables
        n = cuda.threadIdx.x // WARP
        if n < count:
            column = (z if n < GATES else xp), n % GATES * width + unit, GATES * width
            squares = statistics(column, limit, found, share, eps, room)
            if limit > 0 and cuda.threadIdx.x % WARP < LANES:
                at = place_of_gate(n, step, steps, width) + unit
                keep_column(found, squares, table, moments, at)

    return find_products


def _make_find_cell(form: LSTMForm, element: Element) -> Any:
    """Return a device function of the statistics of a thread's cell.

    ``find_cell(cell, limit, found, tables, place, share, eps, room)``.
    """
    statistics, keep_column = make_batch_statistics(element, WARPS), make_keep_column(element)
    place_of_cell = make_place_of_cell(normalized_products(form))

    @device
    def find_cell(cell, limit, found, tables, place, share, eps, room):
        step, steps, width, unit = place
        table, moments = tables
        squares = statistics((cell, unit, width), limit, found, share, eps, room)
        if limit > 0 and cuda.threadIdx.x < LANES:
            keep_column(found, squares, table, moments, place_of_cell(step, steps, width) + unit)

    return find_cell


def make_batch_lstm_forward(form: LSTMForm, element: Element, *, training: bool) -> Kernel:
    """Return the kernel of one step of an LSTM with batch norm.

    It takes as addresses, each of what belongs to the step's first row:

    - ``z, xp (rows, 4H)``, the products with the state and with x; where no norm is taken of each,
      the latter become the sums of both;
    - ``offset (4H,)``, and the gammas of z, of xp and of the cell, and its beta;
    - ``before (rows, H)``, the cell that the step is handed; ``h, c (rows, H)``, what it hands on;
      ``cell (rows, H)``, before its norm, which is c unless the normalized one is carried;

    as the addresses of all steps, ``table``, the statistics: read unless `training`, else written;
    and ``means, variances`` of float64, then written too, or 0;
    then ``step, steps, rows, width`` (H); as numbers 1 over the rows, epsilon and its root; and, of
    float64, what a sum of squares is multiplied by for its variance.
    """
    working, products = element.working, normalized_products(form)
    load_one, store_one, tanh = make_load_one(element), make_store_one(element), tangent(element)
    add_products, place_of_cell = _make_add_products(element), make_place_of_cell(products)
    find_products, find_cell, read_terms, gates_of_row = (
        make(form, element)
        for make in (_make_find_products, _make_find_cell, make_read_terms, make_gates_of_row)
    )
    kept_column, count = make_kept_column(element), terms_of(form)
    by_product, carries, room_size = form.by_product, form.carries_normalized, room_for_folds(2)
    found_now = training and products > 0

    def kernel(
        z, xp, offset, gamma_h, gamma_x, gamma_c, beta_c, before, h, c, cell, table, means,
        variances, step, steps, rows, width, share, eps, root_eps, to_variance,
    ):  # fmt: skip
        room = cuda.shared.array(room_size, working)
        of_cell = cuda.local.array(NUMBERS, working)
        terms = cuda.local.array(count, working)
        gates = cuda.local.array(GATES, working)
        unit = cuda.blockIdx.x * LANES + cuda.threadIdx.x % LANES
        # A thread behind the last unit goes along, for the barriers' sake, and has no rows.
        unit, limit = (unit, rows) if unit < width else (width - 1, 0)
        tables, place = (table, (means, variances, to_variance)), (step, steps, width, unit)
        products_or_sums, scaling = (z if by_product else xp), (eps, root_eps)
        if not by_product:
            add_products(z, xp, unit, width, limit)
        if found_now:
            if not by_product:
                cuda.syncthreads()  # a warp reads the sums of other threads
            find_products(products_or_sums, xp, limit, tables, place, share, scaling, room)
            cuda.syncthreads()  # from here on every thread has all gates of its unit
        read_terms(table, (offset, gamma_h, gamma_x), place, terms)
        row = cuda.threadIdx.x // LANES
        while row < limit:
            gates_of_row(products_or_sums, xp, row, width, unit, terms, gates)
            here = row * width + unit
            store_one(cell, here, gates[0] * load_one(before, here) + gates[1] * gates[3])
            store_one(h, here, gates[2])
            row += STRIPS
        if training:
            cuda.syncthreads()  # all threads of a column begin with its first row
            find_cell(cell, limit, of_cell, tables, place, share, scaling, room)
        else:
            kept_column(table, place_of_cell(step, steps, width) + unit, of_cell)
        gain, bias = load_one(gamma_c, unit), load_one(beta_c, unit)
        row = cuda.threadIdx.x // LANES
        while row < limit:
            here = row * width + unit
            normal = normalized(load_one(cell, here), of_cell, 0) * gain + bias
            if carries:
                store_one(c, here, normal)
            store_one(h, here, load_one(h, here) * tanh(normal))
            row += STRIPS

    parameters = ("address",) * 14 + ("index",) * 4 + (element.working_name,) * 3 + ("float64",)
    return Kernel(kernel, parameters, THREADS)
