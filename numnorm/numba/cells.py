"""One step of a recurrent cell in nopython code: the kernel of the public call, on own memory."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types
from numba.core.errors import TypingError
from numba.extending import overload, register_jitable
from numba.typed.typedobjectutils import _nonoptional

from numnorm.backends.cpu.compiler.jit import Kernel
from numnorm.backends.cpu.compiler.symbols import Source, make_call_of
from numnorm.backends.cpu.memory.borrowed import as_flat, make_scratch, shaped, window
from numnorm.backends.cpu.recurrent.cells import KINDS
from numnorm.backends.cpu.recurrent.kernels.forward import make_forward
from numnorm.backends.cpu.simd.element_type import element_type_of
from numnorm.backends.cpu.simd.optional import present
from numnorm.numba.packed import PackedType
from numnorm.rnn.parameters import PROJECTED_LSTM
from numnorm.rnn.results import LSTMState
from numnorm.rnn.specs import Spec, gru_spec, lstm_spec, projected, rnn_spec

_SPECS: dict[str, Callable[..., Spec]] = {"lstm": lstm_spec, "gru": gru_spec, "rnn": rnn_spec}
_FLOATS = types.float32, types.float64


def lstm_cell(x, parameters, h=None, c=None, *, norm="layer", variant="paper", eps=1e-5, **others):
    """Return what compiles calls of `numnorm.rnn.lstm_cell` with arguments of these types."""
    choices, states = {"norm": norm, "variant": variant}, {"h": h, "c": c}
    take = _make_step("lstm", x, parameters, states, choices, eps, others)

    def step(
        x, parameters, h=None, c=None, norm="layer", variant="paper", eps=1e-5,
        dropout=0.0, recurrent_dropout=0.0, zoneout=0.0, rng=None,
    ):  # fmt: skip
        return LSTMState(*take(x, parameters.weights, h, c, eps))

    return step


def gru_cell(x, parameters, h=None, *, norm="layer", reset_after=True, eps=1e-5, **others):
    """Return what compiles calls of `numnorm.rnn.gru_cell` with arguments of these types."""
    choices = {"norm": norm, "reset_after": reset_after}
    take = _make_step("gru", x, parameters, {"h": h}, choices, eps, others)

    def step(
        x, parameters, h=None, norm="layer", reset_after=True, eps=1e-5,
        dropout=0.0, recurrent_dropout=0.0, zoneout=0.0, rng=None,
    ):  # fmt: skip
        return take(x, parameters.weights, h, None, eps)[0]

    return step


def rnn_cell(x, parameters, h=None, *, norm="layer", nonlinearity="tanh", eps=1e-5, **others):
    """Return what compiles calls of `numnorm.rnn.rnn_cell` with arguments of these types."""
    choices = {"norm": norm, "nonlinearity": nonlinearity}
    take = _make_step("rnn", x, parameters, {"h": h}, choices, eps, others)

    def step(
        x, parameters, h=None, norm="layer", nonlinearity="tanh", eps=1e-5,
        dropout=0.0, recurrent_dropout=0.0, zoneout=0.0, rng=None,
    ):  # fmt: skip
        return take(x, parameters.weights, h, None, eps)[0]

    return step


def forward_kernel(cell: str, choices: tuple[Any, ...], projects: bool, dtype: str) -> Kernel:
    """Return the kernel of a cell."""
    spec = _spec(cell, choices, projects).cell
    return make_forward(KINDS[type(spec)], spec, element_type_of(np.dtype(dtype)))


def _spec(cell: str, choices: tuple[Any, ...], projects: bool) -> Spec:
    spec = _SPECS[cell](*choices)
    return projected(spec) if projects else spec


# Checks


def _constant(name: str, kind: Any) -> Any:
    """Return the value of an option, which must be known when the caller is compiled."""
    if isinstance(kind, types.Type) and kind != types.none:
        if not isinstance(kind, types.Literal):
            raise TypingError(f"{name} must be a constant in nopython code, got {kind}")
        return kind.literal_value
    return None if kind == types.none else kind


def _check(
    cell: str, x: Any, packed: Any, states: dict[str, Any], eps: Any, others: dict[str, Any]
) -> None:
    """Raise unless the types of the arguments are ones that compiled code can use."""
    if not isinstance(packed, PackedType) or packed.kind.name != cell:
        raise TypingError(f"parameters must be what {cell}_pack returned, got {packed}")
    dtype = packed.dtype
    if not (isinstance(x, types.Array) and x.ndim in (1, 2) and x.dtype == dtype):
        raise TypingError(f"x must be an array (B, I) or (I,) of {dtype}, as packed, got {x}")
    for name, state in states.items():
        kind = state.type if isinstance(state, types.Optional) else state
        if kind is not None and kind != types.none and not (
            isinstance(kind, types.Array) and kind.ndim == x.ndim and kind.dtype in _FLOATS
        ):
            raise TypingError(
                f"{name} must be None or a float array with {x.ndim} axes, as x has, got {state}"
            )
    if not isinstance(eps, float | types.Float | types.Integer):
        raise TypingError(f"eps must be a number, got {eps}")
    for name, kind in others.items():
        if isinstance(kind, types.Type) and kind != types.none:
            raise TypingError(f"{name} must be left out in nopython code, got {kind}")


# The step


def _make_step(
    cell: str,
    x: Any,
    packed: Any,
    states: dict[str, Any],
    choices: dict[str, Any],
    eps: Any,
    others: dict[str, Any],
) -> Callable[..., Any]:
    """Return a compiled ``take(x, weights, h, c, eps)``: the new state, or it and the new cell."""
    _check(cell, x, packed, states, eps, others)
    chosen = tuple(_constant(name, kind) for name, kind in choices.items())
    projects = packed.kind.parameters is PROJECTED_LSTM.parameters
    try:
        spec = _spec(cell, chosen, projects)
    except (TypeError, ValueError) as error:
        raise TypingError(str(error)) from None
    if packed.spec != _SPECS[cell](*chosen):
        raise TypingError(f"parameters must be packed for the same {' and '.join(choices)}")
    return _make_take(cell, chosen, spec.cell, packed, x.ndim == 2)


def _make_take(
    cell: str, choices: tuple[Any, ...], spec: Any, packed: PackedType, batched: bool
) -> Callable[..., Any]:
    """Return the `take` of `_make_step`; the kernel gets what `passes.prepared` gives it."""
    kind, dtype = KINDS[type(spec)], np.dtype(packed.dtype.name)
    call = _make_call(forward_kernel, (cell, choices, kind.projects(spec), dtype.name))
    gates, ((_, first), (_, second)) = kind.gates, kind.norms(spec, 1)
    # True or None, as `present` takes them.
    has_cell, projects = len(packed.kind.states) > 1 or None, kind.projects(spec) or None
    each, apart = kind.norms_each_product(spec) or None, kind.keeps_cell_apart(spec) or None
    normalizes_cell = has_cell or apart
    integer, number = make_scratch(np.int64, 1), make_scratch(np.float64, 1)
    new = _make_new(batched, dtype)

    @register_jitable
    def take(x, weights, h, c, eps):
        batch, inputs = x.shape[0] if batched else 1, weights.x.shape[1]
        wide, outer = weights.h.shape
        width = wide // gates
        if not 0.0 <= eps < math.inf:
            raise ValueError("eps must be finite and at least 0")
        work = np.empty(batch * (2 * outer + inputs + 2 * wide + 4 * width), dtype)
        state, at = _table(work, 0, 2 * batch, outer)
        carried, at = _table(work, at, batch, width)
        inner, at = _table(work, at, batch, width)
        outputs, at = _table(work, at, batch, width)
        scratch, at = _table(work, at, batch, width)
        xp, at = _table(work, at, batch, wide)
        z, at = _table(work, at, batch, wide)
        operand, at = _table(work, at, batch, inputs)
        if not _fill(as_flat(operand), x, batch, inputs):
            raise ValueError("x must have as many inputs as weight_x")
        if not _fill(as_flat(state), h, batch, outer):
            raise ValueError("h must have the shape of the batch and the units")
        if not _fill(as_flat(carried), c, batch, width):
            raise ValueError("c must have the shape of the batch and the units")
        offsets, batch_sizes, nothing = integer(), integer(), window(number(), 0, 0)
        offsets[0], batch_sizes[0] = 0, batch
        scaling, p = float(eps), weights.others
        # Two tuples, as Numba cannot compile a display of more than 30 elements.
        read = (
            offsets, batch_sizes, operand, weights.panels_x, weights.panels_h,
            p.offset, p.offset_h, p.gamma_h, p.beta_h, p.gamma_x, p.beta_x, p.gamma_c, p.beta_c,
        )  # fmt: skip
        written = (
            z if each else xp, present(each, xp), state, None, present(has_cell, carried),
            present(normalizes_cell, inner if apart else carried), present(projects, outputs),
            nothing, nothing, nothing, nothing, nothing, nothing,
            scaling, 0.0, float(first * width), scaling, 0.0, float(second * width),
            None, None, None, scratch, 1, 0, 1,
        )  # fmt: skip
        if batch > 0:
            call((0, read + written))
        # The tables do not keep `work` alive, but these reads do.
        h_new = _copied(new(batch, outer), work, batch * outer)
        c_new = h_new
        if has_cell:
            c_new = _copied(new(batch, width), work, 2 * batch * outer)
        return h_new, c_new

    return take


def _make_call(make: Callable[..., Kernel], arguments: tuple[Any, ...]) -> Callable[..., Any]:
    """Return ``call(arguments)`` for nopython code, of the kernel for arguments of any types."""

    def call(values):
        """Call the kernel."""

    @overload(call)
    def typed(values):
        source = Source(make, arguments, tuple(values))
        call_kernel = make_call_of(source)
        return lambda values: call_kernel(values)

    return call


def _make_new(batched: bool, dtype: Any) -> Callable[..., Any]:
    """Return a compiled function that makes a state, with or without the axis of the batch."""
    if batched:
        return register_jitable(lambda batch, width: np.empty((batch, width), dtype))
    return register_jitable(lambda batch, width: np.empty(width, dtype))


@register_jitable
def _table(work, start, rows, columns):
    """Return a borrowed part of `work` as a matrix, and the index after it."""
    size = rows * columns
    return shaped(window(work, start, size), (rows, columns)), start + size


@register_jitable
def _copied(result, work, start):
    """Return the result, filled with what `work` has from an index on."""
    flat = as_flat(result)
    for i in range(flat.size):
        flat[i] = work[start + i]
    return result


def _fill(flat, array, batch, width):
    """Fill a flat array from one of this shape, or with 0; return whether the shape is right."""


@overload(_fill)
def _compiled_fill(flat, array, batch, width):
    if array == types.none:
        return _fill_with_0
    if isinstance(array, types.Optional):
        return _fill_from_optional
    return _fill_from_row if array.ndim == 1 else _fill_from_matrix


def _fill_with_0(flat, array, batch, width):
    flat[:] = 0
    return True


def _fill_from_optional(flat, array, batch, width):
    if array is None:
        return _fill(flat, None, batch, width)
    return _fill(flat, _nonoptional(array), batch, width)


def _fill_from_row(flat, array, batch, width):
    for i in range(min(flat.size, array.size)):
        flat[i] = array[i]
    return array.size == width


def _fill_from_matrix(flat, array, batch, width):
    if array.shape != (batch, width):
        return False
    for i in range(batch):
        for j in range(width):
            flat[i * width + j] = array[i, j]
    return True
