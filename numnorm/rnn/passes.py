"""The passes of every kind of recurrent cell, over sequences and of one step.

They check arguments and call a backend.
"""

import contextlib
import dataclasses
import functools
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple, cast

import numpy as np

from numnorm.arguments import (
    check_dtype,
    check_eps,
    check_flag,
    check_shape,
)
from numnorm.array_likes import is_on_device
from numnorm.backends import backend_for
from numnorm.backends.contract.norms import Scaling, scaling_by
from numnorm.backends.contract.recurrent import (
    LSTMSpec,
    SequenceLayout,
    Step,
    may_persist,
)
from numnorm.rnn.batch_statistics import RecurrentBatchNorm, running_statistics
from numnorm.rnn.masks import Masks, drawn_masks, masked
from numnorm.rnn.parameters import Kind, checked, is_mark, kind_of, named
from numnorm.rnn.sequences import sequence_layout
from numnorm.rnn.specs import Spec

# AdaNorm's C and k, the defaults of `ada_norm`.
_ADA_SCALE, _ADA_K = 1.0, 0.1
# Packed parameters remember how to take a step for this many batch sizes and epsilons.
_MOST_STEPS = 8


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Packed:
    """Parameters packed for many calls; its contents are private.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rnn.lstm_pack(rnn.lstm_init(3, 2, rng=np.random.default_rng(0)))
    Packed(lstm, 3 inputs, 2 units, float32)
    """

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

    # For Numba, which asks for the type of an argument of a compiled function.
    @functools.cached_property
    def _numba_type_(self) -> Any:
        if is_on_device(self.given.weight_h):
            return None  # compiled code has no type for it
        return importlib.import_module("numnorm._numba.packed").type_of(self)

    @functools.cached_property
    def numba_contents(self) -> Any:
        """What compiled functions get of it."""
        return importlib.import_module("numnorm._numba.packed").contents_of(self)

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
    dropout: Any = 0.0
    recurrent_dropout: Any = 0.0


class _Saved(NamedTuple):
    kind: Kind
    single: bool
    backend: Any
    spec: Spec
    scaling: Scaling
    layout: SequenceLayout
    batch_first: bool
    batched: bool
    x: Any
    widths: tuple[int, ...]
    dtype: Any
    given: Any
    weights: Any
    masks: Masks
    kept: Any

    def __repr__(self) -> str:
        maker = f"{self.kind.name}{'_cell' * self.single}_forward"
        steps = f"{self.layout.time} steps of {self.layout.batch} sequences"
        return f"<saved by {maker}: {steps}, {self.widths[0]} units, {self.dtype.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)


def reduced(saved: Any) -> tuple[Any, ...]:
    """Return what ``__reduce__`` of a NamedTuple returns, whose `backend` may be a module."""
    values = saved._asdict()
    backend = values.pop("backend")
    home = backend.__name__ if isinstance(backend, ModuleType) else backend
    return _restored, (type(saved), home, values)


def _restored(kind: Any, backend: Any, values: dict[str, Any]) -> Any:
    if isinstance(backend, str):
        backend = importlib.import_module(backend)
    return kind(backend=backend, **values)


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

    For a single step, x is (B, I), and y is left out. x may lack the axis of the batch.
    """
    kind = kind_of(kind, parameters.given if isinstance(parameters, Packed) else parameters)
    backend, x = backend_for(x, "x")
    time, batch, batch_first, batched = _sizes(x.shape, options.batch_first, single)
    eps, reverse = check_eps(options.eps), check_flag("reverse", options.reverse)
    dtype, scaling = x.dtype, scaling_by(eps)
    layout = sequence_layout(time, batch, options.lengths, reverse)
    x = backend.pack_padded(x, layout, batch_first, None)
    given, ready, weights = _weights(kind, spec, parameters, x, backend)
    spec, probabilities = masked(
        kind, spec, options.dropout, options.recurrent_dropout, options.zoneout, options.rng
    )
    wide, outer = ready.weight_h.shape
    widths = (outer, wide // len(kind.gates))[: len(kind.states)]
    first = [
        backend.cell_state(name, s, (batch, width), x, batched)
        for name, s, width in zip(kind.states, states, widths, strict=True)
    ]
    masks = drawn_masks(probabilities, options.rng, layout, outer, x, backend)
    x = backend.dropped(x, *masks.inputs, layout) if masks.inputs else x
    sorted_states = tuple(backend.sort_states(s, layout) for s in first)
    if spec.batch:
        cell, running = cast(LSTMSpec, spec.cell), {}
        if isinstance(spec.batch, RecurrentBatchNorm):
            running = running_statistics(spec.batch, cell, outer, layout.steps, x, backend)
        history, kept = backend.batch_cell_forward(
            cell, eps, x, layout.steps, ready, sorted_states, running
        )
    else:
        history, kept = backend.cell_forward(
            spec.cell, scaling, x, layout.steps, weights, sorted_states, masks.zoneout, save,
            masks.states,
        )  # fmt: skip
    begin, whole = sorted_states[0].shape[0], save or spec.batch is not None
    y = backend.pad_packed(history[0], begin, layout, batch_first, x, dtype)
    indices = begin + layout.last
    last = [
        backend.unsort_states(h, indices if i == 0 or whole else None, s, layout, dtype)
        for i, (h, s) in enumerate(zip(history, first, strict=True))
    ]
    y, *last = (y, *last) if batched else map(_without_batch, (y, *last))
    results = last if single else [y, *last]
    if not save:
        return tuple(results)
    if isinstance(y, np.ndarray):
        y.flags.writeable = False  # the backward pass reads its memory
    return *results, _Saved(
        kind, single, backend, spec, scaling, layout, batch_first, batched, x, widths, dtype,
        given, weights, masks, kept,
    )  # fmt: skip


def _sizes(shape: Any, batch_first: Any, single: bool) -> tuple[int, int, bool, bool]:
    """Return the steps, the batch size, whether its axis is first, and whether x has one."""
    count = 2 if single else 3
    if len(shape) not in (count, count - 1):
        axes = "2 axes, of batch and inputs" if single else "3 axes, of time, batch and inputs"
        raise ValueError(f"x must have {axes}, or {count - 1} without the batch, got {len(shape)}")
    batched = len(shape) == count
    swapped = check_flag("batch_first", batch_first) and batched
    if single:
        return 1, shape[0] if batched else 1, False, batched
    time, batch = (shape[1], shape[0]) if swapped else (shape[0], shape[1] if batched else 1)
    return time, batch, swapped, batched


def _weights(kind: Kind, spec: Spec, parameters: Any, x: Any, backend: Any) -> tuple[Any, Any, Any]:
    """Return the parameters as given, checked, and packed by the backend."""
    if not isinstance(parameters, Packed):
        ready = checked(kind, parameters, spec, x, backend, x.shape[1])
        weights = None
        if not spec.batch:
            weights = backend.cell_weights(spec.cell, ready, _ADA_SCALE, _ADA_K, False)
        return kind.parameters(*parameters), ready, weights
    if parameters.kind.name != kind.name:
        raise TypeError(
            f"parameters must be packed for {kind.name}, got those for {parameters.kind.name}"
        )
    on_host = isinstance(x, np.ndarray)
    if parameters.backend is not backend and is_on_device(parameters.given.weight_h) is on_host:
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
    kind = kind_of(kind, parameters)
    given, dtype = named(kind, parameters), check_dtype(dtype)
    on_device = is_on_device(given.weight_h)
    backend, weight_h = backend_for(given.weight_h if on_device else np.empty(0), "weight_h")
    like = backend.packed_like(weight_h, dtype)
    checked(kind, given, spec, like, backend)  # first, because a copy would drop masks
    copied = kind.parameters(
        *(
            value
            if value is None or is_mark(value)
            else backend.copied_parameter(name, value, like)
            for name, value in given._asdict().items()
        )
    )
    ready = checked(kind, copied, spec, like, backend)
    weights = backend.cell_weights(spec.cell, ready, _ADA_SCALE, _ADA_K, True)
    return Packed(kind, spec, copied, backend, like.dtype, weights)


def backward(
    kind: Kind, maker: str, dy: Any, saved: Any, dstates: tuple[Any, ...], *, single: bool = False
) -> tuple[Any, ...]:
    """Return the gradients of x, the first states and the parameters."""
    if not isinstance(saved, _Saved) or saved.kind.name != kind.name or saved.single is not single:
        raise TypeError(
            f"saved must be what {maker} returned, got an object of type {type(saved).__name__}"
            if not isinstance(saved, _Saved)
            else f"saved must be what {maker} returned, got that of another function"
        )
    layout, backend, x, dtype = saved.layout, saved.backend, saved.x, saved.dtype
    rows = _output_gradient(saved, dy, "dh" if single else "dy")
    last = [
        backend.cell_state(f"d{name}", s, (layout.batch, width), x, saved.batched)
        for name, s, width in zip(kind.states, dstates, saved.widths, strict=True)
    ]
    sorted_states = tuple(backend.sort_states(s, layout) for s in last)
    if saved.spec.batch:
        gradients = backend.batch_cell_backward(saved.kept, rows, sorted_states)
    else:
        gradients = backend.cell_backward(
            saved.spec.cell, saved.scaling, x, layout.steps, saved.weights, saved.kept,
            saved.masks.zoneout, rows, sorted_states, saved.masks.states,
        )  # fmt: skip
    kept = saved.masks.inputs
    dx = backend.dropped(gradients.dx, *kept, layout) if kept else gradients.dx
    dx = backend.pad_packed(dx, 0, layout, saved.batch_first, x, dtype)
    first = [
        backend.unsort_states(f, None, s, layout, dtype)
        for f, s in zip(gradients.states, last, strict=True)
    ]
    dx, *first = (dx, *first) if saved.batched else map(_without_batch, (dx, *first))
    dx = _reshaped(dx, dx.shape[1:]) if single else dx
    return dx, *first, _parameter_gradients(saved, gradients.parameters)


def _without_batch(array: Any) -> Any:
    return _reshaped(array, (*array.shape[:-2], array.shape[-1]))


def _reshaped(array: Any, shape: tuple[int, ...]) -> Any:
    """Return an array, of any library, in another shape."""
    # Numba's device arrays take no ellipsis; the array API has a function, and no method.
    method = getattr(array, "reshape", None)
    return method(shape) if method else array.__array_namespace__().reshape(array, shape)


def _output_gradient(saved: _Saved, dy: Any, name: str) -> Any:
    """Return the packed rows of the gradient of what the forward pass returned; None gives 0."""
    layout, backend, width = saved.layout, saved.backend, saved.widths[0]
    if dy is None:
        return backend.cell_state(name, None, (layout.count, width), saved.x)
    grad = backend.as_like(name, dy, saved.x)
    expected: tuple[int, ...] = (layout.time, layout.batch, width)
    if saved.batch_first:
        expected = (layout.batch, layout.time, width)
    if not saved.batched:
        expected = layout.time, width
    if saved.single:
        expected = expected[1:]
    check_shape(name, grad.shape, expected, "that of y" if name == "dy" else "that of h")
    return backend.pack_padded(grad, layout, saved.batch_first, saved.x)


def _parameter_gradients(saved: _Saved, gradients: dict[str, Any]) -> Any:
    """Return the gradients of the given parameters, in their dtypes and shapes."""
    return saved.kind.parameters(
        **{
            name: None
            if value is None
            else value
            if is_mark(value)
            else saved.backend.parameter_gradient(name, gradients[name], value, saved.x)
            for name, value in saved.given._asdict().items()
        }
    )


def step(
    kind: Kind,
    make_spec: Callable[..., Spec],
    choices: tuple[Any, ...],
    x: Any,
    parameters: Any,
    states: tuple[Any, ...],
    options: tuple[Any, Any, Any, Any, Any],
) -> tuple[Any, ...]:
    """Return the states after one step; `choices` determine the spec.

    `options` are eps, zoneout, rng, dropout and recurrent_dropout. Usual arrays and packed
    parameters take a short way, from their second call on.
    """
    eps, zoneout, rng, dropout, recurrent_dropout = options
    key = known = None
    if (
        type(parameters) is Packed
        and parameters.kind is kind
        and type(x) is np.ndarray
        and type(eps) is type(zoneout) is type(dropout) is type(recurrent_dropout) is float
        and zoneout == dropout == recurrent_dropout == 0.0
        and rng is None
    ):
        # With the type, because True is equal to 1 and `make_spec` refuses 1.
        key = choices, type(choices[-1]), eps, x.shape, x.dtype
        try:
            known = parameters.steps.get(key)
        except TypeError:  # of a choice that has no hash; `make_spec` raises the error
            key = None
        if known is not None and (result := known(x, states)) is not None:
            return result
    every = Options(
        eps, zoneout=zoneout, rng=rng, dropout=dropout, recurrent_dropout=recurrent_dropout
    )
    result = forward(kind, make_spec(*choices), x, parameters, states, every, single=True)
    if key is not None and known is None and x.ndim == 2 and x.dtype == parameters.dtype:
        _remember_step(parameters, key, eps, x, result)
    return result


def _remember_step(packed: Packed, key: Any, eps: float, x: Any, states: tuple[Any, ...]) -> None:
    """Remember how to take a step like one that was taken."""
    layout, shape = sequence_layout(1, x.shape[0], None, False), states[0].shape
    take = packed.backend.prepared_step(
        packed.spec.cell, scaling_by(eps), x, layout.steps, packed.weights, states
    )

    def take_if_usual(x: Any, states: tuple[Any, ...]) -> Any:
        for state in states:
            if state is not None and not (
                type(state) is np.ndarray and state.shape == shape and state.dtype == x.dtype
            ):
                return None
        return None if take is None else take(x, states)

    if len(packed.steps) >= _MOST_STEPS:
        packed.steps.clear()
    packed.steps[key] = take_if_usual


@contextlib.contextmanager
def persistent_kernels(enabled: bool = True) -> Iterator[None]:
    """Choose whether one kernel may take all steps of a recurrent cell on a CUDA device.

    A persistent kernel [1]_ keeps the weights of the states in shared memory from the first step
    to the last. It is the default for every cell that fits the device. Step by step, each step is
    a matrix product by the library of the arrays and a kernel of numnorm. So it is in any case for
    cells that do not fit, cells with batch norm, `recurrent_dropout`, projections or
    ``reset_after=False``, and on the host.

    Parameters
    ----------
    enabled : bool, default True
        If False, cells run step by step; if True, they take one kernel where they fit. This holds
        for forward and backward passes inside the ``with`` statement, in the same thread or task.

    Raises
    ------
    TypeError
        If `enabled` is not a bool.

    See Also
    --------
    numnorm.rnn.lstm, numnorm.rnn.gru, numnorm.rnn.rnn

    Notes
    -----
    Whether a cell fits depends on the device, the dtype, the batch size and the number of units,
    and not on the number of steps: each unit of each sequence needs a thread, and every 8 units a
    multiprocessor with room for their weights, because all blocks of threads run at the same time
    and wait for each other. A device that refuses such a launch takes single steps.

    The results of both ways differ by rounding. A persistent kernel computes the products with the
    states in full precision and sums them up in one order, whatever the device and the batch; the
    library computes the products with x both ways.

    References
    ----------
    .. [1] G. Diamos et al., "Persistent RNNs: Stashing Recurrent Weights On-Chip", ICML 2016.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> parameters = rnn.lstm_init(3, 4, rng=np.random.default_rng(0))
    >>> x = np.ones((5, 2, 3))  # or an array of a device: time, batch, features
    >>> with rnn.persistent_kernels(False):
    ...     y, h, c = rnn.lstm(x, parameters)
    >>> y.shape
    (5, 2, 4)
    """
    token = may_persist.set(check_flag("enabled", enabled))
    try:
        yield
    finally:
        may_persist.reset(token)
