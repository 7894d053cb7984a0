"""Recurrent cells on NumPy arrays: the products of all steps, the kernel of the steps, the sums."""

from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract import CellForm, Norm, Scaling, Steps
from numnorm.backends.cpu.arrays import Array
from numnorm.backends.cpu.jit import Twins
from numnorm.backends.cpu.lstm_backward_kernel import SECTIONS, make_lstm_backward
from numnorm.backends.cpu.lstm_forward_kernel import make_lstm_forward
from numnorm.backends.cpu.memory import tables
from numnorm.backends.cpu.parallel import run, threads
from numnorm.backends.cpu.products import packed, packed_shape, product, transposed_product
from numnorm.backends.cpu.storage import storage_of
from numnorm.memory_pool import POOL, WORKING_MEMORY

# A thread takes so many rows of a batch at least: its products are faster with more.
_LEAST_ROWS = 4
# The sums for the parameters are taken for so many groups of rows at most.
_MOST_GROUPS = 64


class Weights(NamedTuple):
    """The parameters of an LSTM in the working dtype; gammas and betas may be None or numbers.

    Attributes
    ----------
    panels_x, panels_h : array or None
        The transposed weights packed, if that is worth keeping.
    """

    weight_x: Array
    weight_h: Array
    panels_x: Array | None
    panels_h: Array | None
    offset: Array
    gamma_h: Any
    beta_h: Any
    gamma_x: Any
    beta_x: Any
    gamma_c: Any
    beta_c: Any


class Saved(NamedTuple):
    """What the backward pass of an LSTM reads, rows in the order of the steps.

    Attributes
    ----------
    z, xp : array (rows, 4H)
        The products with the state and with x; their sum and None where no norm is taken of each.
    cell : array (rows, H)
        Before its norm.
    carried, state : array (batch + rows, H)
        The cell as each step was handed it, and the states; first those given.
    statistics : tuple of array
        Mean and rstd of z, of xp and of the cell; of size 0 where there is no norm.
    """

    z: Array
    xp: Array | None
    cell: Array
    carried: Array
    state: Array
    statistics: tuple[Array, ...]


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


def lstm_weights(given: Any, form: CellForm, ada_scale: float, ada_k: float, keep: bool) -> Weights:
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
        _panels(given.weight_x.T) if keep else None,
        _panels(given.weight_h.T) if keep else None,
        offset.astype(dtype),
        *pair(form.gates, given.gamma_h, None, 4 * hidden),
        *pair(form.gates if form.by_product else None, given.gamma_x, None, 4 * hidden),
        *pair(form.cell, given.gamma_c, beta_c, hidden),
    )


def _panels(matrix: Array) -> Array:
    storage = storage_of(matrix.dtype)
    depth, width = matrix.shape
    (room,) = tables(POOL, matrix.dtype, packed_shape(depth, width, storage))
    return packed(matrix, room, storage)


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
    (rows, inputs), (batch, width) = x.shape, h.shape
    kept, panels_x, panels_h = rows if save else batch, weights.panels_x, weights.panels_h
    xp, products, carried, other_cell, out, weight_x, weight_h = tables(
        WORKING_MEMORY,
        storage.working_dtype,
        (rows, 4 * width),
        (kept if form.by_product else 0, 4 * width),
        (batch + rows if save else batch, width),
        (kept if form.carries_normalized else 0, width),
        (batch, width),
        packed_shape(inputs, 4 * width if panels_x is None else 0, storage),
        packed_shape(width, 4 * width if panels_h is None else 0, storage),
    )
    if panels_x is None or panels_h is None:
        panels_x = packed(weights.weight_x.T, weight_x, storage)
        panels_h = packed(weights.weight_h.T, weight_h, storage)
    (state,) = tables(POOL, storage.working_dtype, (batch + rows, width))  # the caller gets it
    state[:batch], carried[:batch] = h, c
    cell = carried[batch:] if save else carried
    product(x, panels_x, xp, storage)
    saved = Saved(
        products if form.by_product else xp,
        xp if form.by_product else None,
        other_cell if form.carries_normalized else cell,
        carried,
        state,
        _statistics(form, rows if save else 0),
    )
    arguments = (
        *steps, panels_h, saved.z, saved.xp, *weights[4:],
        *_scaling(scaling, 4 * width // _norms_of_gates(form)), *_scaling(scaling, width),
        saved.cell, carried, state, out, *saved.statistics,
    )  # fmt: skip
    _run(make_lstm_forward(form, storage), arguments, rows, width, batch // _LEAST_ROWS)
    return state, carried, saved if save else None


def _statistics(form: CellForm, rows: int) -> tuple[Array, ...]:
    """Return room for mean and rstd of z, of xp and of the cell."""
    of_z = rows * _norms_of_gates(form) if form.gates else 0
    sizes = of_z, rows if form.by_product else 0, rows if form.cell else 0
    return tuple(np.empty(size) for size in sizes for _ in range(2))


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
    (rows, inputs), (batch, width) = x.shape, dh.shape
    dz, dxp, gates, dn, dcell, weight_x, weight_h, packed_x, packed_h = tables(
        WORKING_MEMORY,
        storage.working_dtype,
        (rows, 4 * width),
        (rows if form.by_product else 0, 4 * width),
        (batch, 4 * width),
        (batch, width),
        (batch, width),
        packed_shape(4 * width, inputs, storage),
        packed_shape(4 * width, width, storage),
        packed_shape(rows, inputs, storage),
        packed_shape(rows, width, storage),
    )
    group = max(_LEAST_ROWS, -(-batch // _MOST_GROUPS))
    totals = np.zeros((-(-batch // group), SECTIONS * width))
    arguments = (
        *steps, packed(weights.weight_h, weight_h, storage), dy, dh, dc,
        saved.z, saved.xp, saved.cell, saved.carried, *weights[4:], *saved.statistics,
        *_flows(form.gates, scaling, 4 * width // _norms_of_gates(form)),
        *_flows(form.cell, scaling, width),
        dz, dxp if form.by_product else None, gates, dn, dcell,
        totals.astype(storage.working_dtype), totals, group,
    )  # fmt: skip
    _run(make_lstm_backward(form, storage), arguments, rows, width, totals.shape[0])
    of_x = dxp if form.by_product else dz
    (dx,) = tables(POOL, storage.working_dtype, (rows, inputs))  # the caller gets it
    product(of_x, packed(weights.weight_x, weight_x, storage), dx, storage)
    before = packed(_states_before(saved.state, steps), packed_h, storage)
    sections = np.cumsum([4 * width, 4 * width, 4 * width, width])
    offset, gamma_h, gamma_x, gamma_c, beta_c = np.split(totals.sum(axis=0), sections)
    return Gradients(
        dx,
        dh,
        dc,
        transposed_product(of_x, packed(x, packed_x, storage), inputs, storage),
        transposed_product(dz, before, width, storage),
        offset,
        gamma_x,
        gamma_h,
        gamma_c,
        beta_c,
    )


def _states_before(state: Array, steps: Steps) -> Array:
    """Return the state that each row was handed."""
    starts, counts = steps
    rows = int(counts.sum())
    if rows == 0 or counts[-1] == counts[0]:
        return state[:rows]
    before = np.concatenate(([0], starts[:-1] + counts[0]))
    return np.concatenate([state[b : b + n] for b, n in zip(before, counts, strict=True)])


def _run(kernel: Twins, arguments: tuple[Any, ...], rows: int, width: int, most: int) -> None:
    """Run a kernel of all steps: no result depends on how many parts a batch is cut into."""
    parts = min(threads(), most) if most > 1 else 1
    if rows:  # the kernels ask for the rows of the first step
        run(kernel, (*arguments, parts), rows * width * width // 64, parts)


def _norms_of_gates(form: CellForm) -> int:
    return 4 if form.separate else 1


def _scaling(scaling: Scaling, width: int) -> tuple[float, float, float]:
    return scaling.eps, scaling.eps_on_deviation, float(width - scaling.ddof)


def _flows(norm: Norm | None, scaling: Scaling, width: int) -> tuple[float, float, float]:
    centred = norm is not None and norm.formula.centred
    return 1.0 / width if centred else 0.0, 1.0 / (width - scaling.ddof), scaling.eps_on_deviation
