"""The passes of every kind of recurrent cell over sequences: their checks, and what they keep."""

import dataclasses
from typing import Any, NamedTuple, cast

import numpy as np

from numnorm.arguments import (
    check_dtype,
    check_eps,
    check_flag,
    check_generator,
    check_number,
    check_shape,
)
from numnorm.backends import backend_for
from numnorm.backends.contract import LSTMForm, Scaling, scaling_by
from numnorm.rnn.batch_normalized import batch_lstm_backward, batch_lstm_forward
from numnorm.rnn.forms import Form, with_zoneout
from numnorm.rnn.parameters import Kind, checked, named
from numnorm.rnn.sequences import SequenceLayout, sequence_layout

# AdaNorm's C and k, as its own function has them.
_ADA_SCALE, _ADA_K = 1.0, 0.1


@dataclasses.dataclass(frozen=True, eq=False)
class Packed:
    """Parameters made ready for many calls; its contents are its own."""

    kind: Kind
    form: Form
    given: Any
    backend: Any
    dtype: Any
    weights: Any


class Options(NamedTuple):
    """The arguments that all kinds take, as they were given."""

    eps: Any = 1e-5
    lengths: Any = None
    batch_first: Any = False
    reverse: Any = False
    zoneout: Any = 0.0
    rng: Any = None


class _Saved(NamedTuple):
    kind: Kind
    single: bool
    backend: Any
    form: Form
    scaling: Scaling
    layout: SequenceLayout
    batch_first: bool
    x: Any
    dtype: Any
    given: Any
    weights: Any
    keeps: tuple[Any, ...]
    kept: Any


def forward(
    kind: Kind,
    form: Form,
    x: Any,
    parameters: Any,
    states: tuple[Any, ...],
    options: Options,
    *,
    save: bool,
    single: bool = False,
) -> tuple[Any, list[Any], Any]:
    """Return y, the last states, and what `backward` needs; of a single step, x is (B, I)."""
    backend, x = on_host("x", x)
    x, batch_first = _time_first(x, options.batch_first, single)
    eps, reverse = check_eps(options.eps), check_flag("reverse", options.reverse)
    dtype, scaling = x.dtype, scaling_by(eps)
    layout = sequence_layout(x.shape[0], x.shape[1], options.lengths, reverse)
    x = backend.working(x)
    given, ready, weights = _weights(kind, form, parameters, x, backend)
    shares = _shares(kind, options.zoneout)
    if any(shares) and form.batch:
        raise ValueError("zoneout must be 0 with batch norm")
    form = with_zoneout(form) if any(shares) else form
    shape = x.shape[1], np.shape(given.weight_h)[1]
    first = [_state(name, s, shape, x.dtype) for name, s in zip(kind.states, states, strict=True)]
    rows, keeps = layout.rows(x), _keeps(shares, options.rng, layout, shape[1], x.dtype)
    ordered = tuple(layout.ordered(s) for s in first)
    if form.batch:
        history, kept = batch_lstm_forward(
            cast(LSTMForm, form.cell), form.batch, eps, rows, layout.steps, ready, ordered
        )
    else:
        history, kept = backend.cell_forward(
            form.cell, scaling, rows, layout.steps, weights, ordered, keeps, save
        )
    batch, whole = ordered[0].shape[0], save or form.batch is not None
    y = layout.padded(history[0][batch:])
    last = [
        layout.restored(h[batch + layout.last] if i == 0 or whole else h.copy(), s)
        for i, (h, s) in enumerate(zip(history, first, strict=True))
    ]
    y = y.swapaxes(0, 1) if batch_first else y
    y, *last = (a.astype(dtype, copy=False) for a in (y, *last))
    if not save:
        return y, last, None
    y.flags.writeable = False  # its memory is what the backward pass reads
    return y, last, _Saved(
        kind, single, backend, form, scaling, layout, batch_first, rows, dtype, given, weights,
        keeps, kept,
    )  # fmt: skip


def on_host(name: str, value: Any) -> tuple[Any, Any]:
    """Return the backend of an array, and the array, which is one of the host."""
    backend, array = backend_for(value, name)
    if not isinstance(array, np.ndarray):
        raise NotImplementedError(
            f"recurrent cells are not there yet for arrays of a CUDA device: bring {name} to the "
            "host"
        )
    return backend, array


def _time_first(x: Any, batch_first: Any, single: bool) -> tuple[Any, bool]:
    axes = "2 axes, of batch and inputs" if single else "3 axes, of time, batch and inputs"
    if len(x.shape) != int(axes[0]):
        raise ValueError(f"x must have {axes}, got {len(x.shape)}")
    if single:
        return x[None], False
    swapped = check_flag("batch_first", batch_first)
    return (x.swapaxes(0, 1) if swapped else x), swapped


def _weights(kind: Kind, form: Form, parameters: Any, x: Any, backend: Any) -> tuple[Any, Any, Any]:
    """Return the parameters as they were given, checked, and as the backend takes them."""
    if not isinstance(parameters, Packed):
        ready = checked(kind, parameters, form, x.dtype, x.shape[2])
        weights = None
        if not form.batch:
            weights = backend.cell_weights(form.cell, ready, _ADA_SCALE, _ADA_K, False)
        return kind.parameters(*parameters), ready, weights
    if parameters.kind is not kind:
        raise TypeError(
            f"parameters must be packed for {kind.name}, got those for {parameters.kind.name}"
        )
    if parameters.form is not form:
        raise ValueError(f"parameters must be packed for the same {' and '.join(kind.options)}")
    if parameters.dtype != x.dtype:
        raise ValueError(
            f"parameters must be packed for {x.dtype}, got those for {parameters.dtype}"
        )
    inputs = parameters.given.weight_x.shape[1]
    if x.shape[2] != inputs:
        raise ValueError(f"x must have {inputs} inputs, as weight_x has, got {x.shape[2]}")
    return parameters.given, None, parameters.weights


def pack(kind: Kind, form: Form, parameters: Any, dtype: Any) -> Packed:
    """Return a copy of the parameters, checked and packed for many calls."""
    if form.batch:
        raise ValueError("norm must be that of a row to pack for it, got 'batch'")
    backend, like = backend_for(np.empty(0, check_dtype(dtype)), "dtype")
    like = backend.working(like)
    given = named(kind, parameters)
    checked(kind, given, form, like.dtype)  # before a copy loses masks
    copied = kind.parameters(*(None if p is None else np.array(p) for p in given))
    ready = checked(kind, copied, form, like.dtype)
    weights = backend.cell_weights(form.cell, ready, _ADA_SCALE, _ADA_K, True)
    return Packed(kind, form, copied, backend, like.dtype, weights)


def _state(name: str, value: Any, shape: tuple[int, int], dtype: Any) -> Any:
    if value is None:
        return np.zeros(shape, dtype)
    _, array = on_host(name, value)
    check_shape(name, array.shape, shape, "that of the batch and the units")
    return np.array(array, dtype, order="C")


def _shares(kind: Kind, zoneout: Any) -> tuple[float, ...]:
    """Return the share of each state that is kept."""
    shares = zoneout if isinstance(zoneout, tuple | list) else (zoneout,) * len(kind.states)
    if len(shares) != len(kind.states):
        raise ValueError(
            f"zoneout must be a number, or one for each of {', '.join(kind.states)}, "
            f"got {len(shares)} of them"
        )
    return tuple(check_number("zoneout", share, least=0.0, most=1.0) for share in shares)


def _keeps(
    shares: tuple[float, ...], rng: Any, layout: SequenceLayout, width: int, dtype: Any
) -> tuple[Any, ...]:
    """Return what a step keeps of each element: drawn, or expected if there is no generator."""
    if rng is not None:
        check_generator(rng)
    if not any(shares):
        return (None,) * len(shares)
    if rng is None:
        keeps = [np.full((layout.time, layout.batch, width), share) for share in shares]
    else:
        # A step's numbers before the next one's, so that padding and chunks change none.
        drawn = rng.random((layout.time, len(shares), layout.batch, width), np.float32)
        keeps = [drawn[:, i] < share for i, share in enumerate(shares)]
    return tuple(np.ascontiguousarray(layout.rows(keep), dtype) for keep in keeps)


def backward(
    kind: Kind, maker: str, dy: Any, saved: Any, dstates: tuple[Any, ...], *, single: bool = False
) -> tuple[Any, ...]:
    """Return the gradients of x, the first states and the parameters."""
    if not isinstance(saved, _Saved) or saved.kind is not kind or saved.single is not single:
        raise TypeError(
            f"saved must be what {maker} returned, got an object of type {type(saved).__name__}"
            if not isinstance(saved, _Saved)
            else f"saved must be what {maker} returned, got that of another function"
        )
    layout, dtype = saved.layout, saved.dtype
    slope = _slope(saved, dy, "dh" if single else "dy")
    shape = layout.batch, slope.shape[2]
    last = [
        _state(f"d{name}", s, shape, slope.dtype)
        for name, s in zip(kind.states, dstates, strict=True)
    ]
    rows, ordered = layout.rows(slope), tuple(layout.ordered(s).copy() for s in last)
    if saved.form.batch:
        found = batch_lstm_backward(saved.kept, rows, ordered)
    else:
        found = saved.backend.cell_backward(
            saved.form.cell, saved.scaling, saved.x, layout.steps, saved.weights, saved.kept,
            saved.keeps, rows, ordered,
        )  # fmt: skip
    dx = layout.padded(found.dx)
    dx = dx.swapaxes(0, 1) if saved.batch_first else dx
    first = (layout.restored(f, s) for f, s in zip(found.states, last, strict=True))
    gradients = (a.astype(dtype, copy=False) for a in (dx[0] if single else dx, *first))
    return *gradients, _parameter_gradients(kind, found.parameters, saved.given)


def _slope(saved: _Saved, dy: Any, name: str) -> Any:
    """Return the gradients of all states, time first."""
    layout, width = saved.layout, np.shape(saved.given.weight_h)[1]
    _, slope = on_host(name, dy)
    expected: tuple[int, ...] = (layout.time, layout.batch, width)
    if saved.batch_first:
        expected = (layout.batch, layout.time, width)
    if saved.single:
        expected = expected[1:]
    check_shape(name, slope.shape, expected, "that of y" if name == "dy" else "that of h")
    if saved.single:
        slope = slope[None]
    elif saved.batch_first:
        slope = slope.swapaxes(0, 1)
    return np.ascontiguousarray(slope, saved.x.dtype)


def _parameter_gradients(kind: Kind, found: dict[str, Any], given: Any) -> Any:
    """Return the gradients of the parameters that there are, in their dtypes and shapes."""
    values = {}
    for name, value in given._asdict().items():
        if value is not None:
            parameter = np.asarray(value)
            whole = parameter.dtype.kind in "biu"
            dtype = np.dtype(np.float64) if whole else parameter.dtype
            values[name] = np.asarray(found[name]).reshape(parameter.shape).astype(dtype)
    return kind.parameters(**{name: values.get(name) for name in given._fields})
