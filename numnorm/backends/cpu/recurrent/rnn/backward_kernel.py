"""The backward kernel of a normalized plain recurrent network: all steps of some rows, in reverse.

As for the LSTM, values are computed again, and what the parameters get is summed up for a few rows
of the batch at a time.
"""

import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.contract.recurrent import RNNForm
from numnorm.backends.cpu.compiler.jit import Twins, inlined, stand_alone, twins
from numnorm.backends.cpu.matmul.micro_kernel import make_product
from numnorm.backends.cpu.memory.borrowed import borrowed
from numnorm.backends.cpu.recurrent.common.cell_norm import make_cell_norm
from numnorm.backends.cpu.recurrent.common.steps import (
    ask_for_row,
    flush_groups,
    rows_of_groups,
    rows_of_step,
    to_next,
)
from numnorm.backends.cpu.recurrent.common.zoneout import make_zoneout
from numnorm.backends.cpu.recurrent.rnn.forward_kernel import make_new
from numnorm.backends.cpu.simd.access import Access, first_lanes, whole_lanes
from numnorm.backends.cpu.simd.activations import make_activation
from numnorm.backends.cpu.simd.element_type import Storage
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.cpu.statistics.accumulators import ROWS_BETWEEN_FLUSHES


def _make_gradient(form: RNNForm, storage: Storage, access: Access) -> Callable[..., Any]:
    """Return a compiled function of some elements: what the norm's result gets."""
    read, _, write = access
    new = make_new(form, storage, access)
    through = make_activation(form.rectified, storage.working).gradient
    zoneout, zoned = make_zoneout(form.zoneout, access), form.zoneout

    @inlined
    def gradient(z, weights, found, dy, dh, keep, result, sums, j, rest):
        slope = read(dy, j, rest) + read(dh, j, rest)
        if zoned:
            write(dh, j, zoneout.kept(slope, keep, j, rest), rest)
        passed = zoneout.passed(slope, keep, j, rest)
        value = through(passed, new(z, weights, found, j, rest))
        write(result, j, value, rest)
        write(sums, j, read(sums, j, rest) + value, rest)

    return gradient


def _make_row(form: RNNForm, storage: Storage) -> Callable[..., Any]:
    """Return a compiled function that takes one row back through one step.

    It asks for what the row `further` rows on will read.
    """
    count, norm = storage.lanes, make_cell_norm(form.norm, storage)
    some = _make_gradient(form, storage, whole_lanes(count))
    last = _make_gradient(form, storage, first_lanes(count))

    @inlined
    def row(z, weights, saved, dy, dh, keep, slopes, sums, flows, dz, i, further):
        mean, rstd = saved
        _, gamma, beta = weights
        added, of_norm = sums
        whole = dy.size - dy.size % count
        rest = dy.size - whole
        found = norm.saved(mean, rstd, i)
        for j in range(0, whole, count):
            ask_for_row(z, further, 1, j)
            ask_for_row(dy, further, 1, j)
            some(z, weights, found, dy, dh, keep, slopes, added, j, count)
        if rest > 0:
            last(z, weights, found, dy, dh, keep, slopes, added, whole, rest)
        norm.gradient(slopes, z, mean, rstd, i, gamma, beta, flows, (of_norm, None), dz)

    return row


# How many numbers for each unit there are in a row of sums.
SECTIONS = 2


@functools.cache
def make_rnn_backward(form: RNNForm, storage: Storage) -> Twins:
    """Return the backward kernel of a plain recurrent network.

    It takes

    - ``starts, counts`` as the forward pass, and ``begin, end``, between which steps it goes;
    - ``weights``, the packed W_h;
    - ``dy (rows, H)``, the gradients of all states;
    - ``dh (batch, H)``, that of the last state, which becomes that of the first;
    - ``z (rows, H)`` as the forward pass left it, the offset, gamma and beta, mean and rstd;
    - 1 over the number of elements, the same for the scale, and epsilon on the deviation;
    - ``keep (rows, H)`` as the forward pass;
    - ``dz (rows of these steps, H)``, the result, and ``slopes (batch, H)`` to work in;
    - ``sums, totals (groups, 2 H)`` of 0, the second float64, for the sums of each group of rows,
      and ``group``, how many that is;
    - ``parts`` of the groups.
    """
    lanes = storage.lanes
    # With zoneout, the state's gradient has a share of the step after it already.
    product, row = make_product(lanes, onto=form.zoneout), _make_row(form, storage)

    def kernel(
        starts, counts, begin, end, weights, dy, dh, z, offset, gamma, beta, mean, rstd,
        mean_share, scale_share, eps_on_deviation, keep, dz, slopes, sums, totals, group,
        parts, first, last,
    ):  # fmt: skip
        stand_alone()
        (batch, width), groups = dh.shape, sums.shape[0]
        left, right = rows_of_groups(first, last, groups, parts, group, batch)
        products, states = borrowed(dz.reshape(-1)), borrowed(dh.reshape(-1))
        dy, dh, weights, keep = borrowed(dy), borrowed(dh), borrowed(weights), borrowed(keep)
        z, dz, slopes = borrowed(z), borrowed(dz), borrowed(slopes)
        others = borrowed(offset), borrowed(gamma), borrowed(beta)
        saved, flows = (borrowed(mean), borrowed(rstd)), (mean_share, scale_share, eps_on_deviation)
        sums, totals = borrowed(sums), borrowed(totals)
        between = max(1, ROWS_BETWEEN_FLUSHES // group)
        for s in range(end - 1, begin - 1, -1):
            rows = rows_of_step(counts, s, left, right)
            start = starts[s] + left
            to = start - starts[begin]
            for r in range(rows):
                i, b = start + r, left + r
                here, further = sums[b // group], to_next(starts, begin, s, r, rows)
                row(
                    z[i], others, saved, dy[i], dh[b], part(keep, i), slopes[left],
                    (here[:width], here[width:]), flows, dz[to + r], i, further,
                )  # fmt: skip
            if rows > 0:
                product(
                    products, to * width, width, 1, rows, weights, 0, width * lanes, width,
                    states, left * width, width, width,
                )  # fmt: skip
            if s % between == 0:
                flush_groups(sums, totals, left, right, group)

    return twins(f"rnn_backward.{form.name}.{storage.name}", kernel)
