"""The forward kernel of a normalized plain recurrent network: all steps of some of the rows.

Rows of a batch never meet, so a thread takes its rows through all steps.
"""

import functools
from collections.abc import Callable
from typing import Any

from numnorm.backends.contract.recurrent import RNNForm
from numnorm.backends.cpu.compiler.jit import Twins, inlined, stand_alone, twins
from numnorm.backends.cpu.matmul.micro_kernel import make_product
from numnorm.backends.cpu.memory.borrowed import borrowed
from numnorm.backends.cpu.recurrent.common.cell_norm import make_cell_norm
from numnorm.backends.cpu.recurrent.common.steps import before_step, rows_of_step
from numnorm.backends.cpu.recurrent.common.zoneout import make_zoneout
from numnorm.backends.cpu.simd.access import Access, first_lanes, whole_lanes
from numnorm.backends.cpu.simd.activations import make_activation
from numnorm.backends.cpu.simd.element_type import Storage
from numnorm.backends.cpu.simd.optional import part


def make_new(form: RNNForm, storage: Storage, access: Access) -> Callable[..., Any]:
    """Return a compiled ``new(z, weights, found, j, rest)``: some elements of the new state."""
    read, term, _ = access
    apply, real = make_cell_norm(form.norm, storage).apply, storage.working
    value = make_activation(form.rectified, real).value

    @inlined
    def new(z, weights, found, j, rest):
        offset, gamma, beta = weights
        gain, shift = term(gamma, j, rest, real(1)), term(beta, j, rest, real(0))
        return value(apply(read(z, j, rest), found, gain, shift) + read(offset, j, rest))

    return new


def _make_new_state(form: RNNForm, storage: Storage, access: Access) -> Callable[..., Any]:
    """Return a compiled function of some elements: the state."""
    write, new = access.write, make_new(form, storage, access)
    mixed = make_zoneout(form.zoneout, access).mixed

    @inlined
    def new_state(z, weights, found, before, state, keep, j, rest):
        write(state, j, mixed(new(z, weights, found, j, rest), before, keep, j, rest), rest)

    return new_state


def _make_row(form: RNNForm, storage: Storage) -> Callable[..., Any]:
    """Return a compiled function that takes one row through one step."""
    count, norm = storage.lanes, make_cell_norm(form.norm, storage)
    some = _make_new_state(form, storage, whole_lanes(count))
    last = _make_new_state(form, storage, first_lanes(count))

    @inlined
    def row(z, before, state, weights, scaling, saved, keep, i):
        whole = state.size - state.size % count
        rest = state.size - whole
        found = norm.statistics(z, scaling)
        if saved[0].size > 0:
            norm.save(found, saved[0], saved[1], i)
        for j in range(0, whole, count):
            some(z, weights, found, before, state, keep, j, count)
        if rest > 0:
            last(z, weights, found, before, state, keep, whole, rest)

    return row


@functools.cache
def make_rnn_forward(form: RNNForm, storage: Storage) -> Twins:
    """Return the forward kernel of a plain recurrent network.

    It takes

    - ``starts, counts (steps,)``: where each step's rows begin, and how many they are;
    - ``weights``, the packed transpose of W_h;
    - ``z (rows, H)``, the products with x, to which those with the state are added;
    - ``offset (H,)``, gamma and beta;
    - epsilon, epsilon on the deviation, the divisor;
    - ``keep (rows, H)``: the shares of zoneout, or None;
    - ``state (batch + rows, H)``, whose first rows are given;
    - mean and rstd of z, of size 0 to save nothing;
    - ``parts`` of the batch.
    """
    lanes = storage.lanes
    product, row = make_product(lanes, onto=True), _make_row(form, storage)

    def kernel(
        starts, counts, weights, z, offset, gamma, beta, eps, eps_on_deviation, count,
        keep, state, mean, rstd, parts, first, last,
    ):  # fmt: skip
        stand_alone()
        batch, width = counts[0], state.shape[1]
        left, right = first * batch // parts, last * batch // parts
        sums, states = borrowed(z.reshape(-1)), borrowed(state.reshape(-1))
        z, state, weights, keep = borrowed(z), borrowed(state), borrowed(weights), borrowed(keep)
        others = borrowed(offset), borrowed(gamma), borrowed(beta)
        scaling, saved = (eps, eps_on_deviation, count), (borrowed(mean), borrowed(rstd))
        for s in range(starts.size):
            rows = rows_of_step(counts, s, left, right)
            if rows <= 0:
                break
            start, before = starts[s] + left, before_step(starts, s, batch) + left
            product(
                states, before * width, width, 1, rows, weights, 0, width * lanes, width,
                sums, start * width, width, width,
            )  # fmt: skip
            for r in range(rows):
                i = start + r
                row(
                    z[i], state[before + r], state[batch + i], others, scaling, saved,
                    part(keep, i), i,
                )  # fmt: skip

    return twins(f"rnn_forward.{form.name}.{storage.name}", kernel)
