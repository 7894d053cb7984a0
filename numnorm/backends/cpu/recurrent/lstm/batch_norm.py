"""LSTM with batch norm: all sequences meet at each step, so that it is a loop over steps.

The products, the norms and the sums are those of our kernels, the gates NumPy's.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.norms import Detached
from numnorm.backends.contract.recurrent import CellGradients, LSTMSpec, PackedSteps, RunningSteps
from numnorm.backends.cpu.columns.columns import column_backward, column_forward, column_moments
from numnorm.backends.cpu.matmul.packed_matrices import (
    matrix_panels,
    packed_matmul,
    packed_transposed_matmul,
)
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.statistics.stored import update_running
from numnorm.layouts import column_layout


def _update(running: RunningSteps, t: int, count: int, mean: Array, m2: Array) -> None:
    """Move the statistics of a step of the call, if it has some and there is a variance."""
    row = running.first + t
    if row < running.mean.shape[0] and count > 1:
        moved = running.mean[row], running.variance[row]
        update_running(moved, mean, m2, float(count - running.ddof), running.share)


@dataclasses.dataclass(frozen=True, eq=False)
class _Place:
    """The batch norm of one place in the cell, with the statistics that each step has taken.

    Attributes
    ----------
    gamma, beta : array
        The first in float64, as its gradient is of its dtype, and summed over steps.
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
    def _constant(self) -> bool:
        return self.running is not None and not self.running.training

    def take(self, t: int, x: Array) -> Array:
        """Return the norm of the rows of a step, by statistics that are found now."""
        if self.running is not None and self._constant:
            row = min(self.running.first + t, self.running.mean.shape[0] - 1)
            self.mean[t] = self.running.mean[row]
            self.variance[t] = self.running.variance[row]
        else:
            count, mean, m2 = column_moments(x, column_layout(x.shape, 1))
            self.mean[t] = mean
            self.variance[t] = m2 / count
            if self.running is not None:
                _update(self.running, t, count, mean, m2)
        return self.again(t, x)

    def again(self, t: int, x: Array) -> Array:
        """Return it by the statistics that were found."""
        layout, statistics = column_layout(x.shape, 1), (self.mean[t], self.variance[t])
        y, self.rstd[t] = column_forward(
            x, *statistics, 1.0, self.eps, self.gamma, self.beta, layout, None
        )
        return y

    def backward(self, t: int, dy: Array, x: Array, dgamma: Array) -> tuple[Array, Array]:
        """Return the gradients of x and beta; that of gamma is added to the one given."""
        detached = Detached(mean=self._constant, scale=self._constant)
        layout = column_layout(x.shape, 1)
        dx, of_gamma, of_beta = column_backward(
            dy, x, self.mean[t], self.rstd[t], self.gamma, layout, detached, None
        )
        dgamma += of_gamma
        return dx, of_beta


class _Saved(NamedTuple):
    """What the backward pass reads, rows in the order of the steps.

    Attributes
    ----------
    norms : dict
        The norm of each place.
    z, xp : array (rows, 4H)
        The products with the state and with x; their sum and None where no norm is taken of each.
    cell : array (rows, H)
        Before its norm.
    carried, state : array (batch + rows, H)
        The cell as each step was handed it, and the states; first those given.
    """

    spec: LSTMSpec
    norms: dict[str, _Place]
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
    """Return all states and cells, those given first, and what the backward pass needs."""
    h, c = states
    rows, (batch, hidden) = x.shape[0], h.shape
    offset = _sum_of_biases(given)
    norms = _norms(spec, eps, given, offset, steps, running)
    xp = packed_matmul(x, matrix_panels(given.weight_x.T), 4 * hidden)
    panels = matrix_panels(given.weight_h.T)
    # Where no norm is taken of each product, those with the state are added to those with x.
    z = np.empty_like(xp) if spec.norm_each_product else xp
    cell = np.empty((rows, hidden), x.dtype)
    state, carried = (np.empty((batch + rows, hidden), x.dtype) for _ in range(2))
    state[:batch], carried[:batch] = h, c
    saved = _Saved(
        spec, norms, x, steps, given, offset, z, xp if spec.norm_each_product else None, cell, carried,
        state,
    )  # fmt: skip
    with np.errstate(all="ignore"):
        for t, now, before in _steps(steps, batch):
            of_h = packed_matmul(state[before], panels, 4 * hidden)
            if spec.norm_each_product:
                z[now] = of_h
            else:
                z[now] += of_h
            f, i, o, g = _gates(saved, t, now, first=True)
            cell[now] = f * carried[before] + i * g
            normalized = norms["c"].take(t, cell[now])
            after = slice(batch + now.start, batch + now.stop)
            carried[after] = normalized if spec.carries_normalized else cell[now]
            state[after] = o * np.tanh(normalized)
    return (state, carried), saved


def _norms(
    spec: LSTMSpec,
    eps: float,
    given: Any,
    offset: Array,
    steps: PackedSteps,
    running: dict[str, RunningSteps],
) -> dict[str, _Place]:
    """Return the norm of each place; what is added to the gates is a bias of one of them."""
    hidden = given.weight_h.shape[1]
    gammas = {"x": given.gamma_x, "h": given.gamma_h, "c": given.gamma_c}
    # Where there is nothing to add it is 0, so that all norms share their compiled code.
    beta_c = np.zeros(hidden, offset.dtype) if given.beta_c is None else given.beta_c
    betas = {"x": np.zeros(4 * hidden), "h": offset, "c": beta_c}
    count = steps.batch_sizes.size
    return {
        place: _Place(
            np.ones(size) if gammas[place] is None else gammas[place].astype(np.float64),
            betas[place],
            eps,
            running.get(place),
            *np.empty((3, count, size)),
        )
        for place, size in spec.sites(hidden).items()
    }


def _sum_of_biases(given: Any) -> Array:
    """Return what is added to the gates."""
    total = np.zeros(given.weight_h.shape[0])
    for value in (given.bias, given.beta_x, given.beta_h):
        if value is not None:
            total += value
    result: Array = total.astype(given.weight_h.dtype)
    return result


def _steps(steps: PackedSteps, batch: int) -> Iterator[tuple[int, slice, slice]]:
    """Yield each step, its rows, and where the states before them are."""
    before = 0
    offsets, batch_sizes = steps.offsets.tolist(), steps.batch_sizes.tolist()
    for t, (start, count) in enumerate(zip(offsets, batch_sizes, strict=True)):
        yield t, slice(start, start + count), slice(before, before + count)
        before = batch + start


def _gates(saved: _Saved, t: int, now: slice, first: bool) -> tuple[Array, Array, Array, Array]:
    """Return the gates of a step, by statistics found now the first time."""
    entering = None
    for place, products in (("h", saved.z), ("x", saved.xp)):
        if place in saved.norms and products is not None:
            norm = saved.norms[place]
            normalized = (norm.take if first else norm.again)(t, products[now])
            entering = normalized if entering is None else entering + normalized
    if entering is None:
        entering = saved.z[now] + saved.offset
    f, i, o, g = np.split(entering, 4, axis=1)
    return _sigmoid(f), _sigmoid(i), _sigmoid(o), np.tanh(g)


def _sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), to full relative accuracy."""
    e = np.exp(-np.abs(x))
    result: Array = np.where(x >= 0, x.dtype.type(1), e) / (1 + e)
    return result


def batch_cell_backward(saved: Any, dy: Array, dstates: tuple[Array, ...]) -> CellGradients:
    """Return all gradients, from those of every state, the last state and the last cell."""
    norms, given = saved.norms, saved.given
    dh, dc = dstates
    (batch, hidden), inputs = dh.shape, given.weight_x.shape[1]
    panels = matrix_panels(given.weight_h)
    dz = np.empty_like(saved.z)
    dxp = np.empty_like(saved.z) if saved.spec.norm_each_product else dz
    sums = {"bias": np.zeros(4 * hidden), "beta_c": np.zeros(hidden)}
    sums |= {f"gamma_{place}": np.zeros(norm.gamma.size) for place, norm in norms.items()}
    steps = list(_steps(saved.steps, batch))
    with np.errstate(all="ignore"):
        for t, now, before in reversed(steps):
            alive = slice(0, now.stop - now.start)
            dstate = dh[alive] + dy[now]
            entering, dc[alive] = _through_cell(saved, t, now, before, dstate, dc[alive], sums)
            sums["bias"] += entering.sum(axis=0, dtype=np.float64)
            for place, products, gradient in (("h", saved.z, dz), ("x", saved.xp, dxp)):
                if place in norms:
                    of_gamma = sums[f"gamma_{place}"]
                    gradient[now], _ = norms[place].backward(t, entering, products[now], of_gamma)
                elif place == "h":
                    gradient[now] = entering
            dh[alive] = packed_matmul(dz[now], panels, hidden)
    states = np.concatenate([saved.state[:0], *(saved.state[before] for _, _, before in steps)])
    sums["weight_x"] = packed_transposed_matmul(dxp, saved.x)
    sums["weight_h"] = packed_transposed_matmul(dz, states)
    dx = packed_matmul(dxp, matrix_panels(given.weight_x), inputs)
    return CellGradients(dx, (dh, dc), sums | dict.fromkeys(("beta_x", "beta_h"), sums["bias"]))


def _through_cell(
    saved: _Saved,
    t: int,
    now: slice,
    before: slice,
    dstate: Array,
    dcarried: Array,
    sums: dict[str, Array],
) -> tuple[Array, Array]:
    """Return the gradients of what enters a step's gates, and of the cell that it was handed."""
    f, i, o, g = _gates(saved, t, now, first=False)
    norm, cell, carried = saved.norms["c"], saved.cell[now], saved.carried[before]
    output = np.tanh(norm.again(t, cell))
    dcell = dstate * o * (1 - output * output)
    if saved.spec.carries_normalized:
        dcell += dcarried
    dcell, of_beta = norm.backward(t, dcell, cell, sums["gamma_c"])
    sums["beta_c"] += of_beta
    if not saved.spec.carries_normalized:
        dcell = dcell + dcarried
    of_gates = (
        dcell * carried * f * (1 - f),
        dcell * g * i * (1 - i),
        dstate * output * o * (1 - o),
        dcell * i * (1 - g * g),
    )
    return np.concatenate(of_gates, axis=1), dcell * f
