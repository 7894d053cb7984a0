"""LSTM and GRU with normalization, for arrays of JAX."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from numnorm import rnn
from numnorm.arguments import Shape, check_choice, check_eps, check_flag, check_shape
from numnorm.array_types import CellNorm, LSTMVariant
from numnorm.derived import derived, parameters_section, signature_for
from numnorm.jax.arrays import as_float_array
from numnorm.jax.rows import mapped, once
from numnorm.jax.targets import call_python, varying_like
from numnorm.rnn.cells import CELLS, Cell
from numnorm.rnn.parameters import KINDS, Kind, checked, kind_of
from numnorm.rnn.results import GRUStates, LSTMStates
from numnorm.rnn.specs import Spec


class _Static(NamedTuple):
    """The arguments of a call that are no arrays; `names` are those of the parameters that are."""

    cell: str
    options: tuple[tuple[str, Any], ...]
    reverse: bool
    has_lengths: bool
    parameters: str
    names: tuple[str, ...]


class _Types:
    """The types of the arguments that are no arrays."""

    norm: CellNorm | None
    variant: LSTMVariant
    reset_after: bool
    eps: float
    batch_first: bool
    reverse: bool


# Arguments of the cells of `numnorm.rnn`, which has masks; a compiled function has none.
_WITHOUT = "dropout", "recurrent_dropout", "zoneout", "rng"

_PARAMETERS = {
    "x": """\
x : array_like (T, B, I)
    T steps of B sequences; a dtype as for `layer_norm`.""",
    "parameters": """\
parameters : {parameters}
    With arrays of JAX, or any others.""",
    "norm": """\
norm : {{"layer", "rms", "ada", None}}, default "layer"
    The norm, as for `numnorm.rnn.{name}`.""",
    "lengths": """\
lengths : array_like of int (B,), optional
    The number of steps of each sequence. Default: T.""",
}

_DOCSTRING = """{summary}

{section}

Returns
-------
{results}
    ``(y, {outputs})``, of the dtype of x.

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
>>> parameters = rnn.{name}_init(3, 2, dtype="float32", rng=np.random.default_rng(0))
>>> y, {outputs} = numnorm.jax.{name}(jax.numpy.ones((5, 4, 3)), parameters)
>>> y.shape, h.shape
((5, 4, 2), (4, 2))
"""


def _cell(cell: Cell) -> Callable[..., Any]:
    """Return a cell for arrays of JAX."""
    kind = cell.kind
    make_results = inspect.signature(cell.call).return_annotation
    types = inspect.get_annotations(_Types)
    signature = signature_for(cell.call, types, make_results.__name__, _WITHOUT)
    of_kind = [f"numnorm.rnn.{k.parameters.__name__}" for k in KINDS if k.name == kind.name]
    words = {"name": kind.name, "parameters": " or ".join(of_kind)}
    own = {name: text.format(**words) for name, text in _PARAMETERS.items()}
    docstring = _DOCSTRING.format(
        name=kind.name,
        summary=(inspect.getdoc(cell.call) or "").partition("\n")[0],
        section=parameters_section(cell.call, signature.parameters, own),
        results=make_results.__name__,
        outputs=", ".join(kind.states),
    )

    def run(
        x: Any,
        parameters: Any,
        *states: Any,
        eps: Any,
        lengths: Any,
        batch_first: Any,
        reverse: Any,
        **choices: Any,
    ) -> Any:
        check_choice("norm", choices["norm"], kind.options["norm"])
        spec = kind.make_spec(*choices.values())
        # As Python's own objects, which the key of a compiled function needs.
        options = dict(zip(kind.options, kind.choices_of(spec), strict=True))
        options["eps"] = check_eps(eps)
        exact = kind_of(kind, parameters)
        results = _run(exact, spec, options, x, parameters, states, lengths, batch_first, reverse)
        return make_results(*results)

    return derived(globals(), kind.name, signature, run, docstring)


class _Tracing:
    """What the checks of parameters need of a backend."""

    def cell_parameter(self, name: str, value: Any, x: Any, check: Any) -> Any:
        array = as_float_array(name, value)
        check(array.shape)
        return array


def _run(
    kind: Kind,
    spec: Spec,
    options: dict[str, Any],
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
    batch_first = check_flag("batch_first", batch_first)
    reverse = check_flag("reverse", reverse)
    x = x.swapaxes(0, 1) if batch_first else x
    backend: Any = _Tracing()
    ready = checked(kind, parameters, spec, x, backend, x.shape[2])
    wide, outer = ready.weight_h.shape
    widths = outer, wide // len(kind.gates)
    states = tuple(
        _state(name, value, (x.shape[1], width), x)
        for name, value, width in zip(kind.states, states, widths, strict=False)
    )
    if lengths is not None:
        lengths = _checked_lengths(lengths, x.shape[1])
    present = {name: value for name, value in ready._asdict().items() if value is not None}
    static = _Static(
        kind.name,
        tuple(options.items()),
        reverse,
        lengths is not None,
        kind.parameters.__name__,
        tuple(present),
    )
    y, *last = _jitted(static, x, states, lengths, tuple(present.values()))
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
    arrays = jax.tree.map(lambda a: a[None], ((x, *states), lengths, parameters))
    results = _cells(static, *varying_like(arrays, arrays))
    return tuple(a[0] for a in results)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _cells(static: _Static, first: Any, lengths: Any, parameters: Any) -> Any:
    """Return y and the last states of groups of sequences, from x and the first states."""
    forward = _forward_of(static, len(first))
    return forward(*first, *_if_given(lengths), *parameters)


def _cells_forward(static: _Static, first: Any, lengths: Any, parameters: Any) -> Any:
    forward = once(_forward_of(static, len(first)))
    return forward(*first, *_if_given(lengths), *parameters), (first, lengths, parameters)


def _cells_backward(static: _Static, saved: Any, gradients: Any) -> Any:
    first, lengths, parameters = saved
    backward = once(_backward_of(static, len(first)))
    results = backward(*gradients, *first, *_if_given(lengths), *parameters)
    return results[: len(first)], None, results[len(first) :]


_cells.defvjp(_cells_forward, _cells_backward)


def _if_given(lengths: Any) -> tuple[Any, ...]:
    return () if lengths is None else (lengths,)


@functools.lru_cache(maxsize=1024)
def _forward_of(static: _Static, count: int) -> Any:
    """Return the function of x, the first states, lengths and parameters, for groups of them."""
    sequences = count + static.has_lengths

    @custom_vmap
    def forward(*arrays: Any) -> Any:
        x, *others = arrays[:sequences]
        parameters = arrays[sequences:]
        groups, batch = len(x), x.shape[2]
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

    return mapped(forward, sequences)


@functools.lru_cache(maxsize=1024)
def _backward_of(static: _Static, count: int) -> Any:
    """Return the function of the gradients of the results and of what `_forward_of` takes."""
    sequences = 2 * count + static.has_lengths

    @custom_vmap
    def backward(*arrays: Any) -> Any:
        groups = len(arrays[0])
        like = *arrays[count : 2 * count], *arrays[sequences:]
        results = [jax.ShapeDtypeStruct((groups, *a.shape[1:]), a.dtype) for a in like]
        return tuple(_call(backward_pass, static, results, *arrays))

    return mapped(backward, sequences)


def _call(function: Any, static: _Static, results: Any, *arrays: Any) -> Any:
    options = static._asdict() | {"options": dict(static.options)}
    return call_python(function, results, *arrays, **options)


def _taken(arguments: list[Any], cell: Cell, g: int, how: dict[str, Any]) -> tuple[Any, Any]:
    """Return the positional and the keyword arguments of a forward pass of group g."""
    x, *others = (array[g % len(array)] for array in arguments)
    count = len(cell.kind.states)
    states = others[:count]
    others = others[count:]
    lengths = others.pop(0) if how["has_lengths"] else None
    parameters = getattr(rnn, how["parameters"])(**dict(zip(how["names"], others, strict=True)))
    options = how["options"] | {"lengths": lengths, "reverse": how["reverse"]}
    return (x, parameters, *states), options


def forward_pass(arguments: list[Any], results: list[Any], **how: Any) -> None:
    """Store y and the last states of each group."""
    cell = CELLS[how["cell"]]
    for g in range(len(results[0])):
        arrays, options = _taken(arguments, cell, g, how)
        for target, result in zip(results, cell.call(*arrays, **options), strict=True):
            target[g] = result


def backward_pass(arguments: list[Any], results: list[Any], **how: Any) -> None:
    """Store the gradients of x, the first states and the parameters of each group."""
    cell = CELLS[how["cell"]]
    count = 1 + len(cell.kind.states)
    for g in range(len(results[0])):
        dy, *last = (array[g] for array in arguments[:count])
        arrays, options = _taken(arguments[count:], cell, g, how)
        saved = cell.forward(*arrays, **options).saved
        *first, parameters = cell.backward(dy, saved, *last)
        flat = [*first, *(getattr(parameters, name) for name in how["names"])]
        for target, gradient in zip(results, flat, strict=True):
            target[g] = gradient


lstm: Callable[..., LSTMStates] = _cell(CELLS["lstm"])
gru: Callable[..., GRUStates] = _cell(CELLS["gru"])
