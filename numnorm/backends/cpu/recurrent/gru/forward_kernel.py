"""The forward kernel of a normalized gated recurrent unit: all steps of some of the rows.

Rows of a batch never meet, so a thread takes its rows through all steps.
"""

import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.contract.recurrent import GRUForm
from numnorm.backends.cpu.compiler.jit import Twins, inlined, stand_alone, twins
from numnorm.backends.cpu.matmul.micro_kernel import make_product
from numnorm.backends.cpu.memory.borrowed import borrowed
from numnorm.backends.cpu.recurrent.common.steps import before_step, rows_of_step
from numnorm.backends.cpu.recurrent.common.zoneout import make_zoneout
from numnorm.backends.cpu.recurrent.gru.gates import make_gates, make_product_norm
from numnorm.backends.cpu.simd.access import Access, first_lanes, whole_lanes
from numnorm.backends.cpu.simd.element_type import Storage
from numnorm.backends.cpu.simd.optional import part


def _make_new_state(form: GRUForm, storage: Storage, access: Access) -> Callable[..., Any]:
    """Return a compiled function of some elements: the new state."""
    read, _, write = access
    gates, mixed = make_gates(form, storage, access), make_zoneout(form.zoneout, access).mixed
    real = storage.working

    @inlined
    def new_state(hp, xp, weights, found, before, state, keep, j, rest):
        old, _, suggested, _ = gates(hp, xp, weights, found, state.size, j, rest)
        new = old * read(before, j, rest) + (real(1) - old) * suggested
        write(state, j, mixed(new, before, keep, j, rest), rest)

    return new_state


def _make_row(form: GRUForm, storage: Storage) -> Callable[..., Any]:
    """Return a compiled function that takes one row through one step."""
    count, norm = storage.lanes, make_product_norm(form, storage)
    some = _make_new_state(form, storage, whole_lanes(count))
    last = _make_new_state(form, storage, first_lanes(count))

    @inlined
    def row(hp, xp, before, state, weights, scalings, saved, keep, i):
        whole = state.size - state.size % count
        rest = state.size - whole
        found = norm.find(hp, scalings, saved[0], i), norm.find(xp, scalings, saved[1], i)
        for j in range(0, whole, count):
            some(hp, xp, weights, found, before, state, keep, j, count)
        if rest > 0:
            last(hp, xp, weights, found, before, state, keep, whole, rest)

    return row


@functools.cache
def make_gru_forward(form: GRUForm, storage: Storage) -> Twins:
    """Return the forward kernel of a gated recurrent unit.

    It takes

    - ``starts, counts (steps,)``: where each step's rows begin, and how many they are;
    - ``weights``, the packed transpose of W_h;
    - ``hp (rows, 3H)`` where the products with the state go: rows of all steps, or of one;
    - ``xp (rows, 3H)``, the products with x;
    - ``offset (3H,)``, ``offset_h (H,)``, and gamma and beta of hp and of xp;
    - for the gates' norm and that of the rest: epsilon, epsilon on the deviation, the divisor;
    - ``keep (rows, H)``: the shares of zoneout, or None;
    - ``state (batch + rows, H)``, whose first rows are given;
    - mean and rstd of hp and of xp, all of size 0 to save nothing;
    - ``parts`` of the batch.
    """
    lanes = storage.lanes
    product, row = make_product(lanes, onto=False), _make_row(form, storage)

    def kernel(
        starts, counts, weights, hp, xp, offset, offset_h, gamma_h, beta_h, gamma_x, beta_x,
        gate_eps, gate_eps_on_deviation, gate_count, rest_eps, rest_eps_on_deviation, rest_count,
        keep, state, mean_h, rstd_h, mean_x, rstd_x, parts, first, last,
    ):  # fmt: skip
        stand_alone()
        batch, width = counts[0], state.shape[1]
        left, right = first * batch // parts, last * batch // parts
        products, states = borrowed(hp.reshape(-1)), borrowed(state.reshape(-1))
        hp, xp, state, weights = borrowed(hp), borrowed(xp), borrowed(state), borrowed(weights)
        others = (
            borrowed(offset), borrowed(offset_h), borrowed(gamma_h), borrowed(beta_h),
            borrowed(gamma_x), borrowed(beta_x),
        )  # fmt: skip
        scalings = (
            (gate_eps, gate_eps_on_deviation, gate_count),
            (rest_eps, rest_eps_on_deviation, rest_count),
        )
        saved = (borrowed(mean_h), borrowed(rstd_h)), (borrowed(mean_x), borrowed(rstd_x))
        kept, keep = hp.shape[0] > batch, borrowed(keep)
        for s in range(starts.size):
            rows = rows_of_step(counts, s, left, right)
            if rows <= 0:
                break
            start, before = starts[s] + left, before_step(starts, s, batch) + left
            at = start if kept else left
            product(
                states, before * width, width, 1, rows, weights, 0, width * lanes, width,
                products, at * 3 * width, 3 * width, 3 * width,
            )  # fmt: skip
            for r in range(rows):
                i = start + r
                row(
                    hp[at + r], xp[i], state[before + r], state[batch + i],
                    others, scalings, saved, part(keep, i), i,
                )  # fmt: skip

    return twins(f"gru_forward.{form.name}.{storage.name}", kernel)
