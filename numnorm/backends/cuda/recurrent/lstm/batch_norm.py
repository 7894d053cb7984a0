"""LSTM with batch norm on arrays of a device: a loop over steps.

The matrix products are those of the arrays' own library, the norms those of batch norm itself.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from numnorm.backends.contract.norms import Detached
from numnorm.backends.contract.recurrent import CellGradients, LSTMSpec, PackedSteps, RunningSteps
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.launch import ArrayOffset, launch, on_device_of
from numnorm.backends.cuda.columns.columns import column_backward, column_forward
from numnorm.backends.cuda.columns.moments import column_moments
from numnorm.backends.cuda.compiler.target import Kernel
from numnorm.backends.cuda.recurrent.common.passes import (
    Weights,
    added_up,
    array_or_none,
    column_sums,
    copied,
    gradients_of_nothing,
    make_weights,
    new,
    weight_gradients,
)
from numnorm.backends.cuda.recurrent.lstm.batch_norm_kernels import (
    StateGradients,
    make_cell_gradient,
    make_gates_and_cell,
    make_state,
    make_state_gradient,
)
from numnorm.backends.cuda.recurrent.lstm.gates import GATES
from numnorm.backends.cuda.recurrent.lstm.passes import SIZES
from numnorm.backends.cuda.statistics.stored import given_statistic, saved, update_running
from numnorm.layouts import column_layout

_gates_and_cell = functools.cache(make_gates_and_cell)
_state = functools.cache(make_state)
_state_gradient = functools.cache(make_state_gradient)
_cell_gradient = functools.cache(make_cell_gradient)


class _Normalized(NamedTuple):
    """A batch norm of the rows of one step.

    Attributes
    ----------
    x : DeviceArray
    y, mean, rstd : array
    """

    x: DeviceArray
    y: Any
    mean: Any
    rstd: Any


class _Site(NamedTuple):
    """The batch norm of one place in the cell."""

    gamma: Any
    beta: Any
    eps: float
    running: RunningSteps | None

    @property
    def is_constant(self) -> bool:
        """Whether the running statistics are used, not those of the batch."""
        return self.running is not None and not self.running.training

    def forward(self, t: int, x: DeviceArray) -> _Normalized:
        """Return the norm of the rows of a step."""
        layout, size = column_layout(x.shape, 1), x.shape[1]
        if self.running is not None and self.is_constant:
            row = min(self.running.first + t, self.running.mean.shape[0] - 1)
            mean, variance = (
                given_statistic(
                    a.name, x.library.reshaped(_row(a, row).array, a.shape[1:]), x, size
                )
                for a in (self.running.mean, self.running.variance)
            )
        else:
            count, mean, m2 = column_moments(x, layout)
            variance = m2 / count
            row = 0 if self.running is None else self.running.first + t
            if self.running is not None and row < self.running.mean.shape[0] and count > 1:
                moved = _row(self.running.mean, row), _row(self.running.variance, row)
                divisor = float(count - self.running.ddof)
                update_running(moved, mean, m2, divisor, self.running.share)
        y, rstd = column_forward(
            x, mean, variance, 1.0, self.eps, self.gamma, self.beta, layout, None
        )
        return _Normalized(x, y, saved(mean, x), saved(rstd, x))

    def backward(self, found: _Normalized, dy: Any) -> tuple[Any, Any, Any]:
        """Return the gradients of x, gamma and beta."""
        detached = Detached(mean=self.is_constant, scale=self.is_constant)
        layout = column_layout(found.x.shape, 1)
        return column_backward(
            dy, found.x, found.mean, found.rstd, self.gamma, layout, detached, None
        )


def _row(array: DeviceArray, row: int) -> DeviceArray:
    """Return one row of running statistics, ``(1, features)``, as a view where there are views."""
    view = array.library.rows(array.array, row, row + 1)
    return dataclasses.replace(array, array=view, shape=(1, *array.shape[1:]))


class _Step(NamedTuple):
    """What the backward pass reads of a step.

    Attributes
    ----------
    norms : dict
        Each place's norm of the step.
    gates : array (rows, 4H)
    normal : array (rows, H)
        The normalized cell.
    carried : array (., H)
        The cell that the step was handed, in the first rows.
    """

    norms: dict[str, _Normalized]
    gates: Any
    normal: Any
    carried: Any


class _Saved(NamedTuple):
    """What the backward pass reads.

    Attributes
    ----------
    state : array (batch + rows, H)
        The states, first those given.
    """

    spec: LSTMSpec
    x: DeviceArray
    steps: PackedSteps
    weights: Weights
    sites: dict[str, _Site]
    each: list[_Step]
    state: Any


def batch_cell_forward(
    spec: LSTMSpec,
    eps: float,
    x: DeviceArray,
    steps: PackedSteps,
    given: Any,
    states: tuple[DeviceArray, ...],
    running: dict[str, RunningSteps],
) -> tuple[tuple[Any, Any], _Saved]:
    """Return all states and cells, those given first, and what the backward pass needs."""
    library, units = x.library, states[0].shape[1]
    with on_device_of(x):
        weights, sites = make_weights(given, (), (1.0, 0.0)), _sites(spec, eps, given, running)
        terms = map(array_or_none, (given.bias, given.beta_x, given.beta_h))
        offset = added_up(given.weight_h, (GATES * units,), *terms)
        (h, c), each = map(copied, states), []
        history = [h], [c]
        xp = library.product(x.array, weights.turned_x) if x.shape[0] else None
        for t, (start, count) in enumerate(_ranges(steps)):
            z = library.product(library.rows(h, 0, count), weights.turned_h)
            of_x = library.rows(xp, start, start + count)
            norms, entering = _entering(spec, sites, t, x, z, of_x)
            gates, cell, h = (new(x, (count, wide * units)) for wide in (GATES, 1, 1))
            sizes = count * units, units
            _launch(_gates_and_cell(x.element), x, (*entering, offset, c, gates, cell), sizes)
            norms["c"] = sites["c"].forward(t, _like(x, cell))
            normal = norms["c"].y
            _launch(_state(x.element), x, (gates, normal, h), sizes)
            each.append(_Step(norms, gates, normal, c))
            c = normal if spec.carries_normalized else cell
            for states_so_far, new_one in zip(history, (h, c), strict=True):
                states_so_far.append(new_one)
        state, carried = map(library.concatenated, history)
    return (state, carried), _Saved(spec, x, steps, weights, sites, each, state)


def _sites(
    spec: LSTMSpec, eps: float, given: Any, running: dict[str, RunningSteps]
) -> dict[str, _Site]:
    """Return the norm of each place; the betas of the products are a part of the offset."""
    gammas = {"h": given.gamma_h, "x": given.gamma_x, "c": given.gamma_c}
    betas = {"h": None, "x": None, "c": given.beta_c}
    return {
        place: _Site(
            array_or_none(gammas[place]), array_or_none(betas[place]), eps, running.get(place)
        )
        for place in spec.sites(given.weight_h.shape[1])
    }


def _ranges(steps: PackedSteps) -> list[tuple[int, int]]:
    """Return the first row of each step, and how many it has."""
    return [*zip(steps.offsets.tolist(), steps.batch_sizes.tolist(), strict=True)]


def _like(x: DeviceArray, array: Any) -> DeviceArray:
    """Return what is known of an array of the dtype of x."""
    return dataclasses.replace(x, array=array, shape=x.library.shape(array))


def _launch(kernel: Kernel, x: DeviceArray, arrays: Sequence[Any], sizes: tuple[int, ...]) -> None:
    """Launch a kernel that has a thread for each unit; their number is the last size but one."""
    launch(kernel, -(-sizes[-2] // kernel.threads), x, arrays, sizes)


def _entering(
    spec: LSTMSpec, sites: dict[str, _Site], t: int, x: DeviceArray, z: Any, xp: Any
) -> tuple[dict[str, _Normalized], tuple[Any, Any]]:
    """Return the norms of a step's products, and the two arrays whose sum enters the gates."""
    if spec.gates is None:
        return {}, (z, xp)
    if not spec.norm_each_product:
        z, xp = added_up(x, x.library.shape(z), z, xp), None
    norms = {
        place: sites[place].forward(t, _like(x, products))
        for place, products in (("h", z), ("x", xp))
        if products is not None
    }
    return norms, (norms["h"].y, norms["x"].y if spec.norm_each_product else None)


def batch_cell_backward(
    saved: _Saved, dy: DeviceArray, dstates: tuple[DeviceArray, ...]
) -> CellGradients:
    """Return all gradients, from those of every state and of the last states."""
    x, weights, units = saved.x, saved.weights, dstates[0].shape[1]
    library, ranges = x.library, _ranges(saved.steps)
    with on_device_of(x):
        last, dc = map(copied, dstates)
        if not ranges:
            found = gradients_of_nothing(x, weights, units, SIZES)
            return CellGradients(copied(x), (last, dc), found)
        of_steps: list[dict[str, Any]] = [{} for _ in ranges]
        later, dh = 0, last
        for t in reversed(range(len(ranges))):
            start, count = ranges[t]
            of_y = ArrayOffset(dy.array, start * units * x.element.itemsize)
            gradients = StateGradients(of_y, dh, last)
            of_steps[t] = _step_back(saved, saved.each[t], gradients, dc, (later, count, units))
            later, dh = count, library.product(of_steps[t]["z"], weights.h)
        of_each = {name: [found[name] for found in of_steps] for name in of_steps[0]}
        dz, dxp = (library.concatenated(of_each.pop(name)) for name in ("z", "xp"))
        found = {name: _summed(x, parts) for name, parts in of_each.items()}
        if "bias" not in found:
            _, found["bias"] = column_sums(x, dz)
        found |= dict.fromkeys(("beta_x", "beta_h"), found["bias"])
        found |= weight_gradients(x, saved.steps, saved.state, dxp, dz)
        return CellGradients(library.product(dxp, weights.x), (dh, dc), found)


def _step_back(
    saved: _Saved, step: _Step, gradients: StateGradients, dc: Any, sizes: tuple[int, int, int]
) -> dict[str, Any]:
    """Return the gradients of a step: of its products, z and xp, and of the parameters of norms.

    The sizes are how many states the next step has and how many this one, and their units. The
    gradient of the cell becomes that of the cell before.
    """
    x, sites, carries = saved.x, saved.sites, saved.spec.carries_normalized
    later, count, units = sizes
    dgates, dnormal = (new(x, (count, wide * units)) for wide in (GATES, 1))
    of_step = count * units, units
    _launch(
        _state_gradient(x.element, carries=carries), x,
        (step.gates, step.normal, gradients, dc, dgates, dnormal), (later * units, *of_step),
    )  # fmt: skip
    dcell, gamma_c, beta_c = sites["c"].backward(step.norms["c"], dnormal)
    arrays = step.gates, step.carried, dcell, dc, dgates
    _launch(_cell_gradient(x.element, carries=carries), x, arrays, of_step)
    found = {"z": dgates, "gamma_c": gamma_c, "beta_c": beta_c}
    if "h" in step.norms:
        found["z"], found["gamma_h"], found["bias"] = sites["h"].backward(step.norms["h"], dgates)
    found["xp"] = found["z"]
    if "x" in step.norms:
        found["xp"], found["gamma_x"], _ = sites["x"].backward(step.norms["x"], dgates)
    return found


def _summed(x: DeviceArray, parts: list[Any]) -> Any:
    """Return the sum of arrays of one shape, ``(features,)``."""
    (size,) = x.library.shape(parts[0])
    rows = x.library.reshaped(x.library.concatenated(parts), (len(parts), size))
    return column_sums(x, rows)[1]
