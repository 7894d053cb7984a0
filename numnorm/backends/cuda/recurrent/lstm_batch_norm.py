"""LSTM with batch norm on arrays of a device: a loop over steps.

The arrays' own library computes the matrix products, and the kernels of batch norm the norms. The
kernels here are those between the norms, with a thread for each unit of each row. All of them take
``count``, the number of threads, and ``width``, the number of units (H), as their last arguments.
The gates are f, i, o and g.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from numnorm.backends.contract.norms import Detached
from numnorm.backends.contract.recurrent import CellGradients, LSTMSpec, PackedSteps, RunningSteps
from numnorm.backends.cuda.arrays.device_array import DeviceArray, with_array
from numnorm.backends.cuda.arrays.launch import ArrayOffset, launch_threads, on_device_of
from numnorm.backends.cuda.columns.columns import column_backward, column_forward
from numnorm.backends.cuda.columns.moments import column_moments
from numnorm.backends.cuda.compiler.element_type import ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
    make_tanh,
)
from numnorm.backends.cuda.recurrent.lstm import GATES, SIZES
from numnorm.backends.cuda.recurrent.parameter_gradients import (
    column_sums,
    gradients_without_steps,
    operands_before,
    weight_gradients,
)
from numnorm.backends.cuda.recurrent.pass_arrays import (
    Weights,
    added_up,
    array_or_none,
    copied,
    make_weights,
    new,
)
from numnorm.backends.cuda.recurrent.states import make_sigmoid
from numnorm.backends.cuda.statistics.stored import given_statistic, saved, update_running
from numnorm.backends.formulas.cells import (
    lstm_cell,
    lstm_cell_gradient,
    lstm_state,
    lstm_state_gradient,
)
from numnorm.layouts import column_layout

# Kernels

_THREADS = 128
_SIZES = ("index",) * 2


class StateGradients(NamedTuple):
    """The gradients that a backward step starts from, as addresses. Read.

    Attributes
    ----------
    dy : (rows, H)
        The gradients of the step's output.
    later : (later rows, H)
        The gradients from the next step, for the rows that it has.
    last : (rows, H)
        The gradients of the last states, for the rows that end with this step.
    """

    dy: Any
    later: Any
    last: Any


def make_gates_and_cell(element: ElementType) -> Kernel:
    """Return the kernel of a step's gates and of the cell before its norm.

    It takes as addresses ``z (rows, 4H)``, ``xp (rows, 4H)`` (0: no array) and ``offset (4H,)``,
    whose sum is the gates' input; ``c_prev``, the cell before the step; and the results
    ``gates (rows, 4H), cell (rows, H)``.
    """
    load, store = make_load_one(element), make_store_one(element)
    compute_type = element.compute_type
    sigmoid, tanh = make_sigmoid(element), make_tanh(element)
    new_cell = device(lstm_cell)

    def kernel(z, xp, offset, c_prev, gates, cell, count, width):
        values = cuda.local.array(GATES, compute_type)
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            unit = i % width
            first = (i - unit) * GATES + unit
            for gate in range(GATES):
                at = gate * width
                value = load(z, first + at) + load(offset, unit + at)
                if xp != 0:
                    value += load(xp, first + at)
                values[gate] = tanh(value) if gate == 3 else sigmoid(value)
                store(gates, first + at, values[gate])
            store(cell, i, new_cell(values[0], values[1], values[3], load(c_prev, i)))

    return Kernel(kernel, ("address",) * 6 + _SIZES, _THREADS)


def make_state(element: ElementType) -> Kernel:
    """Return the kernel of a step's state: ``gates, normal, h``; normal is the normalized cell."""
    load, store = make_load_one(element), make_store_one(element)
    tanh = make_tanh(element)
    new_state = device(lstm_state)

    def kernel(gates, normal, h, count, width):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            unit = i % width
            o = load(gates, (i - unit) * GATES + unit + 2 * width)
            store(h, i, new_state(o, tanh(load(normal, i))))

    return Kernel(kernel, ("address",) * 3 + _SIZES, _THREADS)


def make_state_gradient(element: ElementType, *, carries: bool) -> Kernel:
    """Return the kernel of the gradients of the normalized cell and of the output gate.

    It takes as addresses ``gates, normal`` of the forward pass, `StateGradients`, ``dc``, the
    gradient of the cell that the next step gets, and the results ``dgates, dnormal``; then
    ``later``, the number of states of the next step. If the next step gets the normalized cell
    (`carries`), the kernel adds dc to ``dnormal``.
    """
    load, store, tanh = make_load_one(element), make_store_one(element), make_tanh(element)
    gradient_of = device(lstm_state_gradient)
    one = constant(element, 1.0)

    def kernel(gates, normal, gradients, dc, dgates, dnormal, later, count, width):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            unit = i % width
            at = (i - unit) * GATES + unit + 2 * width
            dh = load(gradients.dy, i) + load(gradients.later if i < later else gradients.last, i)
            dn, do = gradient_of(dh, load(gates, at), tanh(load(normal, i)), one)
            store(dnormal, i, dn + load(dc, i) if carries else dn)
            store(dgates, at, do)

    gradients = StateGradients, ("address",) * 3
    parameters = "address", "address", gradients, *("address",) * 3, "index", *_SIZES
    return Kernel(kernel, parameters, _THREADS)


def make_cell_gradient(element: ElementType, *, carries: bool) -> Kernel:
    """Return the kernel of the gradients of f, i and g and of the cell before the step.

    It takes as addresses ``gates, c_prev``, ``dcell``, the gradient of the new cell, ``dc``, which
    becomes the gradient of the cell before, and the result ``dgates``. If the next step gets the
    cell before its norm (not `carries`), the kernel adds dc to the gradient of the new cell.
    """
    load, store = make_load_one(element), make_store_one(element)
    gradient = device(lstm_cell_gradient)
    one = constant(element, 1.0)

    def kernel(gates, c_prev, dcell, dc, dgates, count, width):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            unit = i % width
            at = (i - unit) * GATES + unit
            f, i_gate, g = load(gates, at), load(gates, at + width), load(gates, at + 3 * width)
            dnew = load(dcell, i) if carries else load(dcell, i) + load(dc, i)
            df, di, dg, dprev = gradient(dnew, load(c_prev, i), f, i_gate, g, one)
            store(dgates, at, df)
            store(dgates, at + width, di)
            store(dgates, at + 3 * width, dg)
            store(dc, i, dprev)

    return Kernel(kernel, ("address",) * 5 + _SIZES, _THREADS)


# Passes

_gates_and_cell = functools.cache(make_gates_and_cell)
_state = functools.cache(make_state)
_state_gradient = functools.cache(make_state_gradient)
_cell_gradient = functools.cache(make_cell_gradient)


class _Normalized(NamedTuple):
    """The result of a batch norm of the rows of one step.

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
    """The batch norm of one site in the cell: of W_h h, of W_x x, or of the cell c."""

    gamma: Any
    beta: Any
    eps: float
    running: RunningSteps | None

    @property
    def is_constant(self) -> bool:
        """Whether it uses the running statistics, not those of the batch."""
        return self.running is not None and not self.running.training

    def forward(self, t: int, x: DeviceArray) -> _Normalized:
        """Return the norm of the rows of step t, and update the running statistics."""
        layout = column_layout(x.shape, 1)
        size = x.shape[1]
        if self.running is not None and self.is_constant:
            row = min(self.running.first + t, self.running.mean.shape[0] - 1)
            mean, variance = (
                given_statistic(a.name, x.lib.reshaped(_row(a, row).array, a.shape[1:]), x, size)
                for a in (self.running.mean, self.running.variance)
            )
        else:
            count, mean, m2, _ = column_moments(x, layout)
            variance = m2 / count
            row = 0 if self.running is None else self.running.first + t
            if self.running is not None and row < self.running.mean.shape[0] and count > 1:
                running = _row(self.running.mean, row), _row(self.running.variance, row)
                divisor = float(count - self.running.ddof)
                update_running(running, mean, m2, divisor, self.running.momentum)
        y, rstd = column_forward(
            x, mean, variance, 1.0, self.eps, self.gamma, self.beta, layout, None
        )
        return _Normalized(x, y, saved(mean, x), saved(rstd, x))

    def backward(self, norm: _Normalized, dy: Any) -> tuple[Any, Any, Any]:
        """Return the gradients of x, gamma and beta."""
        detached = Detached(mean=self.is_constant, scale=self.is_constant)
        layout = column_layout(norm.x.shape, 1)
        return column_backward(dy, norm.x, norm.mean, norm.rstd, self.gamma, layout, detached, None)


def _row(array: DeviceArray, row: int) -> DeviceArray:
    """Return one row of running statistics, ``(1, features)``, as a view if the library has any."""
    view = array.lib.rows(array.array, row, row + 1)
    return with_array(array, view, shape=(1, *array.shape[1:]))


class _Step(NamedTuple):
    """What the backward pass reads of a step.

    Attributes
    ----------
    norms : dict
        The norm's result for each site.
    gates : array (rows, 4H)
    normal : array (rows, H)
        The normalized cell.
    c_prev : array (., H)
        The cell before the step, in its first rows.
    """

    norms: dict[str, _Normalized]
    gates: Any
    normal: Any
    c_prev: Any


class _Saved(NamedTuple):
    """What the backward pass reads.

    Attributes
    ----------
    state : array (batch + rows, H)
        The first states, and then the states after every step.
    """

    spec: LSTMSpec
    x: DeviceArray
    steps: PackedSteps
    weights: Weights
    sites: dict[str, _Site]
    each_step: list[_Step]
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
    """Return the histories of states and of cells, and what the backward pass needs."""
    library = x.lib
    units = states[0].shape[1]
    with on_device_of(x):
        weights = make_weights(given, (), (1.0, 0.0))
        sites = _sites(spec, eps, given, running)
        biases = map(array_or_none, (given.bias, given.beta_x, given.beta_h))
        offset = added_up(given.weight_h, (GATES * units,), *biases)
        h, c = map(copied, states)
        each_step = []
        history = [h], [c]
        xp = library.matmul(x.array, weights.transposed_x) if x.shape[0] else None
        for t, (start, count) in enumerate(_ranges(steps)):
            z = library.matmul(library.rows(h, 0, count), weights.transposed_h)
            step_xp = library.rows(xp, start, start + count)
            norms, inputs = _gate_inputs(spec, sites, t, x, z, step_xp)
            gates, cell, h = (new(x, (count, n * units)) for n in (GATES, 1, 1))
            sizes = count * units, units
            _launch(_gates_and_cell(x.element), x, (*inputs, offset, c, gates, cell), sizes)
            norms["c"] = sites["c"].forward(t, _like(x, cell))
            normal = norms["c"].y
            _launch(_state(x.element), x, (gates, normal, h), sizes)
            each_step.append(_Step(norms, gates, normal, c))
            c = normal if spec.carries_normalized else cell
            history[0].append(h)
            history[1].append(c)
        h, c = map(library.concatenated, history)
    return (h, c), _Saved(spec, x, steps, weights, sites, each_step, h)


def _sites(
    spec: LSTMSpec, eps: float, given: Any, running: dict[str, RunningSteps]
) -> dict[str, _Site]:
    """Return the norm of each site; the gates' offset has the betas of the products."""
    gammas = {"h": given.gamma_h, "x": given.gamma_x, "c": given.gamma_c}
    betas = {"h": None, "x": None, "c": given.beta_c}
    return {
        site: _Site(array_or_none(gammas[site]), array_or_none(betas[site]), eps, running.get(site))
        for site in spec.sites(given.weight_h.shape[1])
    }


def _ranges(steps: PackedSteps) -> list[tuple[int, int]]:
    """Return each step's first row and number of rows."""
    return [*zip(steps.offsets.tolist(), steps.batch_sizes.tolist(), strict=True)]


def _like(x: DeviceArray, array: Any) -> DeviceArray:
    """Return an array of the dtype of x as a DeviceArray."""
    return with_array(x, array, shape=x.lib.shape(array))


def _launch(kernel: Kernel, x: DeviceArray, arrays: Sequence[Any], sizes: tuple[int, ...]) -> None:
    """Launch a kernel with a thread for each unit; ``sizes[-2]`` is the number of units."""
    launch_threads(kernel, sizes[-2], x, arrays, sizes)


def _gate_inputs(
    spec: LSTMSpec, sites: dict[str, _Site], t: int, x: DeviceArray, z: Any, xp: Any
) -> tuple[dict[str, _Normalized], tuple[Any, Any]]:
    """Return the norms of a step's products, and two arrays whose sum is the gates' input."""
    if spec.gates is None:
        return {}, (z, xp)
    if not spec.norm_each_product:
        z, xp = added_up(x, x.lib.shape(z), z, xp), None
    norms = {
        site: sites[site].forward(t, _like(x, products))
        for site, products in (("h", z), ("x", xp))
        if products is not None
    }
    return norms, (norms["h"].y, norms["x"].y if spec.norm_each_product else None)


def batch_cell_backward(
    saved: _Saved, dy: DeviceArray, dstates: tuple[DeviceArray, ...]
) -> CellGradients:
    """Return all gradients, from the gradients of every step's state and of the last states."""
    x, weights = saved.x, saved.weights
    units = dstates[0].shape[1]
    library = x.lib
    ranges = _ranges(saved.steps)
    with on_device_of(x):
        last, dc = map(copied, dstates)
        if not ranges:
            parameters = gradients_without_steps(x, weights, units, SIZES)
            return CellGradients(copied(x), (last, dc), parameters)
        of_steps: list[dict[str, Any]] = [{} for _ in ranges]
        later = 0
        dh = last
        for t in reversed(range(len(ranges))):
            start, count = ranges[t]
            step_dy = ArrayOffset(dy.array, start * units * x.element.itemsize)
            gradients = StateGradients(step_dy, dh, last)
            sizes = later, count, units
            of_steps[t] = _step_back(saved, saved.each_step[t], gradients, dc, sizes)
            later = count
            dh = library.matmul(of_steps[t]["z"], weights.h)
        by_name = {name: [of_step[name] for of_step in of_steps] for name in of_steps[0]}
        dz, dxp = (library.concatenated(by_name.pop(name)) for name in ("z", "xp"))
        parameters = {name: _summed(x, parts) for name, parts in by_name.items()}
        if "bias" not in parameters:
            _, parameters["bias"] = column_sums(x, dz)
        parameters |= dict.fromkeys(("beta_x", "beta_h"), parameters["bias"])
        operands = operands_before(x, saved.steps, saved.state, None)
        parameters |= weight_gradients(x, operands, dxp, dz)
        return CellGradients(library.matmul(dxp, weights.x), (dh, dc), parameters)


def _step_back(
    saved: _Saved, step: _Step, gradients: StateGradients, dc: Any, sizes: tuple[int, int, int]
) -> dict[str, Any]:
    """Return the gradients of a step's products, z and xp, and of the norms' parameters.

    `sizes` has the numbers of rows of the next step and of this step, and of units. `dc`, the
    gradient of the new cell, becomes that of the cell before.
    """
    x, sites = saved.x, saved.sites
    carries = saved.spec.carries_normalized
    later, count, units = sizes
    dgates, dnormal = (new(x, (count, n * units)) for n in (GATES, 1))
    step_sizes = count * units, units
    _launch(
        _state_gradient(x.element, carries=carries), x,
        (step.gates, step.normal, gradients, dc, dgates, dnormal), (later * units, *step_sizes),
    )  # fmt: skip
    dcell, gamma_c, beta_c = sites["c"].backward(step.norms["c"], dnormal)
    arrays = step.gates, step.c_prev, dcell, dc, dgates
    _launch(_cell_gradient(x.element, carries=carries), x, arrays, step_sizes)
    grads = {"z": dgates, "gamma_c": gamma_c, "beta_c": beta_c}
    if "h" in step.norms:
        grads["z"], grads["gamma_h"], grads["bias"] = sites["h"].backward(step.norms["h"], dgates)
    grads["xp"] = grads["z"]
    if "x" in step.norms:
        grads["xp"], grads["gamma_x"], _ = sites["x"].backward(step.norms["x"], dgates)
    return grads


def _summed(x: DeviceArray, parts: list[Any]) -> Any:
    """Return the sum of arrays of one shape, ``(features,)``."""
    (size,) = x.lib.shape(parts[0])
    rows = x.lib.reshaped(x.lib.concatenated(parts), (len(parts), size))
    return column_sums(x, rows)[1]
