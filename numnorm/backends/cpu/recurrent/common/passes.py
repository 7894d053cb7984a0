"""The forward and backward pass of all recurrent cells, on NumPy arrays."""

from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.norms import Norm, Scaling
from numnorm.backends.contract.recurrent import CellGradients, CellSpec, PackedSteps
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.compiler.parallel import run, threads
from numnorm.backends.cpu.memory.grouped_kernel import flattened
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.memory.placement import tables
from numnorm.backends.cpu.recurrent.common.weight_gradients import ProductGradients
from numnorm.backends.cpu.recurrent.kernels import arguments as groups
from numnorm.backends.cpu.recurrent.kernels.backward import make_backward
from numnorm.backends.cpu.recurrent.kernels.forward import make_forward
from numnorm.backends.cpu.recurrent.kernels.kind import CellKind
from numnorm.backends.cpu.recurrent.matmul.matmul import matmul, packed, packed_shape
from numnorm.backends.cpu.recurrent.matmul.packed_matrices import matrix_panels
from numnorm.backends.cpu.simd.element_type import ElementType, element_type_of
from numnorm.memory_pool import POOL, WORKING_MEMORY


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


def make_weights(
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


class Prepared(NamedTuple):
    """The call of a forward kernel.

    Attributes
    ----------
    kernel : Kernel
    arguments : tuple
        Groups of arguments, for `run_kernel`.
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


def forward(
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
    call = prepared(kind, spec, scaling, x, steps, weights, states, masks, save, fused)
    run_kernel(call.kernel, call.arguments, call.work, call.max_parts)
    return call.history, call.saved if save else None


def prepared(
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
) -> Prepared:
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
    return Prepared(
        make_forward(kind, spec, element_type),
        (
            steps, groups.Factors(x if fused else x[:0], panels_x, panels_h), weights.others,
            saved, _scalings(kind, spec, scaling, width), _masks(masks), scratch,
        ),
        _work(rows, width, element_type), batch // tuning.CELL_PART_LEAST_ROWS,
        (state, carried)[: len(states)], saved,
    )  # fmt: skip


def backward(
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
    gradients = ProductGradients(weights.x, weights.h, x, operand, reset, steps, element_type)
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
        run_kernel(
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


def run_kernel(kernel: Kernel, arguments: tuple[Any, ...], work: int, max_parts: int) -> None:
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
