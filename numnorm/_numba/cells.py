"""One step of a recurrent cell in nopython code."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core.errors import TypingError
from numba.typed.typedobjectutils import _nonoptional

from numnorm._numba.arguments import (
    check_array,
    check_number,
    checked_eps,
    choice_of,
    is_none,
    wrong,
)
from numnorm._numba.arrays import assign, empty, has_shape, make_named, types, viewed
from numnorm._numba.arrays import packed as contiguous
from numnorm._numba.cell_step import step_function
from numnorm._numba.helpers import helper
from numnorm._numba.outputs import fill
from numnorm._numba.packed import PackedType
from numnorm._numba.signatures import as_compiled
from numnorm.backends.cpu.compiler.symbols import Source, make_call_of
from numnorm.derived import derived
from numnorm.rnn.cells import CELLS, Cell
from numnorm.rnn.parameters import PROJECTED_LSTM, Kind
from numnorm.rnn.results import LSTMState

_FLOATS = types.float32, types.float64


def _step_of(cell: Cell) -> Callable[..., Any]:
    """Return what compiles calls of the step of a cell with arguments of certain types."""
    kind = cell.kind
    signature = inspect.signature(cell.step)
    compiled = signature.replace(
        parameters=[as_compiled(p) for p in signature.parameters.values()],
        return_annotation=signature.empty,
    )
    unused = {*signature.parameters} - {"x", "parameters", *kind.states, "eps"}

    def make_step(
        x: Any, parameters: Any, *states: Any, eps: Any, **others: Any
    ) -> Callable[..., Any]:
        of_states = dict(zip(kind.states, states, strict=True))
        choices = {name: others.pop(name) for name in kind.options}
        take = _make_take(kind, x, parameters, of_states, choices, eps, others)
        if "c" in kind.states:
            run = helper(lambda x, parameters, h, c, eps: _named(take(x, parameters, h, c, eps)))
        else:
            run = helper(lambda x, parameters, h, eps: take(x, parameters, h, None, eps)[0])
        return derived(globals(), "step", compiled, run, without=unused)

    name = cell.step.__name__
    docstring = f"Return what compiles calls of `numnorm.rnn.{name}` with arguments of these types."
    return derived(globals(), name, signature, make_step, docstring)


_named = make_named(LSTMState)


def _check(
    kind: Kind, x: Any, packed: Any, states: dict[str, Any], eps: Any, others: dict[str, Any]
) -> None:
    """Raise unless compiled code can use arguments of these types."""
    if not isinstance(packed, PackedType) or packed.kind.name != kind.name:
        raise wrong("parameters", f"what {kind.name}_pack returned", packed)
    if not (isinstance(x, types.Array) and x.ndim in (1, 2) and x.dtype == packed.dtype):
        raise wrong("x", f"an array (B, I) or (I,) of {packed.dtype}, as packed", x)
    for name, state in states.items():
        array = state.type if isinstance(state, types.Optional) else state
        if check_array(name, array, x.ndim, "as x has") and array.dtype not in _FLOATS:
            raise wrong(name, "an array of float32 or float64", array)
    check_number("eps", eps)
    for name, value in others.items():
        if isinstance(value, types.Type) and not is_none(value):
            raise wrong(name, "left out in compiled code", value)


def _make_take(
    kind: Kind,
    x: Any,
    packed: Any,
    states: dict[str, Any],
    options: dict[str, Any],
    eps: Any,
    others: dict[str, Any],
) -> Callable[..., Any]:
    """Return a compiled ``take(x, packed, h, c, eps)``: the new h and c, which may be None."""
    _check(kind, x, packed, states, eps, others)
    choices = tuple(choice_of(name, options[name], of) for name, of in kind.options.items())
    if packed.spec != kind.make_spec(*choices):
        raise TypingError(f"parameters must be packed for the same {' and '.join(options)}")
    has_cell = "c" in states
    batched = x.ndim == 2
    real = np.dtype(packed.dtype.name).type
    source = kind.name, choices, packed.kind.parameters is PROJECTED_LSTM.parameters, real.__name__
    matrix = types.Array(packed.dtype, 2, "C")
    of_arguments = matrix, matrix, matrix if has_cell else types.none, packed, types.float64
    call = make_call_of(Source(step_function, source, of_arguments))
    new_h = _make_new("h", states["h"], real)
    new_c = _make_new("c", states["c"], real) if has_cell else helper(lambda c, shape: c)

    def take(x, packed, h, c, eps):
        _, inputs, outer, width = packed.contents
        batch = x.shape[0] if batched else 1
        if x.shape[-1] != inputs:
            raise ValueError("x must have as many inputs as weight_x")
        h, c = new_h(h, (*x.shape[:-1], outer)), new_c(c, (*x.shape[:-1], width))
        rows = viewed(contiguous(x, None, real), (batch, inputs))
        of_h, of_c = viewed(h, (batch, outer)), viewed(c, (batch, width))
        call((rows, of_h, of_c, packed, checked_eps(eps)))
        return h, c

    return helper(take)


def _make_new(name: str, kind: Any, real: Any) -> Callable[..., Any]:
    """Return a compiled ``new(given, shape)``: a new array of the given values; 0 for None."""
    message = f"{name} must have the shape of the batch and the units"

    def zeros(given, shape):
        new = empty(shape, real)
        fill(new, 0)
        return new

    def copied(given, shape):
        if not has_shape(given, shape):
            raise ValueError(message)
        new = empty(shape, real)
        assign(new, given)
        return new

    def of_either(given, shape):
        return zeros(None, shape) if given is None else copied(_nonoptional(given), shape)

    zeros, copied = helper(zeros), helper(copied)
    if isinstance(kind, types.Optional):
        return helper(of_either)
    return zeros if is_none(kind) else copied


lstm_cell = _step_of(CELLS["lstm"])
gru_cell = _step_of(CELLS["gru"])
rnn_cell = _step_of(CELLS["rnn"])
