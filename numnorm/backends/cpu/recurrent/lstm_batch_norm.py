"""The passes of an LSTM with batch norm.

Each step's statistics need all sequences, so the passes loop over the steps. Kernels compute the
products and the norms, NumPy the gates.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.norms import Detached
from numnorm.backends.contract.recurrent import CellGradients, LSTMSpec, PackedSteps, RunningSteps
from numnorm.backends.cpu.columns.columns import column_backward, column_forward
from numnorm.backends.cpu.columns.moments import column_moments
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.recurrent.arguments import added_up
from numnorm.backends.cpu.recurrent.matmul import (
    matrix_panels,
    packed_matmul,
    packed_transposed_matmul,
)
from numnorm.backends.cpu.statistics.stored import update_running
from numnorm.backends.formulas.cells import (
    lstm_cell,
    lstm_cell_gradient,
    lstm_state,
    lstm_state_gradient,
)
from numnorm.layouts import column_layout


def _update(running: RunningSteps, t: int, count: int, mean: Array, m2: Array) -> None:
    """Update the running statistics of step t, if they exist and the batch has a variance."""
    row = running.first + t
    if row < running.mean.shape[0] and count > 1:
        moved = running.mean[row], running.variance[row]
        update_running(moved, mean, m2, float(count - running.ddof), running.momentum)


@dataclasses.dataclass(frozen=True, eq=False)
class _SiteNorm:
    """The batch norm at one site of the cell, with the statistics of each step.

    Attributes
    ----------
    gamma, beta : array
        Gamma is float64 so that its gradient, which is summed over the steps, is float64 too.
    running : RunningSteps or None
    mean, variance, rstd : array (steps, features) of float64
    """

    gamma: Array
    beta: Array
    eps: float
    running: RunningSteps | None
    mean: Array
    variance: Array
    rstd: Array

    @property
    def _frozen(self) -> bool:
        return self.running is not None and not self.running.training

    def normalize(self, t: int, x: Array) -> Array:
        """Compute the statistics of step t, or read the frozen ones, and return x normalized."""
        if self.running is not None and self._frozen:
            row = min(self.running.first + t, self.running.mean.shape[0] - 1)
            self.mean[t] = self.running.mean[row]
            self.variance[t] = self.running.variance[row]
        else:
            count, mean, m2, unit = column_moments(x, column_layout(x.shape, 1))
            self.mean[t] = mean
            self.variance[t] = m2 / (count * unit)
            if self.running is not None:
                _update(self.running, t, count, mean, m2 / unit)
        return self.normalize_again(t, x)

    def normalize_again(self, t: int, x: Array) -> Array:
        """Return x normalized by the stored statistics of step t."""
        layout = column_layout(x.shape, 1)
        y, self.rstd[t] = column_forward(
            x, self.mean[t], self.variance[t], 1.0, self.eps, self.gamma, self.beta, layout, None
        )
        return y

    def backward(self, t: int, dy: Array, x: Array, dgamma: Array) -> tuple[Array, Array]:
        """Return the gradients of x and beta, and add that of gamma to `dgamma`."""
        detached = Detached(mean=self._frozen, scale=self._frozen)
        layout = column_layout(x.shape, 1)
        dx, dgamma_t, dbeta = column_backward(
            dy, x, self.mean[t], self.rstd[t], self.gamma, layout, detached, None
        )
        dgamma += dgamma_t
        return dx, dbeta


class _Saved(NamedTuple):
    """What the backward pass reads; rows are ordered by step.

    Attributes
    ----------
    norms : dict
        The norm of each site.
    z, xp : array (rows, 4H)
        The products W_h h with the state and W_x x; their sum and None unless each is normalized.
    cell : array (rows, H)
        The cells before their norm.
    carried, state : array (batch + rows, H)
        The cells and states that each step passes to the next; the initial ones come first.
    """

    spec: LSTMSpec
    norms: dict[str, _SiteNorm]
    x: Array
    steps: PackedSteps
    given: Any
    offset: Array
    z: Array
    xp: Array | None
    cell: Array
    carried: Array
    state: Array


def batch_cell_forward(
    spec: LSTMSpec,
    eps: float,
    x: Array,
    steps: PackedSteps,
    given: Any,
    states: tuple[Array, ...],
    running: dict[str, RunningSteps],
) -> tuple[tuple[Array, Array], Any]:
    """Return all states and cells, initial ones first, and what the backward pass needs."""
    h, c = states
    rows, (batch, hidden) = x.shape[0], h.shape
    offset = added_up(4 * hidden, given.weight_h.dtype, given.bias, given.beta_x, given.beta_h)
    norms = _norms(spec, eps, given, offset, steps, running)
    xp = packed_matmul(x, matrix_panels(given.weight_x.T), 4 * hidden)
    panels = matrix_panels(given.weight_h.T)
    # Without a norm of each product, the product with the state is added to that with x.
    z = np.empty_like(xp) if spec.norm_each_product else xp
    cell = np.empty((rows, hidden), x.dtype)
    state, carried = (np.empty((batch + rows, hidden), x.dtype) for _ in range(2))
    state[:batch], carried[:batch] = h, c
    saved = _Saved(
        spec, norms, x, steps, given, offset,
        z, xp if spec.norm_each_product else None, cell, carried, state,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        for t, now, before in _steps(steps, batch):
            product = packed_matmul(state[before], panels, 4 * hidden)
            if spec.norm_each_product:
                z[now] = product
            else:
                z[now] += product
            f, i, o, g = _gates(saved, t, now, first=True)
            cell[now] = lstm_cell(f, i, g, carried[before])
            normalized = norms["c"].normalize(t, cell[now])
            after = slice(batch + now.start, batch + now.stop)
            carried[after] = normalized if spec.carries_normalized else cell[now]
            state[after] = lstm_state(o, np.tanh(normalized))
    return (state, carried), saved


def _norms(
    spec: LSTMSpec,
    eps: float,
    given: Any,
    offset: Array,
    steps: PackedSteps,
    running: dict[str, RunningSteps],
) -> dict[str, _SiteNorm]:
    """Return the norm of each site; that of h adds all biases of the gates."""
    hidden = given.weight_h.shape[1]
    gammas = {"x": given.gamma_x, "h": given.gamma_h, "c": given.gamma_c}
    # A missing beta is 0, so that all norms share their compiled code.
    beta_c = np.zeros(hidden, offset.dtype) if given.beta_c is None else given.beta_c
    betas = {"x": np.zeros(4 * hidden), "h": offset, "c": beta_c}
    count = steps.batch_sizes.size
    norms = {}
    for site, size in spec.sites(hidden).items():
        gamma = np.ones(size) if gammas[site] is None else gammas[site].astype(np.float64)
        statistics = np.empty((3, count, size))
        norms[site] = _SiteNorm(gamma, betas[site], eps, running.get(site), *statistics)
    return norms


def _steps(steps: PackedSteps, batch: int) -> Iterator[tuple[int, slice, slice]]:
    """Yield each step's number, its rows, and the slice of its previous states."""
    before = 0
    offsets, batch_sizes = steps.offsets.tolist(), steps.batch_sizes.tolist()
    for t, (start, count) in enumerate(zip(offsets, batch_sizes, strict=True)):
        yield t, slice(start, start + count), slice(before, before + count)
        before = batch + start


def _gates(saved: _Saved, t: int, now: slice, first: bool) -> tuple[Array, Array, Array, Array]:
    """Return the gates of a step; the `first` time, compute the statistics, else reuse them."""
    inputs = None
    for site, products in (("h", saved.z), ("x", saved.xp)):
        if site in saved.norms and products is not None:
            norm = saved.norms[site]
            normalized = (norm.normalize if first else norm.normalize_again)(t, products[now])
            inputs = normalized if inputs is None else inputs + normalized
    if inputs is None:
        inputs = saved.z[now] + saved.offset
    f, i, o, g = np.split(inputs, 4, axis=1)
    return _sigmoid(f), _sigmoid(i), _sigmoid(o), np.tanh(g)


def _sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)) without overflow, to full relative accuracy."""
    e = np.exp(-np.abs(x))
    result: Array = np.where(x >= 0, x.dtype.type(1), e) / (1 + e)
    return result


def batch_cell_backward(saved: Any, dy: Array, dstates: tuple[Array, ...]) -> CellGradients:
    """Return all gradients from `dy`, of every state, and `dstates`, of the last state and cell."""
    norms, given = saved.norms, saved.given
    dh, dc = dstates
    (batch, hidden), inputs = dh.shape, given.weight_x.shape[1]
    panels = matrix_panels(given.weight_h)
    dz = np.empty_like(saved.z)
    dxp = np.empty_like(saved.z) if saved.spec.norm_each_product else dz
    sums = {"bias": np.zeros(4 * hidden), "beta_c": np.zeros(hidden)}
    sums |= {f"gamma_{site}": np.zeros(norm.gamma.size) for site, norm in norms.items()}
    steps = list(_steps(saved.steps, batch))
    with np.errstate(all="ignore"):
        for t, now, before in reversed(steps):
            active = slice(0, now.stop - now.start)
            dstate = dh[active] + dy[now]
            dinputs, dc[active] = _cell_gradient(saved, t, now, before, dstate, dc[active], sums)
            sums["bias"] += dinputs.sum(axis=0, dtype=np.float64)
            for site, products, gradient in (("h", saved.z, dz), ("x", saved.xp, dxp)):
                if site in norms:
                    dgamma = sums[f"gamma_{site}"]
                    gradient[now], _ = norms[site].backward(t, dinputs, products[now], dgamma)
                elif site == "h":
                    gradient[now] = dinputs
            dh[active] = packed_matmul(dz[now], panels, hidden)
    states = np.concatenate([saved.state[:0], *(saved.state[before] for _, _, before in steps)])
    sums["weight_x"] = packed_transposed_matmul(dxp, saved.x)
    sums["weight_h"] = packed_transposed_matmul(dz, states)
    dx = packed_matmul(dxp, matrix_panels(given.weight_x), inputs)
    return CellGradients(dx, (dh, dc), sums | dict.fromkeys(("beta_x", "beta_h"), sums["bias"]))


def _cell_gradient(
    saved: _Saved,
    t: int,
    now: slice,
    before: slice,
    dstate: Array,
    dcarried: Array,
    sums: dict[str, Array],
) -> tuple[Array, Array]:
    """Return the gradients of the inputs of a step's gates and of its previous cell."""
    f, i, o, g = _gates(saved, t, now, first=False)
    norm, cell, carried = saved.norms["c"], saved.cell[now], saved.carried[before]
    tanh_c, one = np.tanh(norm.normalize_again(t, cell)), cell.dtype.type(1)
    dcell, do = lstm_state_gradient(dstate, o, tanh_c, one)
    if saved.spec.carries_normalized:
        dcell += dcarried
    dcell, dbeta = norm.backward(t, dcell, cell, sums["gamma_c"])
    sums["beta_c"] += dbeta
    if not saved.spec.carries_normalized:
        dcell = dcell + dcarried
    df, di, dg, dprevious = lstm_cell_gradient(dcell, carried, f, i, g, one)
    return np.concatenate((df, di, do, dg), axis=1), dprevious
