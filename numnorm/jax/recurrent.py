"""LSTM and GRU with normalization, for arrays of JAX."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from numnorm import rnn
from numnorm.arguments import Shape, check_choice, check_eps, check_flag, check_shape
from numnorm.array_types import CellNorm, LSTMVariant
from numnorm.jax.arrays import as_float_array
from numnorm.jax.rows import mapped, once
from numnorm.jax.targets import call_python, varying_like
from numnorm.rnn.parameters import GRU, LSTM, Kind, checked, kind_of
from numnorm.rnn.results import GRUStates, LSTMStates
from numnorm.rnn.specs import Spec, gru_spec, lstm_spec

_NORMS = ("layer", "rms", "ada", None)


class _Static(NamedTuple):
    """The arguments of a call that are no arrays; `given` names the parameters that are arrays."""

    kind: str
    options: tuple[tuple[str, Any], ...]
    reverse: bool
    has_lengths: bool
    parameters: str
    given: tuple[str, ...]


def lstm(
    x: Any,
    parameters: Any,
    h: Any = None,
    c: Any = None,
    *,
    norm: CellNorm | None = "layer",
    variant: LSTMVariant = "paper",
    eps: float = 1e-5,
    lengths: Any = None,
    batch_first: bool = False,
    reverse: bool = False,
) -> LSTMStates:
    """Run a normalized LSTM over sequences.

    Parameters
    ----------
    x : array_like (T, B, I)
        T steps of B sequences; a dtype as for `layer_norm`.
    parameters : numnorm.rnn.LSTMParameters or numnorm.rnn.ProjectedLSTMParameters
        With arrays of JAX, or any others.
    h, c : array_like (B, H), optional
        The state and the cell before the first step. Default: 0.
    norm : {"layer", "rms", "ada", None}, default "layer"
        The norm, as for `numnorm.rnn.lstm`.
    variant, eps, batch_first, reverse
        As for `numnorm.rnn.lstm`.
    lengths : array_like of int (B,), optional
        The number of steps of each sequence. Default: T.

    Returns
    -------
    LSTMStates
        ``(y, h, c)``, of the dtype of x.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm` does.

    Notes
    -----
    The backward pass runs the forward pass again. There are no dropout and no zoneout.

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> import numnorm.jax
    >>> from numnorm import rnn
    >>> parameters = rnn.lstm_init(3, 2, dtype="float32", rng=np.random.default_rng(0))
    >>> y, h, c = numnorm.jax.lstm(jax.numpy.ones((5, 4, 3)), parameters)
    >>> y.shape, h.shape
    ((5, 4, 2), (4, 2))
    """
    spec = lstm_spec(check_choice("norm", norm, _NORMS), variant)
    options = ("norm", norm), ("variant", variant), ("eps", check_eps(eps))
    kind = kind_of(LSTM, parameters)
    return LSTMStates(
        *_run(kind, spec, options, x, parameters, (h, c), lengths, batch_first, reverse)
    )


def gru(
    x: Any,
    parameters: Any,
    h: Any = None,
    *,
    norm: CellNorm | None = "layer",
    reset_after: bool = True,
    eps: float = 1e-5,
    lengths: Any = None,
    batch_first: bool = False,
    reverse: bool = False,
) -> GRUStates:
    """Run a normalized gated recurrent unit over sequences.

    Parameters
    ----------
    x : array_like (T, B, I)
        T steps of B sequences; a dtype as for `layer_norm`.
    parameters : numnorm.rnn.GRUParameters
        With arrays of JAX, or any others.
    h : array_like (B, H), optional
        The state before the first step. Default: 0.
    norm, reset_after, eps, batch_first, reverse
        As for `numnorm.rnn.gru`.
    lengths : array_like of int (B,), optional
        The number of steps of each sequence. Default: T.

    Returns
    -------
    GRUStates
        ``(y, h)``, of the dtype of x.

    Raises
    ------
    TypeError, ValueError
        As `layer_norm` does.

    Notes
    -----
    The backward pass runs the forward pass again. There are no dropout and no zoneout.

    Examples
    --------
    >>> import jax
    >>> import numpy as np
    >>> import numnorm.jax
    >>> from numnorm import rnn
    >>> parameters = rnn.gru_init(3, 2, dtype="float32", rng=np.random.default_rng(0))
    >>> y, h = numnorm.jax.gru(jax.numpy.ones((5, 4, 3)), parameters)
    >>> y.shape, h.shape
    ((5, 4, 2), (4, 2))
    """
    spec = gru_spec(check_choice("norm", norm, _NORMS), reset_after)
    options = ("norm", norm), ("reset_after", bool(reset_after)), ("eps", check_eps(eps))
    return GRUStates(*_run(GRU, spec, options, x, parameters, (h,), lengths, batch_first, reverse))


class _Tracing:
    """What the checks of parameters need of a backend."""

    def cell_parameter(self, name: str, value: Any, x: Any, check: Any) -> Any:
        array = as_float_array(name, value)
        check(array.shape)
        return array


def _run(
    kind: Kind,
    spec: Spec,
    options: tuple[tuple[str, Any], ...],
    x: Any,
    parameters: Any,
    states: tuple[Any, ...],
    lengths: Any,
    batch_first: Any,
    reverse: Any,
) -> tuple[Any, ...]:
    x = as_float_array("x", x)
    if x.ndim != 3:
        raise ValueError(f"x must have shape (T, B, I), got {x.shape}")
    batch_first, reverse = check_flag("batch_first", batch_first), check_flag("reverse", reverse)
    x = x.swapaxes(0, 1) if batch_first else x
    backend: Any = _Tracing()
    given = checked(kind, parameters, spec, x, backend, x.shape[2])
    wide, outer = given.weight_h.shape
    widths = outer, wide // kind.gates
    states = tuple(
        _state(name, value, (x.shape[1], width), x)
        for name, value, width in zip(kind.states, states, widths, strict=False)
    )
    if lengths is not None:
        lengths = _checked_lengths(lengths, x.shape[1])
    names = tuple(name for name, value in given._asdict().items() if value is not None)
    static = _Static(
        kind.name, options, reverse, lengths is not None, kind.parameters.__name__, names
    )
    y, *last = _jitted(static, x, states, lengths, tuple(getattr(given, n) for n in names))
    return (y.swapaxes(0, 1) if batch_first else y, *last)


def _state(name: str, value: Any, shape: Shape, x: Any) -> Any:
    if value is None:
        return jnp.zeros(shape, x.dtype)
    array = as_float_array(name, value)
    check_shape(name, array.shape, shape, "that of the sequences and units")
    return array.astype(x.dtype)


def _checked_lengths(lengths: Any, batch: int) -> Any:
    array = jnp.asarray(lengths)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"lengths must be integers, got dtype {array.dtype}")
    check_shape("lengths", array.shape, (batch,), "one for each sequence")
    return array.astype(jnp.int32)


@functools.partial(jax.jit, static_argnums=0)
def _jitted(static: _Static, x: Any, states: Any, lengths: Any, parameters: Any) -> Any:
    given = jax.tree.map(lambda a: a[None], ((x, *states), lengths, parameters))
    results = _cells(static, *varying_like(given, given))
    return tuple(a[0] for a in results)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _cells(static: _Static, first: Any, lengths: Any, parameters: Any) -> Any:
    """Return y and the last states of groups of sequences, from x and the first states."""
    given = () if lengths is None else (lengths,)
    return _forward_of(static, len(first))(*first, *given, *parameters)


def _cells_forward(static: _Static, first: Any, lengths: Any, parameters: Any) -> Any:
    given = () if lengths is None else (lengths,)
    results = once(_forward_of(static, len(first)))(*first, *given, *parameters)
    return results, (first, lengths, parameters)


def _cells_backward(static: _Static, saved: Any, gradients: Any) -> Any:
    first, lengths, parameters = saved
    given = () if lengths is None else (lengths,)
    backward = once(_backward_of(static, len(first)))
    results = backward(*gradients, *first, *given, *parameters)
    return results[: len(first)], None, results[len(first) :]


_cells.defvjp(_cells_forward, _cells_backward)


@functools.lru_cache(maxsize=1024)
def _forward_of(static: _Static, count: int) -> Any:
    """Return the function of x, the first states, lengths and parameters, for groups of them."""
    arrays = count + static.has_lengths

    @custom_vmap
    def forward(*given: Any) -> Any:
        x, *others = given[:arrays]
        parameters, groups, batch = given[arrays:], len(x), x.shape[2]
        if len(parameters[0]) == 1:  # one batch of the sequences of all groups
            x = jnp.moveaxis(x, 0, 1)
            x = x.reshape(1, x.shape[0], groups * batch, x.shape[3])
            others = [a.reshape(1, groups * batch, *a.shape[2:]) for a in others]
        states = others[: count - 1]
        shapes = [(*x.shape[:3], states[0].shape[2]), *(a.shape for a in states)]
        results = [jax.ShapeDtypeStruct(shape, x.dtype) for shape in shapes]
        y, *last = _call(forward_pass, static, results, x, *others, *parameters)
        if len(y) != groups:
            y = jnp.moveaxis(y.reshape(y.shape[1], groups, batch, y.shape[3]), 1, 0)
        return y, *(a.reshape(groups, batch, a.shape[2]) for a in last)

    return mapped(forward, arrays)


@functools.lru_cache(maxsize=1024)
def _backward_of(static: _Static, count: int) -> Any:
    """Return the function of the gradients of the results and of what `_forward_of` takes."""
    arrays = 2 * count + static.has_lengths

    @custom_vmap
    def backward(*given: Any) -> Any:
        groups = len(given[0])
        like = *given[count : 2 * count], *given[arrays:]
        results = [jax.ShapeDtypeStruct((groups, *a.shape[1:]), a.dtype) for a in like]
        return tuple(_call(backward_pass, static, results, *given))

    return mapped(backward, arrays)


def _call(function: Any, static: _Static, results: Any, *arrays: Any) -> Any:
    options = static._asdict() | {"options": dict(static.options)}
    return call_python(function, results, *arrays, **options)


def _taken(arguments: list[Any], states: int, g: int, how: dict[str, Any]) -> tuple[Any, Any]:
    """Return the positional and the keyword arguments of a forward pass of group g."""
    arrays = [array[g % len(array)] for array in arguments]
    first, others = arrays[: 1 + states], arrays[1 + states :]
    lengths = others.pop(0) if how["has_lengths"] else None
    parameters = getattr(rnn, how["parameters"])(**dict(zip(how["given"], others, strict=True)))
    x, *given = first
    options = how["options"] | {"lengths": lengths, "reverse": how["reverse"]}
    return (x, parameters, *given), options


def forward_pass(arguments: list[Any], results: list[Any], **how: Any) -> None:
    """Store y and the last states of each group."""
    states = 2 if how["kind"] == "lstm" else 1
    for g in range(len(results[0])):
        given, options = _taken(arguments, states, g, how)
        computed = getattr(rnn, how["kind"])(*given, **options)
        for target, result in zip(results, computed, strict=True):
            target[g] = result


def backward_pass(arguments: list[Any], results: list[Any], **how: Any) -> None:
    """Store the gradients of x, the first states and the parameters of each group."""
    kind, states = how["kind"], 2 if how["kind"] == "lstm" else 1
    for g in range(len(results[0])):
        dy, *last = (array[g] for array in arguments[: 1 + states])
        given, options = _taken(arguments[1 + states :], states, g, how)
        saved = getattr(rnn, f"{kind}_forward")(*given, **options).saved
        gradients = getattr(rnn, f"{kind}_backward")(dy, saved, *last)
        *first, parameters = gradients
        flat = [*first, *(getattr(parameters, name) for name in how["given"])]
        for target, gradient in zip(results, flat, strict=True):
            target[g] = gradient
