"""One step of a recurrent cell in nopython code."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core.errors import TypingError
from numba.typed.typedobjectutils import _nonoptional

from numnorm.backends.cpu.compiler.symbols import Source, make_call_of
from numnorm.numba.arguments import (
    check_array,
    check_number,
    checked_eps,
    choice_of,
    is_none,
    wrong,
)
from numnorm.numba.arrays import assign, empty, has_shape, make_named, types, viewed
from numnorm.numba.arrays import packed as contiguous
from numnorm.numba.cell_step import spec_of, step_function
from numnorm.numba.helpers import helper
from numnorm.numba.outputs import fill
from numnorm.numba.packed import PackedType
from numnorm.rnn.parameters import PROJECTED_LSTM
from numnorm.rnn.results import LSTMState

_FLOATS = types.float32, types.float64
_CHOICES: dict[str, tuple[Any, ...]] = {
    "norm": ("layer", "rms", "ada", None),
    "variant": ("paper", "normalized_cell", "per_gate", "cell_only"),
    "reset_after": (True, False),
    "nonlinearity": ("tanh", "relu"),
}


def lstm_cell(x, parameters, h=None, c=None, *, norm="layer", variant="paper", eps=1e-5, **others):
    """Return what compiles calls of `numnorm.rnn.lstm_cell` with arguments of these types."""
    choices, states = {"norm": norm, "variant": variant}, {"h": h, "c": c}
    take, named = _make_take("lstm", x, parameters, states, choices, eps, others), _state_of_lstm

    def step(
        x, parameters, h=None, c=None, norm="layer", variant="paper", eps=1e-5,
        dropout=0.0, recurrent_dropout=0.0, zoneout=0.0, rng=None,
    ):  # fmt: skip
        return named(take(x, parameters, h, c, eps))

    return step


def gru_cell(x, parameters, h=None, *, norm="layer", reset_after=True, eps=1e-5, **others):
    """Return what compiles calls of `numnorm.rnn.gru_cell` with arguments of these types."""
    choices = {"norm": norm, "reset_after": reset_after}
    take = _make_take("gru", x, parameters, {"h": h}, choices, eps, others)

    def step(
        x, parameters, h=None, norm="layer", reset_after=True, eps=1e-5,
        dropout=0.0, recurrent_dropout=0.0, zoneout=0.0, rng=None,
    ):  # fmt: skip
        return take(x, parameters, h, None, eps)[0]

    return step


def rnn_cell(x, parameters, h=None, *, norm="layer", nonlinearity="tanh", eps=1e-5, **others):
    """Return what compiles calls of `numnorm.rnn.rnn_cell` with arguments of these types."""
    choices = {"norm": norm, "nonlinearity": nonlinearity}
    take = _make_take("rnn", x, parameters, {"h": h}, choices, eps, others)

    def step(
        x, parameters, h=None, norm="layer", nonlinearity="tanh", eps=1e-5,
        dropout=0.0, recurrent_dropout=0.0, zoneout=0.0, rng=None,
    ):  # fmt: skip
        return take(x, parameters, h, None, eps)[0]

    return step


_state_of_lstm = make_named(LSTMState)


def _check(
    cell: str, x: Any, packed: Any, states: dict[str, Any], eps: Any, others: dict[str, Any]
) -> None:
    """Raise unless compiled code can use arguments of these types."""
    if not isinstance(packed, PackedType) or packed.kind.name != cell:
        raise wrong("parameters", f"what {cell}_pack returned", packed)
    if not (isinstance(x, types.Array) and x.ndim in (1, 2) and x.dtype == packed.dtype):
        raise wrong("x", f"an array (B, I) or (I,) of {packed.dtype}, as packed", x)
    for name, state in states.items():
        kind = state.type if isinstance(state, types.Optional) else state
        if check_array(name, kind, x.ndim, "as x has") and kind.dtype not in _FLOATS:
            raise wrong(name, "an array of float32 or float64", kind)
    check_number("eps", eps)
    for name, value in others.items():
        if isinstance(value, types.Type) and not is_none(value):
            raise wrong(name, "left out in compiled code", value)


def _make_take(
    cell: str,
    x: Any,
    packed: Any,
    states: dict[str, Any],
    options: dict[str, Any],
    eps: Any,
    others: dict[str, Any],
) -> Callable[..., Any]:
    """Return a compiled ``take(x, packed, h, c, eps)``: the new h and c, which may be None."""
    _check(cell, x, packed, states, eps, others)
    choices = tuple(choice_of(name, kind, _CHOICES[name]) for name, kind in options.items())
    if packed.spec != spec_of(cell, choices):
        raise TypingError(f"parameters must be packed for the same {' and '.join(options)}")
    has_cell, batched, real = "c" in states, x.ndim == 2, np.dtype(packed.dtype.name).type
    source = cell, choices, packed.kind.parameters is PROJECTED_LSTM.parameters, real.__name__
    matrix = types.Array(packed.dtype, 2, "C")
    kinds = matrix, matrix, matrix if has_cell else types.none, packed, types.float64
    call = make_call_of(Source(step_function, source, kinds))
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
