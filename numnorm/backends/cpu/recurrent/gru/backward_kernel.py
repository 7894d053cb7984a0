"""The backward kernel of a normalized gated recurrent unit: all steps of some rows, in reverse.

As for the LSTM, the gates are computed again, and what the parameters get is summed up for a few
rows of the batch at a time.
"""

import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.contract.recurrent import GRUForm
from numnorm.backends.cpu.compiler.jit import Twins, inlined, stand_alone, twins
from numnorm.backends.cpu.matmul.micro_kernel import make_product
from numnorm.backends.cpu.memory.borrowed import borrowed
from numnorm.backends.cpu.recurrent.common.steps import (
    ask_for_row,
    before_step,
    flush_groups,
    rows_of_groups,
    rows_of_step,
    to_next,
)
from numnorm.backends.cpu.recurrent.common.zoneout import make_zoneout
from numnorm.backends.cpu.recurrent.gru.gates import make_gates, make_product_norm
from numnorm.backends.cpu.simd.access import Access, first_lanes, whole_lanes
from numnorm.backends.cpu.simd.element_type import Storage
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.cpu.statistics.accumulators import ROWS_BETWEEN_FLUSHES


def _make_gradient(form: GRUForm, storage: Storage, access: Access) -> Callable[..., Any]:
    """Return a compiled function of some elements: what enters the gates, and the state before."""
    read, _, write = access
    gates, real = make_gates(form, storage, access), storage.working
    zoneout, zoned = make_zoneout(form.zoneout, access), form.zoneout

    @inlined
    def put(array, sums, j, value, rest):
        write(array, j, value, rest)
        write(sums, j, read(sums, j, rest) + value, rest)

    @inlined
    def gradient(hp, xp, weights, found, before, dy, dh, keep, slopes, sums, j, rest):
        width = dy.size
        old, r, suggested, passed = gates(hp, xp, weights, found, width, j, rest)
        z = real(1) - old
        slope = read(dy, j, rest) + read(dh, j, rest)
        new = zoneout.passed(slope, keep, j, rest)
        past = new * old
        if zoned:
            past = past + zoneout.kept(slope, keep, j, rest)
        write(dh, j, past, rest)
        of_z = new * (suggested - read(before, j, rest)) * z * old
        of_new = new * z * (real(1) - suggested * suggested)
        put(slopes[0], sums[0], j, of_z, rest)
        put(slopes[0], sums[0], j + width, of_new * passed * r * (real(1) - r), rest)
        put(slopes[0], sums[0], j + 2 * width, of_new, rest)
        put(slopes[1], sums[1], j, of_new * r, rest)

    return gradient


def _make_row(form: GRUForm, storage: Storage) -> Callable[..., Any]:
    """Return a compiled function that takes one row back through one step.

    It asks for what the row `further` rows on will read.
    """
    count, norm = storage.lanes, make_product_norm(form, storage)
    some = _make_gradient(form, storage, whole_lanes(count))
    last = _make_gradient(form, storage, first_lanes(count))

    @inlined
    def ask(hp, xp, before, dy, further, j):
        ask_for_row(hp, further, 3, j)
        ask_for_row(xp, further, 3, j)
        ask_for_row(before, further, 1, j)
        ask_for_row(dy, further, 1, j)

    @inlined
    def row(
        hp, xp, weights, saved, before, dy, dh, keep, slopes, sums, flows, results, i, further
    ):  # fmt: skip
        whole = dy.size - dy.size % count
        rest = dy.size - whole
        found = norm.again(saved[0], i), norm.again(saved[1], i)
        added = sums[0], sums[1]
        for j in range(0, whole, count):
            ask(hp, xp, before, dy, further, j)
            some(hp, xp, weights, found, before, dy, dh, keep, slopes, added, j, count)
        if rest > 0:
            last(hp, xp, weights, found, before, dy, dh, keep, slopes, added, whole, rest)
        of_gates, of_rest = slopes[0][: 2 * dy.size], slopes[0][2 * dy.size :]
        of_h, of_x = (weights[2], weights[3]), (weights[4], weights[5])
        norm.gradient(of_gates, slopes[1], hp, saved[0], i, of_h, flows, sums[2], results[0])
        norm.gradient(of_gates, of_rest, xp, saved[1], i, of_x, flows, sums[3], results[1])

    return row


@inlined
def _sections(sums, width):
    """Return a row's sums: of both offsets, and of the gammas of hp and xp."""
    return (
        sums[: 3 * width],
        sums[3 * width : 4 * width],
        sums[4 * width : 7 * width],
        sums[7 * width :],
    )


# How many numbers for each unit there are in a row of sums.
SECTIONS = 10


@functools.cache
def make_gru_backward(form: GRUForm, storage: Storage) -> Twins:
    """Return the backward kernel of a gated recurrent unit.

    It takes

    - ``starts, counts`` as the forward pass, and ``begin, end``, between which steps it goes;
    - ``weights``, the packed W_h;
    - ``dy (rows, H)``, the gradients of all states;
    - ``dh (batch, H)``, that of the last state, which becomes that of the first;
    - ``hp, xp (rows, 3H)`` and ``state (batch + rows, H)`` as the forward pass left them, the
      offsets, gammas and betas, and its statistics;
    - for the gates' norm and that of the rest: 1 over the number of elements, the same for the
      scale, and epsilon on the deviation;
    - ``keep (rows, H)`` as the forward pass;
    - ``dhp, dxp (rows of these steps, 3H)``, the results;
    - ``slopes (batch, 3H)``, ``slopes_h (batch, H)`` to work in;
    - ``sums, totals (groups, 10 H)`` of 0, the second float64, for the sums of each group of
      rows, and ``group``, how many that is;
    - ``parts`` of the groups.
    """
    lanes = storage.lanes
    product, row = make_product(lanes, onto=True), _make_row(form, storage)

    def kernel(
        starts, counts, begin, end, weights, dy, dh, hp, xp, state,
        offset, offset_h, gamma_h, beta_h, gamma_x, beta_x, mean_h, rstd_h, mean_x, rstd_x,
        gate_mean_share, gate_scale_share, gate_eps_on_deviation,
        rest_mean_share, rest_scale_share, rest_eps_on_deviation, keep,
        dhp, dxp, slopes, slopes_h, sums, totals, group, parts, first, last,
    ):  # fmt: skip
        stand_alone()
        (batch, width), groups = dh.shape, sums.shape[0]
        left, right = rows_of_groups(first, last, groups, parts, group, batch)
        products, states = borrowed(dhp.reshape(-1)), borrowed(dh.reshape(-1))
        dy, dh, weights, keep = borrowed(dy), borrowed(dh), borrowed(weights), borrowed(keep)
        hp, xp, state = borrowed(hp), borrowed(xp), borrowed(state)
        others = (
            borrowed(offset), borrowed(offset_h), borrowed(gamma_h), borrowed(beta_h),
            borrowed(gamma_x), borrowed(beta_x),
        )  # fmt: skip
        saved = (borrowed(mean_h), borrowed(rstd_h)), (borrowed(mean_x), borrowed(rstd_x))
        flows = (
            (gate_mean_share, gate_scale_share, gate_eps_on_deviation),
            (rest_mean_share, rest_scale_share, rest_eps_on_deviation),
        )
        dhp, dxp, slopes, slopes_h = (
            borrowed(dhp), borrowed(dxp), borrowed(slopes), borrowed(slopes_h)
        )  # fmt: skip
        sums, totals = borrowed(sums), borrowed(totals)
        between = max(1, ROWS_BETWEEN_FLUSHES // group)
        for s in range(end - 1, begin - 1, -1):
            rows = rows_of_step(counts, s, left, right)
            start, before = starts[s] + left, before_step(starts, s, batch) + left
            to = start - starts[begin]
            for r in range(rows):
                i, b, k = start + r, left + r, to + r
                further = to_next(starts, begin, s, r, rows)
                row(
                    hp[i], xp[i], others, saved, state[before + r], dy[i], dh[b], part(keep, i),
                    (slopes[left], slopes_h[left]), _sections(sums[b // group], width), flows,
                    (dhp[k], dxp[k]), i, further,
                )  # fmt: skip
            if rows > 0:
                product(
                    products, to * 3 * width, 3 * width, 1, rows, weights, 0, 3 * width * lanes,
                    3 * width, states, left * width, width, width,
                )  # fmt: skip
            if s % between == 0:
                flush_groups(sums, totals, left, right, group)

    return twins(f"gru_backward.{form.name}.{storage.name}", kernel)
