"""The backend functions of recurrent cells: forward and backward passes on NumPy arrays.

The spec of a cell chooses its kind. The gradients of the products would be as large as what the
forward pass saved. So they are computed for one chunk of steps and multiplied with x, states and
weights while in cache.
"""

from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.norms import Norm, Scaling
from numnorm.backends.contract.recurrent import (
    CellGradients,
    CellSpec,
    GRUSpec,
    LSTMSpec,
    PackedSteps,
    RNNSpec,
    Step,
)
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.compiler.parallel import run, threads
from numnorm.backends.cpu.memory.grouped_kernel import flattened
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.memory.placement import tables
from numnorm.backends.cpu.recurrent import arguments as groups
from numnorm.backends.cpu.recurrent.arguments import CellKind
from numnorm.backends.cpu.recurrent.gru import GRU
from numnorm.backends.cpu.recurrent.kernels import make_backward, make_forward
from numnorm.backends.cpu.recurrent.lstm import LSTM
from numnorm.backends.cpu.recurrent.matmul import (
    add_transposed_matmul,
    matmul,
    matrix_panels,
    packed,
    packed_shape,
    tiling,
)
from numnorm.backends.cpu.recurrent.rnn import RNN
from numnorm.backends.cpu.simd.element_type import ElementType, element_type_of
from numnorm.memory_pool import POOL, WORKING_MEMORY

# The gradients of x and of the weights


# The approximate rows of a chunk: the depth that a transposed product sums before it stores.
_CHUNK_ROWS = tiling().depth


class StepChunk(NamedTuple):
    """The steps from `begin` to `end`, and their rows from `first` to `last`."""

    begin: int
    end: int
    first: int
    last: int

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return self.last - self.first


def _chunks_of(batch_sizes: Array) -> list[StepChunk]:
    """Return the chunks of a batch, the last steps first; they depend on the shape alone."""
    ends = np.cumsum(batch_sizes)
    rows = int(ends[-1]) if ends.size else 0
    if rows == 0:
        return []
    number = max(1, rows // _CHUNK_ROWS)
    cuts = np.unique(np.searchsorted(ends, np.arange(1, number + 1) * rows // number) + 1)
    lasts = ends[cuts - 1]
    chunks = zip([0, *cuts], cuts, [0, *lasts], lasts, strict=False)
    return [StepChunk(*map(int, chunk)) for chunk in chunks][::-1]


class ProductGradients:
    """The gradients of x and the weights, to which each chunk adds.

    Parameters
    ----------
    weight_x, weight_h, x : array
    projection : array or None
        The weights of an LSTM's projections.
    state : array (batch + rows, H)
        The initial states, then those of all steps.
    reset : array (rows, H) or None
        The states whose product is the last H columns, if a GRU's reset gate scales them.
    steps : PackedSteps
    element_type : ElementType
    """

    def __init__(
        self,
        weight_x: Array,
        weight_h: Array,
        x: Array,
        projection: Array | None,
        state: Array,
        reset: Array | None,
        steps: PackedSteps,
        element_type: ElementType,
    ) -> None:
        self.steps, self.chunks = steps, _chunks_of(steps.batch_sizes)
        self.most_rows = max((chunk.rows for chunk in self.chunks), default=0)
        (width, inputs), hidden = weight_x.shape, weight_h.shape[1]
        dtype = element_type.compute_dtype
        panels, self._scratch_x, self._scratch_h = tables(
            WORKING_MEMORY,
            dtype,
            packed_shape(width, inputs, element_type),
            packed_shape(self.most_rows, inputs, element_type),
            packed_shape(self.most_rows, hidden, element_type),
        )
        self._panels = packed(weight_x, panels, element_type)
        self._x, self._state, self._reset, self._element_type = x, state, reset, element_type
        (self.x,) = tables(POOL, dtype, x.shape)  # the caller gets it
        self.weight_x = np.zeros((width, inputs), dtype)
        self.weight_h = np.zeros((width, hidden), dtype)
        self.projection: Any = None
        if projection is not None:
            self.projection = np.zeros(projection.shape, dtype)
        # The index of each step's first previous state.
        batch = state.shape[0] - x.shape[0]
        self._before = np.concatenate(([0], batch + steps.offsets))

    def add(self, chunk: StepChunk, grads: tuple[Array, Array]) -> None:
        """Add what a chunk's gradients of the products with x and with the state contribute."""
        element_type, rows = self._element_type, slice(chunk.first, chunk.last)
        dxp, dz = grads[0][: chunk.rows], grads[1][: chunk.rows]
        matmul(dxp, self._panels, self.x[rows], element_type)
        x, before = self._x[rows], self._states_before(chunk)
        x = packed(x, self._scratch_x, element_type)
        add_transposed_matmul(dxp, x, self.weight_x, element_type)
        if self._reset is None:
            self._add_weight_h(dz, before, self.weight_h)
            return
        middle = 2 * self.weight_h.shape[1]
        self._add_weight_h(dz[:, :middle], before, self.weight_h[:middle])
        self._add_weight_h(dz[:, middle:], self._reset[rows], self.weight_h[middle:])

    def _add_weight_h(self, dz: Array, states: Array, result: Array) -> None:
        states = packed(states, self._scratch_h, self._element_type)
        add_transposed_matmul(np.ascontiguousarray(dz), states, result, self._element_type)

    def add_projection(self, chunk: StepChunk, projected: Array, outputs: Array) -> None:
        """Add what a chunk's gradients of the projections of these outputs contribute."""
        dstate, outputs = projected[: chunk.rows], outputs[chunk.first : chunk.last]
        panels = matrix_panels(outputs)
        add_transposed_matmul(dstate, panels, self.projection, self._element_type)

    def of_weights(self) -> dict[str, Array]:
        """Return the gradients of the weights by name."""
        gradients = {"weight_x": self.weight_x, "weight_h": self.weight_h}
        return gradients if self.projection is None else gradients | {"projection": self.projection}

    def _states_before(self, chunk: StepChunk) -> Array:
        """Return the previous state of each row of a chunk."""
        steps = slice(chunk.begin, chunk.end)
        batch_sizes, before = self.steps.batch_sizes[steps], self._before[steps]
        if np.array_equal(np.diff(before), batch_sizes[:-1]):  # contiguous
            return self._state[before[0] : before[0] + chunk.rows]
        return np.concatenate(
            [self._state[b : b + n] for b, n in zip(before, batch_sizes, strict=True)]
        )


# The passes of any kind of cell


class Weights(NamedTuple):
    """The parameters of a recurrent cell in the compute dtype.

    Attributes
    ----------
    x, h : array
    projection : array or None
        The weights of an LSTM's projections.
    panels_x, panels_h : array or None
        The transposes of x, and of h with the projection, packed for many calls.
    others : Parameters
    """

    x: Array
    h: Array
    projection: Array | None
    panels_x: Array | None
    panels_h: Array | None
    others: groups.Parameters


def _make_weights(
    kind: CellKind, spec: CellSpec, given: Any, ada: tuple[float, float], keep: bool
) -> Weights:
    """Return the weights of a cell, packed if `keep` is true."""
    x, h, others = given.weight_x, given.weight_h, kind.parameters(spec, given, ada)
    projection = getattr(given, "projection", None)
    weights = Weights(x, h, projection, None, None, others)
    if not keep:
        return weights
    element_type = element_type_of(h.dtype)
    transposes = [factor.T for factor in _factors(kind, spec, weights)]
    (panels_h,) = tables(POOL, h.dtype, _packed_shape(transposes, element_type))
    _pack_all(transposes, panels_h, element_type)
    return weights._replace(panels_x=matrix_panels(x.T), panels_h=panels_h)


def _factors(kind: CellKind, spec: CellSpec, weights: Weights) -> list[Array]:
    """Return the weights of all products in a step but that with x."""
    if kind.resets_before(spec):
        return np.split(weights.h, [2 * weights.h.shape[1]])
    return [weights.h] if weights.projection is None else [weights.h, weights.projection]


class _Prepared(NamedTuple):
    """The call of a forward kernel.

    Attributes
    ----------
    kernel : Kernel
    arguments : tuple
        Groups of arguments, for `_run_kernel`.
    work, max_parts : int
    history : tuple of array
        All states and cells, initial ones first; unless they are saved, only the last cells.
    saved : Saved
    """

    kernel: Kernel
    arguments: tuple[Any, ...]
    work: int
    max_parts: int
    history: tuple[Array, ...]
    saved: groups.Saved


def _forward(
    kind: CellKind,
    spec: CellSpec,
    scaling: Scaling,
    x: Array,
    steps: PackedSteps,
    weights: Weights,
    states: tuple[Array, ...],
    masks: tuple[Array | None, ...],
    save: bool,
) -> tuple[tuple[Array, ...], groups.Saved | None]:
    """Return all states and cells, initial ones first; unless `save`, only the last cells."""
    fused = states[0].shape[0] >= tuning.CELL_FUSED_LEAST_ROWS
    call = _prepared(kind, spec, scaling, x, steps, weights, states, masks, save, fused)
    _run_kernel(call.kernel, call.arguments, call.work, call.max_parts)
    return call.history, call.saved if save else None


def _prepared(
    kind: CellKind,
    spec: CellSpec,
    scaling: Scaling,
    x: Array,
    steps: PackedSteps,
    weights: Weights,
    states: tuple[Array, ...],
    masks: tuple[Array | None, ...],
    save: bool,
    fused: bool,
) -> _Prepared:
    """Return the call of the forward kernel, which multiplies x itself if `fused` is true."""
    element_type = element_type_of(x.dtype)
    rows, (batch, outer), width = x.shape[0], states[0].shape, weights.h.shape[0] // kind.gates
    saved_rows = rows if save else batch
    each, apart, has_cell = kind.norms_each_product(spec), kind.keeps_cell_apart(spec), states[1:]
    drops, projects = spec.recurrent_dropout, kind.projects(spec)
    # Dropout of the state and projections exclude each other.
    other = [(batch + rows, outer)] if drops else [(saved_rows, width)] if projects else []
    xp, z, carried, separate_cell, *others = tables(
        WORKING_MEMORY,
        element_type.compute_dtype,
        (rows if save or not fused else batch, kind.gates * width),
        (saved_rows if each else 0, kind.gates * width),
        (batch + saved_rows if save else batch, width if has_cell else 0),
        (saved_rows if apart else 0, width),
        *other,
    )
    # Not in the same block: the caller may hold the saved arrays for long.
    panels_x, panels_h, scratch = _panels(kind, spec, weights, element_type, (batch, width))
    (state,) = tables(POOL, element_type.compute_dtype, (batch + rows, outer))  # the caller gets it
    state[:batch], cell = states[0], separate_cell
    if masks[-1] is not None:
        np.multiply(states[0], masks[-1], out=others[0][:batch])
    if has_cell:
        carried[:batch] = states[1]
        if not apart:
            cell = carried[batch:] if save else carried
    if not fused:
        matmul(x, panels_x, xp, element_type)
    saved = groups.Saved(
        z if each else xp, xp if each else None, state, others[0] if drops else None,
        carried if has_cell else None, cell if has_cell or apart else None,
        others[0] if projects else None,
        _statistics(kind, spec, rows if save else 0),
    )  # fmt: skip
    return _Prepared(
        make_forward(kind, spec, element_type),
        (
            steps, groups.Factors(x if fused else x[:0], panels_x, panels_h), weights.others,
            saved, _scalings(kind, spec, scaling, width), _masks(masks), scratch,
        ),
        _work(rows, width, element_type), batch // tuning.CELL_PART_LEAST_ROWS,
        (state, carried)[: len(states)], saved,
    )  # fmt: skip


def _backward(
    kind: CellKind,
    spec: CellSpec,
    scaling: Scaling,
    x: Array,
    steps: PackedSteps,
    weights: Weights,
    saved: groups.Saved,
    masks: tuple[Array | None, ...],
    dy: Array,
    dstates: tuple[Array, ...],
) -> CellGradients:
    """Return all gradients; `dstates` becomes the gradients of the initial states."""
    element_type = element_type_of(x.dtype)
    dh, dc = dstates[0], dstates[1] if dstates[1:] else None
    (batch, outer), wide = dh.shape, weights.h.shape[0]
    width, each = wide // kind.gates, kind.norms_each_product(spec)
    factors, projects = _factors(kind, spec, weights), kind.projects(spec)
    reset = saved.cell if kind.resets_before(spec) else None
    operand = saved.dropped if spec.recurrent_dropout else saved.state
    gradients = ProductGradients(
        weights.x, weights.h, x, weights.projection, operand, reset, steps, element_type
    )
    other = [(gradients.most_rows, outer), (batch, width)] if projects else []
    dz, dxp, gates, normalized, cell, panels, *others = tables(
        WORKING_MEMORY,
        element_type.compute_dtype,
        (gradients.most_rows, wide), (gradients.most_rows if each else 0, wide),
        (batch, wide), (batch, width), (batch, width),
        _packed_shape(factors, element_type), *other,
    )  # fmt: skip
    projected, outputs = others or (None, None)
    sums = _sums_of(batch, kind.sums * width, element_type)
    kernel = make_backward(kind, spec, element_type)
    _pack_all(factors, panels, element_type)
    arguments = (
        panels, weights.others, saved,
        _coefficients(kind, spec, scaling, width), _masks(masks),
        groups.Gradients(dy, dh, dc, dz, dxp if each else None, projected),
        groups.Scratch(gates, normalized, cell, outputs), sums,
    )  # fmt: skip
    group_count = sums.sums.shape[0]
    max_parts = min(group_count, group_count * sums.size // tuning.CELL_PART_LEAST_ROWS)
    for chunk in gradients.chunks:
        step_range = groups.StepRange(*steps, chunk.begin, chunk.end)
        _run_kernel(
            kernel, (step_range, *arguments), _work(chunk.rows, width, element_type), max_parts
        )
        gradients.add(chunk, (dxp if each else dz, dz))
        if projected is not None:
            gradients.add_projection(chunk, projected, saved.outputs)
    vectors = kind.gradients(sums.totals.sum(axis=0), width)
    return CellGradients(gradients.x, dstates, gradients.of_weights() | vectors)


def _work(rows: int, width: int, element_type: ElementType) -> int:
    """Return the work of a pass over rows of states: about an LSTM's eight products of a row."""
    return rows * width * width * element_type.compute_dtype.itemsize


def _run_kernel(kernel: Kernel, arguments: tuple[Any, ...], work: int, max_parts: int) -> None:
    """Run a kernel of steps; its result does not depend on the number of parts."""
    parts = min(threads(work), max_parts) if max_parts > 1 else 1
    if work:  # the kernels read the batch size of the first step
        run(kernel, (*flattened(arguments), parts), work, parts)


def _panels(
    kind: CellKind,
    spec: CellSpec,
    weights: Weights,
    element_type: ElementType,
    shape: tuple[int, ...],
) -> list[Array]:
    """Return the transposes of both weights, packed, and an uninitialized array of a shape."""
    dtype = element_type.compute_dtype
    if weights.panels_x is not None and weights.panels_h is not None:
        return [weights.panels_x, weights.panels_h, *tables(WORKING_MEMORY, dtype, shape)]
    transposes = [factor.T for factor in _factors(kind, spec, weights)]
    sizes = _packed_shape([weights.x.T], element_type), _packed_shape(transposes, element_type)
    panels_x, panels_h, scratch = tables(WORKING_MEMORY, dtype, *sizes, shape)
    packed(weights.x.T, panels_x, element_type)
    _pack_all(transposes, panels_h, element_type)
    return [panels_x, panels_h, scratch]


def _packed_shape(matrices: list[Array], element_type: ElementType) -> tuple[int]:
    """Return the shape of the panels of several matrices."""
    return (
        sum(
            packed_shape(depth, width, element_type)[0] for depth, width in map(np.shape, matrices)
        ),
    )


def _pack_all(matrices: list[Array], panels: Array, element_type: ElementType) -> None:
    """Pack matrices one after the other."""
    start = 0
    for matrix in matrices:
        stop = start + _packed_shape([matrix], element_type)[0]
        packed(matrix, panels[start:stop], element_type)
        start = stop


def _masks(masks: tuple[Array | None, ...]) -> groups.Masks:
    return groups.Masks(masks[0], masks[1] if len(masks) > 2 else None, masks[-1])


def _statistics(kind: CellKind, spec: CellSpec, rows: int) -> groups.Statistics:
    """Return uninitialized arrays for mean and rstd of all normalized rows."""
    h, x, c = kind.statistics(spec)
    return groups.Statistics(
        np.empty(rows * h), np.empty(rows * h), np.empty(rows * x), np.empty(rows * x),
        np.empty(rows * c), np.empty(rows * c),
    )  # fmt: skip


def _scalings(kind: CellKind, spec: CellSpec, scaling: Scaling, width: int) -> groups.Scalings:
    eps, on_deviation, ddof = scaling.eps, scaling.eps_on_deviation, scaling.ddof
    (_, first), (_, second) = kind.norms(spec, width)
    return groups.Scalings(
        groups.Scaling(eps, on_deviation, float(first - ddof)),
        groups.Scaling(eps, on_deviation, float(second - ddof)),
    )


def _coefficients(
    kind: CellKind, spec: CellSpec, scaling: Scaling, width: int
) -> groups.GradientCoefficients:
    def of_norm(norm: Norm | None, size: int) -> groups.Coefficients:
        inv_count = 1.0 / size if norm is not None and norm.formula.centred else 0.0
        inv_divisor = 1.0 / (size - scaling.ddof)
        return groups.Coefficients(inv_count, inv_divisor, scaling.eps_on_deviation)

    return groups.GradientCoefficients(*(of_norm(*pair) for pair in kind.norms(spec, width)))


def _sums_of(batch: int, columns: int, element_type: ElementType) -> groups.Sums:
    """Return the sums of the parameters' gradients for a batch, all 0."""
    size = max(tuning.CELL_PART_LEAST_ROWS, -(-batch // tuning.CELL_GROUPS_MOST))
    if -(-batch // size) == 3:
        size = tuning.CELL_SIX_GROUPS_ROWS
    totals = np.zeros((-(-batch // size), columns))
    return groups.Sums(totals.astype(element_type.compute_dtype), totals, size)


# The functions of the backend


KINDS: dict[type, CellKind] = {LSTMSpec: LSTM, GRUSpec: GRU, RNNSpec: RNN}


def cell_weights(spec: CellSpec, given: Any, ada_scale: float, ada_k: float, keep: bool) -> Any:
    """Return a cell's parameters as `cell_forward` takes them, packed if `keep` is true."""
    return _make_weights(KINDS[type(spec)], spec, given, (ada_scale, ada_k), keep)


def cell_forward(
    spec: CellSpec,
    scaling: Scaling,
    x: Array,
    steps: PackedSteps,
    weights: Any,
    states: tuple[Array, ...],
    zoneout_masks: tuple[Array | None, ...],
    save: bool,
    dropout_mask: Array | None = None,
) -> tuple[tuple[Array, ...], Any]:
    """Return the history of each state, initial ones first, and what the backward pass needs."""
    kind = KINDS[type(spec)]
    history, saved = _forward(
        kind, spec, scaling, x, steps, weights, states, (*zoneout_masks, dropout_mask), save
    )
    if not save:
        # The cells lie in a memory pool whose memory is reused.
        history = history[0], *(h.copy() for h in history[1:])
    return history, saved


def prepared_step(
    spec: CellSpec,
    scaling: Scaling,
    x: Array,
    steps: PackedSteps,
    weights: Any,
    states: tuple[Array, ...],
) -> Step | None:
    """Return a function of one step, or None if the batch is empty or worth threads."""
    x, masks = np.empty_like(x, order="C"), (None,) * (len(states) + 1)
    call = _prepared(
        KINDS[type(spec)], spec, scaling, x, steps, weights, states, masks, False, True
    )
    if call.work == 0 or call.max_parts > 1:
        return None
    serial, arguments = call.kernel.serial, (*flattened(call.arguments), 1, 0, 1)
    batch, (state, *cells) = x.shape[0], call.history
    first, last = (state[:batch], *cells), (state[batch:], *cells)
    # One call at a time may use the arrays; a second one at once gets None.
    free = [arguments]

    def step(inputs: Array, given: tuple[Array | None, ...]) -> tuple[Array, ...] | None:
        try:
            own = free.pop()
        except IndexError:
            return None
        x[...] = inputs
        for array, value in zip(first, given, strict=True):
            array[...] = 0 if value is None else value
        serial(*own)
        result = tuple([array.copy() for array in last])
        free.append(own)
        return result

    return step


def cell_backward(
    spec: CellSpec,
    scaling: Scaling,
    x: Array,
    steps: PackedSteps,
    weights: Any,
    saved: Any,
    zoneout_masks: tuple[Array | None, ...],
    dy: Array,
    dstates: tuple[Array, ...],
    dropout_mask: Array | None = None,
) -> CellGradients:
    """Return all gradients from `dy`, of every state h, and `dstates`, of the last states."""
    kind = KINDS[type(spec)]
    return _backward(
        kind, spec, scaling, x, steps, weights, saved, (*zoneout_masks, dropout_mask), dy, dstates
    )
