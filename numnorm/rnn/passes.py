"""The forward and backward pass of every kind of recurrent cell: checks, and calls of a backend."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from numnorm.arguments import (
    check_dtype,
    check_eps,
    check_flag,
    check_generator,
    check_number,
    check_shape,
    is_on_device,
)
from numnorm.backends import backend_for
from numnorm.backends.contract.norms import Scaling, scaling_by
from numnorm.backends.contract.recurrent import LSTMSpec, SequenceLayout, Step
from numnorm.rnn.batch_statistics import RecurrentBatchNorm, running_statistics
from numnorm.rnn.parameters import Kind, checked, is_without_norm, named
from numnorm.rnn.pickling import reduced
from numnorm.rnn.sequences import sequence_layout
from numnorm.rnn.specs import Spec, with_zoneout

# AdaNorm's C and k, the defaults of `ada_norm`.
_ADA_SCALE, _ADA_K = 1.0, 0.1
# Packed parameters remember how to take a step for this many batch sizes and epsilons.
_STEPS_MOST = 8


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Packed:
    """Parameters packed for many calls; its contents are private."""

    kind: Kind
    spec: Spec
    given: Any
    backend: Any
    dtype: Any
    weights: Any
    # Functions of a step, by the arguments that determine them.
    steps: dict[Any, Step] = dataclasses.field(default_factory=dict)

    def __repr__(self) -> str:
        (_, hidden), (_, inputs) = self.given.weight_h.shape, self.given.weight_x.shape
        return f"Packed({self.kind.name}, {inputs} inputs, {hidden} units, {self.dtype.name})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Packed again where it is read: the layout depends on the processor.
        return pack, (self.kind, self.spec, self.given, self.dtype)


class Options(NamedTuple):
    """The arguments that all kinds of cells have, unchecked."""

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
    spec: Spec
    scaling: Scaling
    layout: SequenceLayout
    batch_first: bool
    x: Any
    units: int
    dtype: Any
    given: Any
    weights: Any
    zoneout_masks: tuple[Any, ...]
    kept: Any

    def __repr__(self) -> str:
        maker = f"{self.kind.name}{'_cell' * self.single}_forward"
        steps = f"{self.layout.time} steps of {self.layout.batch} sequences"
        return f"<saved by {maker}: {steps}, {self.units} units, {self.dtype.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)


def forward(
    kind: Kind,
    spec: Spec,
    x: Any,
    parameters: Any,
    states: tuple[Any, ...],
    options: Options,
    *,
    save: bool = False,
    single: bool = False,
) -> tuple[Any, ...]:
    """Return y, the last states and, with `save`, what `backward` needs.

    For a single step, x is (B, I), and y is left out.
    """
    backend, x = backend_for(x, "x")
    time, batch, batch_first = _sizes(x.shape, options.batch_first, single)
    eps, reverse = check_eps(options.eps), check_flag("reverse", options.reverse)
    dtype, scaling = x.dtype, scaling_by(eps)
    layout = sequence_layout(time, batch, options.lengths, reverse)
    x = backend.pack_padded(x, layout, batch_first, None)
    given, ready, weights = _weights(kind, spec, parameters, x, backend)
    zoneout = _probabilities(kind, options.zoneout)
    if any(zoneout) and spec.batch:
        raise ValueError("zoneout must be 0 with batch norm")
    spec = with_zoneout(spec) if any(zoneout) else spec
    shape = batch, ready.weight_h.shape[1]
    first = [
        backend.cell_state(name, s, shape, x) for name, s in zip(kind.states, states, strict=True)
    ]
    zoneout_masks = _zoneout_masks(zoneout, options.rng, layout, shape[1], x, backend)
    sorted_states = tuple(backend.sort_states(s, layout) for s in first)
    if spec.batch:
        cell, running = cast(LSTMSpec, spec.cell), {}
        if isinstance(spec.batch, RecurrentBatchNorm):
            running = running_statistics(spec.batch, cell, shape[1], layout.steps, x, backend)
        history, kept = backend.batch_cell_forward(
            cell, eps, x, layout.steps, ready, sorted_states, running
        )
    else:
        history, kept = backend.cell_forward(
            spec.cell, scaling, x, layout.steps, weights, sorted_states, zoneout_masks, save
        )
    begin, whole = sorted_states[0].shape[0], save or spec.batch is not None
    y = backend.pad_packed(history[0], begin, layout, batch_first, x, dtype)
    indices = begin + layout.last
    last = [
        backend.unsort_states(h, indices if i == 0 or whole else None, s, layout, dtype)
        for i, (h, s) in enumerate(zip(history, first, strict=True))
    ]
    results = last if single else [y, *last]
    if not save:
        return tuple(results)
    if isinstance(y, np.ndarray):
        y.flags.writeable = False  # the backward pass reads its memory
    return *results, _Saved(
        kind, single, backend, spec, scaling, layout, batch_first, x, shape[1], dtype, given,
        weights, zoneout_masks, kept,
    )  # fmt: skip


def step(
    kind: Kind,
    make_spec: Callable[..., Spec],
    choices: tuple[Any, ...],
    x: Any,
    parameters: Any,
    states: tuple[Any, ...],
    options: tuple[Any, Any, Any],
) -> tuple[Any, ...]:
    """Return the states after one step; `choices` determine the spec.

    `options` are eps, zoneout and rng. Usual arrays and packed parameters take a short way, from
    their second call on.
    """
    eps, zoneout, rng = options
    key = known = None
    if (
        type(parameters) is Packed
        and parameters.kind is kind
        and type(x) is np.ndarray
        and type(eps) is type(zoneout) is float
        and zoneout == 0.0
        and rng is None
    ):
        key = choices, eps, x.shape, x.dtype
        try:
            known = parameters.steps.get(key)
        except TypeError:  # of a choice that has no hash; `make_spec` raises the error
            key = None
        if known is not None and (result := known(x, states)) is not None:
            return result
    result = forward(
        kind, make_spec(*choices), x, parameters, states, Options(eps, zoneout=zoneout, rng=rng),
        single=True,
    )  # fmt: skip
    if key is not None and known is None and x.ndim == 2 and x.dtype == parameters.dtype:
        _remember_step(parameters, key, x, result)
    return result


def _remember_step(packed: Packed, key: Any, x: Any, states: tuple[Any, ...]) -> None:
    """Remember how to take a step like one that was taken."""
    layout, shape = sequence_layout(1, x.shape[0], None, False), states[0].shape
    take = packed.backend.prepared_step(
        packed.spec.cell, scaling_by(key[1]), x, layout.steps, packed.weights, states
    )

    def take_if_usual(x: Any, states: tuple[Any, ...]) -> Any:
        for state in states:
            if state is not None and not (
                type(state) is np.ndarray and state.shape == shape and state.dtype == x.dtype
            ):
                return None
        return None if take is None else take(x, states)

    if len(packed.steps) >= _STEPS_MOST:
        packed.steps.clear()
    packed.steps[key] = take_if_usual


def _sizes(shape: Any, batch_first: Any, single: bool) -> tuple[int, int, bool]:
    """Return the number of steps, the batch size, and whether the batch comes first."""
    axes = "2 axes, of batch and inputs" if single else "3 axes, of time, batch and inputs"
    if len(shape) != int(axes[0]):
        raise ValueError(f"x must have {axes}, got {len(shape)}")
    if single:
        return 1, shape[0], False
    swapped = check_flag("batch_first", batch_first)
    time, batch = (shape[1], shape[0]) if swapped else shape[:2]
    return time, batch, swapped


def _weights(kind: Kind, spec: Spec, parameters: Any, x: Any, backend: Any) -> tuple[Any, Any, Any]:
    """Return the parameters as given, checked, and packed by the backend."""
    if not isinstance(parameters, Packed):
        ready = checked(kind, parameters, spec, x, backend, x.shape[1])
        weights = None
        if not spec.batch:
            weights = backend.cell_weights(spec.cell, ready, _ADA_SCALE, _ADA_K, False)
        return kind.parameters(*parameters), ready, weights
    if parameters.kind is not kind:
        raise TypeError(
            f"parameters must be packed for {kind.name}, got those for {parameters.kind.name}"
        )
    if parameters.backend is not backend:
        where = "a device" if is_on_device(parameters.given.weight_h) else "the host"
        raise TypeError(f"parameters must lie where x does, got them packed for {where}")
    backend.check_packed(parameters.given.weight_h, x)
    if parameters.spec != spec:
        raise ValueError(f"parameters must be packed for the same {' and '.join(kind.options)}")
    if parameters.dtype != x.dtype:
        raise ValueError(
            f"parameters must be packed for {x.dtype.name}, got those for {parameters.dtype.name}"
        )
    inputs = parameters.given.weight_x.shape[1]
    if x.shape[1] != inputs:
        raise ValueError(f"x must have {inputs} inputs, as weight_x has, got {x.shape[1]}")
    return parameters.given, parameters.given, parameters.weights


def pack(kind: Kind, spec: Spec, parameters: Any, dtype: Any) -> Packed:
    """Return a copy of the parameters, checked and packed for many calls."""
    if spec.batch:
        raise ValueError("norm must be that of a row to pack for it, got 'batch'")
    given, dtype = named(kind, parameters), check_dtype(dtype)
    on_device = is_on_device(given.weight_h)
    backend, weight_h = backend_for(given.weight_h if on_device else np.empty(0), "weight_h")
    like = backend.packed_like(weight_h, dtype)
    checked(kind, given, spec, like, backend)  # first, because a copy would drop masks
    copied = kind.parameters(
        *(
            value
            if value is None or is_without_norm(value)
            else backend.copied_parameter(name, value, like)
            for name, value in given._asdict().items()
        )
    )
    ready = checked(kind, copied, spec, like, backend)
    weights = backend.cell_weights(spec.cell, ready, _ADA_SCALE, _ADA_K, True)
    return Packed(kind, spec, copied, backend, like.dtype, weights)


def _probabilities(kind: Kind, zoneout: Any) -> tuple[float, ...]:
    """Return the zoneout probability of each state."""
    if type(zoneout) is float and zoneout == 0.0:  # fast, for most calls
        return (0.0,) * len(kind.states)
    values = zoneout if isinstance(zoneout, tuple | list) else (zoneout,) * len(kind.states)
    if len(values) != len(kind.states):
        raise ValueError(
            f"zoneout must be a number, or one for each of {', '.join(kind.states)}, "
            f"got {len(values)} of them"
        )
    return tuple(check_number("zoneout", value, least=0.0, most=1.0) for value in values)


def _zoneout_masks(
    zoneout: tuple[float, ...], rng: Any, layout: SequenceLayout, width: int, x: Any, backend: Any
) -> tuple[Any, ...]:
    """Return the zoneout mask of each state: drawn, or the probability without a generator."""
    if rng is not None:
        check_generator(rng)
    if not any(zoneout):
        return (None,) * len(zoneout)
    masks: list[Any] = list(zoneout)
    if rng is not None:
        # Step by step, so that neither padding nor chunks change the masks.
        drawn = rng.random((layout.time, len(zoneout), layout.batch, width), np.float32)
        masks = [drawn[:, i] < probability for i, probability in enumerate(zoneout)]
    return tuple(backend.zoneout_mask(mask, layout, width, x) for mask in masks)


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
    layout, backend, x, dtype = saved.layout, saved.backend, saved.x, saved.dtype
    rows = backend.pack_padded(
        _output_gradient(saved, dy, "dh" if single else "dy"), layout, saved.batch_first, x
    )
    last = [
        backend.cell_state(f"d{name}", s, (layout.batch, saved.units), x)
        for name, s in zip(kind.states, dstates, strict=True)
    ]
    sorted_states = tuple(backend.sort_states(s, layout) for s in last)
    if saved.spec.batch:
        gradients = backend.batch_cell_backward(saved.kept, rows, sorted_states)
    else:
        gradients = backend.cell_backward(
            saved.spec.cell, saved.scaling, x, layout.steps, saved.weights, saved.kept,
            saved.zoneout_masks, rows, sorted_states,
        )  # fmt: skip
    dx = backend.pad_packed(gradients.dx, 0, layout, saved.batch_first, x, dtype)
    first = (
        backend.unsort_states(f, None, s, layout, dtype)
        for f, s in zip(gradients.states, last, strict=True)
    )
    return (dx[0] if single else dx), *first, _parameter_gradients(saved, gradients.parameters)


def _output_gradient(saved: _Saved, dy: Any, name: str) -> Any:
    """Return the checked gradient of what the forward pass returned, as the backend's array."""
    layout = saved.layout
    grad = saved.backend.as_like(name, dy, saved.x)
    expected: tuple[int, ...] = (layout.time, layout.batch, saved.units)
    if saved.batch_first:
        expected = (layout.batch, layout.time, saved.units)
    if saved.single:
        expected = expected[1:]
    check_shape(name, grad.shape, expected, "that of y" if name == "dy" else "that of h")
    return grad


def _parameter_gradients(saved: _Saved, gradients: dict[str, Any]) -> Any:
    """Return the gradients of the given parameters, in their dtypes and shapes."""
    return saved.kind.parameters(
        **{
            name: None
            if value is None
            else value
            if is_without_norm(value)
            else saved.backend.parameter_gradient(name, gradients[name], value, saved.x)
            for name, value in saved.given._asdict().items()
        }
    )
