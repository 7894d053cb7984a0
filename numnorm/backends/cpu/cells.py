"""Recurrent cells on NumPy arrays: the products of all steps, the kernel of the steps, the sums."""

import functools
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import RowLayout, row_layout
from numnorm.backends.contract import CellForm, Detached, Norm, Scaling, Steps
from numnorm.backends.cpu.arrays import Array
from numnorm.backends.cpu.jit import Twins
from numnorm.backends.cpu.lstm_kernels import make_lstm_backward, make_lstm_forward
from numnorm.backends.cpu.parallel import run, threads
from numnorm.backends.cpu.products import packed, product, table, transposed_product
from numnorm.backends.cpu.rows import row_backward, row_forward
from numnorm.backends.cpu.storage import storage_of

# A thread takes so many rows of a batch at least: its products are faster with more.
_LEAST_ROWS = 4


class Weights(NamedTuple):
    """The parameters of an LSTM in the working dtype; gammas and betas may be None or numbers."""

    weight_x: Array
    weight_h: Array
    offset: Array
    gamma_x: Any
    beta_x: Any
    gamma_h: Any
    beta_h: Any
    gamma_c: Any
    beta_c: Any


class Saved(NamedTuple):
    """What the backward pass of an LSTM reads, rows in the order of the steps.

    Attributes
    ----------
    product_x, product_h : array (rows, 4H)
        The products with x and with the state, as the norm of the gates reads them; the first is
        None where they are added up, and both are where there is no such norm.
    gates : array (rows, 4H)
        f, i, o and g.
    cell : array (rows, H)
        Before its norm.
    carried, state : array (batch + rows, H)
        The cell as each step was handed it, and the states; first those given.
    statistics_x, statistics_h, statistics_c : tuple of array
        Mean and rstd of the products with x, those with the state, and the cell.
    """

    product_x: Array | None
    product_h: Array | None
    gates: Array
    cell: Array
    carried: Array
    state: Array
    statistics_x: tuple[Any, Any]
    statistics_h: tuple[Any, Any]
    statistics_c: tuple[Any, Any]


class Gradients(NamedTuple):
    """The gradients of x, the first state and cell, and parameters, None for those not there."""

    dx: Array
    dh: Array
    dc: Array
    weight_x: Array
    weight_h: Array
    offset: Array
    gamma_x: Any
    gamma_h: Any
    gamma_c: Any
    beta_c: Any


def working(x: Array) -> Array:
    """Return an array in the dtype that it is computed in, C-contiguous."""
    return np.ascontiguousarray(x, storage_of(x.dtype).working_dtype)


def lstm_weights(given: Any, form: CellForm, ada_scale: float, ada_k: float) -> Weights:
    """Return the parameters of an LSTM, all in the dtype of its x, as `lstm_forward` takes them."""
    dtype, hidden = given.weight_h.dtype, given.weight_h.shape[1]
    # What is only added is added once.
    offset = np.zeros(4 * hidden)
    for value in (given.bias, given.beta_x, given.beta_h):
        if value is not None:
            offset += value

    def pair(norm: Norm | None, gamma: Any, beta: Any, size: int) -> tuple[Any, Any]:
        if norm is None:
            return None, None
        if norm.parameters == 0:
            return dtype.type(ada_scale), dtype.type(ada_k)
        return np.ones(size, dtype) if gamma is None else gamma, beta

    beta_c = given.beta_c
    if form.cell is not None and form.cell.parameters == 2 and beta_c is None:
        beta_c = np.zeros(hidden, dtype)
    return Weights(
        given.weight_x,
        given.weight_h,
        offset.astype(dtype),
        *pair(form.gates if form.by_product else None, given.gamma_x, None, 4 * hidden),
        *pair(form.gates, given.gamma_h, None, 4 * hidden),
        *pair(form.cell, given.gamma_c, beta_c, hidden),
    )


def lstm_forward(
    form: CellForm,
    scaling: Scaling,
    x: Array,
    steps: Steps,
    weights: Weights,
    h: Array,
    c: Array,
    save: bool,
) -> tuple[Array, Array, Saved | None]:
    """Return all states and cells, those given first, and what the backward pass needs.

    If nothing is saved, the cells are the last ones alone.
    """
    storage = storage_of(x.dtype)
    rows, (batch, width) = x.shape[0], h.shape
    product_x = product(x, packed(weights.weight_x.T, storage), 4 * width, storage)
    xn, statistics_x = _normalized_inputs(form, scaling, product_x, weights, save)
    z = product_x if xn is None else table((rows if save else batch, 4 * width), storage)
    gates = z if xn is None else xn
    if save and form.gates is not None and xn is None:
        gates = table(z.shape, storage)
    state = table((batch + rows, width), storage)
    carried = table((batch + rows if save else batch, width), storage)
    state[:batch], carried[:batch] = h, c
    cell = carried[batch:] if save else carried
    if form.carries_normalized:
        cell = table(cell.shape, storage)
    statistics_h = _room(rows * _norms_of_gates(form) if save and form.gates else 0)
    statistics_c = _room(rows if save and form.cell else 0)
    arguments = (
        *steps, packed(weights.weight_h.T, storage), z, xn, weights.offset,
        weights.gamma_h, weights.beta_h, weights.gamma_c, weights.beta_c,
        *_scaling(scaling, 4 * width // _norms_of_gates(form)), *_scaling(scaling, width),
        gates, cell, carried, state, *statistics_h, *statistics_c,
    )  # fmt: skip
    _run(make_lstm_forward(form, storage), arguments, rows, batch, width)
    if not save:
        return state, carried, None
    saved = Saved(
        product_x if form.by_product else None, None if form.gates is None else z,
        gates, cell, carried, state, statistics_x, statistics_h, statistics_c,
    )  # fmt: skip
    return state, carried, saved


def _normalized_inputs(
    form: CellForm, scaling: Scaling, product_x: Array, weights: Weights, save: bool
) -> tuple[Array | None, tuple[Any, Any]]:
    """Return the normalized products with x and their statistics, if a norm is taken of them."""
    if form.gates is None or not form.by_product:
        return None, (None, None)
    layout, out = row_layout(product_x.shape, -1), None if save else product_x
    gamma, beta = weights.gamma_x, weights.beta_x
    xn, mean, rstd = row_forward(form.gates, product_x, gamma, beta, layout, scaling, out, save)
    return xn, (mean, rstd)


def lstm_backward(
    form: CellForm,
    scaling: Scaling,
    x: Array,
    steps: Steps,
    weights: Weights,
    saved: Saved,
    dy: Array,
    dh: Array,
    dc: Array,
) -> Gradients:
    """Return all gradients, from those of every state, the last state and the last cell.

    `dh` and `dc` become those of the first ones.
    """
    storage = storage_of(x.dtype)
    rows, (batch, width) = x.shape[0], dh.shape
    dn, dz = table((rows, width), storage), table((rows, 4 * width), storage)
    z = saved.gates if saved.product_h is None else saved.product_h
    arguments = (
        *steps, packed(weights.weight_h, storage), dy, dh, dc, saved.gates, z,
        saved.cell, saved.carried,
        weights.gamma_h, weights.beta_h, weights.gamma_c, weights.beta_c,
        *saved.statistics_h, *saved.statistics_c,
        *_flows(form.gates, scaling, 4 * width // _norms_of_gates(form)),
        *_flows(form.cell, scaling, width),
        dn, dz, table((batch, width), storage), table((batch, 4 * width), storage),
    )  # fmt: skip
    _run(make_lstm_backward(form, storage), arguments, rows, batch, width)
    of_cell = _cell_gradients(form, scaling, dn, weights, saved)
    of_x, of_h, offset, of_gates = _gate_gradients(form, scaling, dz, weights, saved)
    before = packed(_states_before(saved.state, steps), storage)
    inputs, width_x = packed(x, storage), x.shape[1]
    return Gradients(
        product(of_x, packed(weights.weight_x, storage), width_x, storage),
        dh,
        dc,
        transposed_product(of_x, inputs, width_x, storage),
        transposed_product(of_h, before, width, storage),
        offset,
        *of_gates,
        *of_cell,
    )


def _cell_gradients(
    form: CellForm, scaling: Scaling, dn: Array, weights: Weights, saved: Saved
) -> tuple[Any, Any]:
    """Return the gradients of gamma and beta of the cell's norm."""
    if form.cell is None or form.cell.parameters == 0:
        return None, None
    _, gamma, beta = _norm_gradients(
        form.cell, scaling, dn, saved.cell, saved.statistics_c, weights.gamma_c, weights.beta_c
    )
    return gamma, beta


def _gate_gradients(
    form: CellForm, scaling: Scaling, dz: Array, weights: Weights, saved: Saved
) -> tuple[Array, Array, Array, tuple[Any, Any]]:
    """Return the gradients of both products, of all that is added, and of both gammas."""
    if form.gates is None:
        return dz, dz, _column_sums(dz), (None, None)
    layout = _gate_layout(dz.shape[0], dz.shape[1] // 4) if form.separate else None
    of_h, gamma_h, offset = _norm_gradients(
        form.gates, scaling, dz, saved.product_h, saved.statistics_h,
        weights.gamma_h, weights.beta_h, layout,
    )  # fmt: skip
    of_x, gamma_x = of_h, None
    if form.by_product:
        of_x, gamma_x, _ = _norm_gradients(
            form.gates, scaling, dz, saved.product_x, saved.statistics_x,
            weights.gamma_x, weights.beta_x,
        )  # fmt: skip
    offset = _column_sums(dz) if offset is None else offset.reshape(-1)
    return of_x, of_h, offset, (gamma_x, gamma_h)


def _norm_gradients(
    norm: Norm,
    scaling: Scaling,
    dy: Array,
    x: Any,
    statistics: tuple[Any, Any],
    gamma: Any,
    beta: Any,
    layout: RowLayout | None = None,
) -> tuple[Array, Any, Any]:
    shape = x.shape
    if layout is None:
        layout = row_layout(shape, -1)
    else:
        dy, x = dy.reshape(-1, layout.width), x.reshape(-1, layout.width)
        gamma = gamma.reshape(layout.parameter_shape) if isinstance(gamma, np.ndarray) else gamma
    dx, dgamma, dbeta = row_backward(
        norm, dy, x, *statistics, gamma, beta if norm.parameters == 0 else None, layout, scaling,
        Detached(), None,
    )  # fmt: skip
    return dx.reshape(shape), dgamma, dbeta


@functools.lru_cache(maxsize=256)
def _gate_layout(rows: int, width: int) -> RowLayout:
    """Return the rows of each gate by itself, with a gamma for each gate's elements."""
    return RowLayout(
        order=None,
        rows=4 * rows,
        width=width,
        run=width,
        channels=4,
        shared=False,
        statistic_shape=(4 * rows,),
        parameter_shape=(4, width),
        parameter_meaning="the gates",
        is_matrix=True,
    )


def _column_sums(table: Array) -> Array:
    sums: Array = np.add.reduce(table, axis=0, dtype=np.float64)
    return sums


def _states_before(state: Array, steps: Steps) -> Array:
    """Return the state that each row was handed."""
    starts, counts = steps
    rows = int(counts.sum())
    if rows == 0 or counts[-1] == counts[0]:
        return state[:rows]
    before = np.concatenate(([0], starts[:-1] + counts[0]))
    return np.concatenate([state[b : b + n] for b, n in zip(before, counts, strict=True)])


def _run(kernel: Twins, arguments: tuple[Any, ...], rows: int, batch: int, width: int) -> None:
    """Run a kernel of all steps: no row's result depends on how the batch is cut."""
    parts = batch // _LEAST_ROWS
    parts = min(threads(), parts) if parts > 1 else 1
    if rows:  # the kernels ask for the rows of the first step
        run(kernel, (*arguments, parts), rows * width * width // 64, parts)


def _norms_of_gates(form: CellForm) -> int:
    return 4 if form.separate else 1


def _room(rows: int) -> tuple[Array, Array]:
    return np.empty(rows), np.empty(rows)


def _scaling(scaling: Scaling, width: int) -> tuple[float, float, float]:
    return scaling.eps, scaling.eps_on_deviation, float(width - scaling.ddof)


def _flows(norm: Norm | None, scaling: Scaling, width: int) -> tuple[float, float, float]:
    centred = norm is not None and norm.formula.centred
    return 1.0 / width if centred else 0.0, 1.0 / (width - scaling.ddof), scaling.eps_on_deviation
