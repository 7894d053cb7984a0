"""The backward kernel of a normalized plain recurrent network: what reaches a step's products.

The state is made again of what enters it. What reaches the norm's result is stored too: the
gradients of the parameters are sums of it over all steps, which a kernel of its own takes
afterwards.
"""

import functools
from typing import Any

from numnorm.backends.contract.recurrent import RNNForm
from numnorm.backends.cuda.compiler.element_type import Element
from numnorm.backends.cuda.compiler.target import Kernel, cuda, device
from numnorm.backends.cuda.recurrent.common.cell_norm import (
    CELL,
    NUMBERS,
    make_kept_statistics,
    make_normalize,
)
from numnorm.backends.cuda.recurrent.common.cell_norm_gradient import make_through_norm
from numnorm.backends.cuda.recurrent.common.state_gradient import make_state_slope
from numnorm.backends.cuda.recurrent.rnn.forward_kernel import make_new_state
from numnorm.backends.cuda.threads.activations import make_activation
from numnorm.backends.cuda.threads.group_reductions import WARP, SumsOf, make_team_sums
from numnorm.backends.cuda.threads.row_columns import (
    make_read_columns,
    make_write_columns,
    row_columns,
)
from numnorm.backends.cuda.threads.row_shape import RowShape


def _make_sums_again(form: RNNForm, element: Element, shape: RowShape) -> Any:
    """Return a device function ``sums_again(z, table, row, width, at, values, found)``.

    It finds a row's normalized sums, and their statistics.
    """
    read = make_read_columns(element, row_columns(element, shape))
    if form.norm is None:

        @device
        def plain(z, table, row, width, at, values, found):
            read(z, row * width, at, width, values)

        return plain
    kept, normalize = make_kept_statistics(element, 1), make_normalize(element, shape, CELL)

    @device
    def sums_again(z, table, row, width, at, values, found):
        kept(table, row, 1, 0, found)
        read(z, row * width, at, width, values)
        normalize(values, found, at, width)

    return sums_again


def make_step_back(form: RNNForm, element: Element, shape: RowShape, sums_of: SumsOf) -> Any:
    """Return a device function of one row of a step.

    ``step_back(saved, weights, passed_on, results, row, later, width, at, limit, numbers, flows,
    room)``: ``z, table``; ``offset, gamma``; ``dy, product, dh, keep``; ``dz, slopes``; AdaNorm's
    two; ``mean_share, scale_share, eps_on_deviation``; and the room of the sums.
    """
    columns, working = row_columns(element, shape), element.working
    slots, normed, zoned = columns.slots, form.norm is not None, form.zoneout
    sums_again, new_state = (
        make(form, element, shape) for make in (_make_sums_again, make_new_state)
    )
    slope_of = make_state_slope(element, shape, zoneout=form.zoneout, past_every_step=form.zoneout)
    through = make_activation(element, rectified=form.rectified).gradient
    through_norm, write = (
        make_through_norm(form.norm, element, shape, sums_of),
        make_write_columns(element, columns),
    )

    @device
    def step_back(
        saved, weights, passed_on, results, row, later, width, at, limit, numbers, flows, room
    ):  # fmt: skip
        values = cuda.local.array(slots, working)
        found = cuda.local.array(NUMBERS, working)
        weight = cuda.local.array(slots, working)
        state = cuda.local.array(slots, working)
        slope = cuda.local.array(slots, working)
        kept = cuda.local.array(slots, working)
        z, table = saved
        dz, slopes = results
        sums_again(z, table, row, width, at, values, found)
        new_state(values, weights, numbers, at, width, weight, state)
        slope_of(passed_on, row, width, at, later, slope, kept)
        if zoned:
            write(passed_on[2], row * width, at, limit, kept)
        for k in range(slots):
            slope[k] = through(slope[k], state[k])
        write(slopes, row * width, at, limit, slope)
        through_norm(slope, at, width, values, weight, numbers, found, flows, room)
        if normed:
            write(dz, row * width, at, limit, slope)

    return step_back


def make_rnn_backward(form: RNNForm, element: Element, shape: RowShape) -> Kernel:
    """Return the kernel of one step of a plain recurrent network.

    It takes as addresses, each of what belongs to the step's first row:

    - ``z (rows, H)``, the sums of both products, and the ``table`` of statistics;
    - the offset, gamma and ``keep``, as the forward kernel;
    - ``dy (rows, H)``; ``product (later, H)``, what the states get from the next step, which has
      the first `later` rows; ``dh (rows, H)``, that of the last states, which with zoneout becomes
      what goes past this step;
    - ``dz (rows, H)``, the result, where there is a norm; ``slopes (rows, H)`` of what enters the
      nonlinearity, the result where there is none;

    then ``rows, later, width``; and as numbers AdaNorm's two, and ``mean_share, scale_share,
    eps_on_deviation``, as the backward kernel of rows.
    """
    lanes, working = row_columns(element, shape).lanes, element.working
    team, teams = shape.team, shape.teams
    sums_of = functools.partial(make_team_sums, element, team)
    step_back = make_step_back(form, element, shape, sums_of)
    size = 2 * max(1, shape.threads // WARP)

    def kernel(
        z, table, offset, gamma, keep, dy, product, dh, dz, slopes, rows, later, width, gain, bias,
        mean_share, scale_share, eps_on_deviation,
    ):  # fmt: skip
        room = cuda.shared.array(size, working)
        # A team behind the last row goes along, for the barriers' sake, and stores nothing.
        row, at = (
            cuda.blockIdx.x * teams + cuda.threadIdx.x // team,
            cuda.threadIdx.x % team * lanes,
        )
        row, limit = (row, width) if row < rows else (rows - 1, 0)
        step_back(
            (z, table), (offset, gamma), (dy, product, dh, keep), (dz, slopes), row, later, width,
            at, limit, (gain, bias), (mean_share, scale_share, eps_on_deviation), room,
        )  # fmt: skip

    parameters = ("address",) * 10 + ("index",) * 3 + (element.working_name,) * 5
    return Kernel(kernel, parameters, shape.threads)
