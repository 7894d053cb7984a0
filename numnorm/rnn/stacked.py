"""Recurrent cells in several layers and both directions, with dropout between the layers.

This module calls the public functions of the cells, one layer after the other, and arranges states
and gradients in the structure of the layers.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import check_eps, check_flag, check_number, check_shape
from numnorm.array_types import LSTMNorm, LSTMVariant, Number
from numnorm.backends import backend_for
from numnorm.rnn.cells import CELLS, Cell
from numnorm.rnn.masks import check_dropout, gain
from numnorm.rnn.parameters import KINDS
from numnorm.rnn.passes import Packed, reduced
from numnorm.rnn.results import Stacked, StackedForward, StackedGradients
from numnorm.rnn.sequences import check_lengths

Array = np.ndarray[Any, Any]

_CELLS: dict[type, Cell] = {kind.parameters: CELLS[kind.name] for kind in KINDS}


def _cell_of(parameters: Any) -> Cell | None:
    """Return the cell with these parameters; None if there is none."""
    kind = parameters.kind.parameters if isinstance(parameters, Packed) else type(parameters)
    return _CELLS.get(kind)


class _Direction(NamedTuple):
    """One direction of a layer; its name, such as ``layers[1][0]``, is for messages."""

    name: str
    cell: Cell
    parameters: Any
    reverse: bool


_Plan = tuple[tuple[_Direction, ...], ...]


class _Saved(NamedTuple):
    backend: Any
    x: Any
    plan: _Plan
    cells: tuple[tuple[Any, ...], ...]
    widths: tuple[tuple[int, ...], ...]
    masks: tuple[Any, ...]
    dropout: float
    batch_first: bool
    shape: tuple[int, ...]

    def __repr__(self) -> str:
        return f"<saved by stacked_forward: {len(self.plan)} layers, y of shape {self.shape}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)


def stacked(
    x: Any,
    layers: Sequence[Any],
    states: Sequence[Any] | None = None,
    *,
    dropout: Number = 0.0,
    recurrent_dropout: Number = 0.0,
    rng: np.random.Generator | None = None,
    lengths: Any = None,
    batch_first: bool = False,
    norm: LSTMNorm | None = "layer",
    variant: LSTMVariant | None = None,
    nonlinearity: str | None = None,
    reset_after: bool | None = None,
    eps: Number = 1e-5,
    zoneout: Number = 0.0,
) -> Stacked:
    r"""Run layers of recurrent cells, each on the outputs of the previous one.

    .. math::

        y^{(0)} = x, \qquad
        y^{(l)} = [\overrightarrow{r}^{(l)}(d^{(l)}) ; \overleftarrow{r}^{(l)}(d^{(l)})], \qquad
        d^{(1)} = x, \qquad
        d^{(l + 1)} = \frac{m^{(l)}}{1 - p} y^{(l)}

    with the cells r of the layer in both directions (a layer of one direction has only the first),
    and a mask m whose elements are 0 with probability p. This is what ``torch.nn.LSTM`` does with
    ``num_layers``, ``bidirectional`` and ``dropout``; dropout only between layers follows [1]_.

    Parameters
    ----------
    x : array_like (T, B, I) or (T, I)
        As for `lstm`; the outputs of each layer have its dtype.
    layers : sequence
        For each layer its parameters: an LSTMParameters, ProjectedLSTMParameters, GRUParameters or
        RNNParameters, or packed ones; for both directions a pair of them (forward, reverse), whose
        outputs are concatenated. The inputs of a layer are the outputs of the previous one.
    states : sequence, optional
        For each layer the states before the first step, in the structure of `Stacked`. None, also
        for a layer, a direction or a single state, means zeros. Default: None.
    dropout : float, default 0.0
        p: the probability that an element of a layer's output is zeroed before the next layer;
        the other elements are divided by 1 - p. Use 0 for inference. The output of the last layer
        has no dropout.
    recurrent_dropout : float, default 0.0
        As for the cells: one mask for all steps.
    rng : numpy.random.Generator, optional
        Draws the masks of dropout and zoneout; required if one of both dropouts is not 0.
    lengths : array_like of int (B,), optional
        The number of steps of each sequence, in any order. Default: T.
    batch_first : bool, default False
        Whether x and y are (B, T, ...).
    norm, variant, nonlinearity, reset_after, eps, zoneout
        As for the cells, and the same for every layer. `variant` is only for LSTM, `nonlinearity`
        only for RNN, `reset_after` only for GRU; None means the default of the cell. Zoneout masks
        are drawn if there is an `rng`.

    Returns
    -------
    Stacked
        ``(y, states)``, of the dtype of x.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape, structure or value.
        Errors of a cell name its layer, such as ``layers[1][0]``.

    Notes
    -----
    Without random masks, the result of a sequence is the same, bit for bit, whatever the other
    sequences of the batch. Stacks of layers with one direction can process a sequence in chunks,
    each with the states of the previous one, and give the same bytes as one call (except in half
    precision, where states are rounded between calls). A layer of both directions cannot, because
    its reverse direction begins with the last step. Arrays of a CUDA device are accepted as by
    `lstm`, with the same reservations.

    With random masks, an `rng` in the same state gives the same result, bit for bit, for the same
    arguments and version of NumPy. For each layer in order, ``rng.integers(2**63)`` seeds a
    ``default_rng``: with zoneout or `recurrent_dropout`, one for the cell of each direction, and
    then, with dropout, one for the dropout mask, except after the last layer. Dropout keeps the
    elements of the output (T, B, H), whatever `batch_first`, where ``random((T, B, H))`` is at
    least p. So the masks of a sequence depend on the number of sequences and on its index among
    them, but not on the padding T or on `lengths`; chunks have other masks than the whole. All
    masks are drawn on the host, also for arrays of a device. A call that raises an error leaves
    `rng` unchanged.

    References
    ----------
    .. [1] W. Zaremba, I. Sutskever, O. Vinyals, "Recurrent Neural Network Regularization", 2014.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> both = rnn.lstm_init(3, 2, rng=rng), rnn.lstm_init(3, 2, rng=rng)
    >>> layers = [both, rnn.lstm_init(4, 5, rng=rng)]
    >>> x = rng.normal(size=(7, 2, 3))
    >>> y, states = rnn.stacked(x, layers, lengths=[7, 4], dropout=0.5, rng=rng)
    >>> y.shape, len(states)
    ((7, 2, 5), 2)
    >>> (h, c), (h_reverse, c_reverse) = states[0]
    >>> h_reverse.shape
    (2, 2)
    """
    options = _options(norm, variant, nonlinearity, reset_after, eps, zoneout, recurrent_dropout)
    y, last, _ = _run(x, layers, states, dropout, rng, lengths, batch_first, options, False)
    return Stacked(y, last)


def stacked_forward(
    x: Any,
    layers: Sequence[Any],
    states: Sequence[Any] | None = None,
    *,
    dropout: Number = 0.0,
    recurrent_dropout: Number = 0.0,
    rng: np.random.Generator | None = None,
    lengths: Any = None,
    batch_first: bool = False,
    norm: LSTMNorm | None = "layer",
    variant: LSTMVariant | None = None,
    nonlinearity: str | None = None,
    reset_after: bool | None = None,
    eps: Number = 1e-5,
    zoneout: Number = 0.0,
) -> StackedForward:
    """Return the result of `stacked` together with what its backward pass needs.

    Parameters
    ----------
    x, layers, states, dropout, recurrent_dropout, rng, lengths, batch_first
        As for `stacked`.
    norm, variant, nonlinearity, reset_after, eps, zoneout
        As for `stacked`.

    Returns
    -------
    StackedForward
        ``(y, states, saved)``.

    Raises
    ------
    TypeError, ValueError
        As for `stacked`.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> layers = [rnn.lstm_init(3, 2, rng=rng), rnn.lstm_init(2, 2, rng=rng)]
    >>> y, states, saved = rnn.stacked_forward(rng.normal(size=(5, 4, 3)), layers)
    >>> y.shape
    (5, 4, 2)
    """
    options = _options(norm, variant, nonlinearity, reset_after, eps, zoneout, recurrent_dropout)
    return StackedForward(
        *_run(x, layers, states, dropout, rng, lengths, batch_first, options, True)
    )


def stacked_backward(dy: Any, saved: Any, dstates: Sequence[Any] | None = None) -> StackedGradients:
    """Return the gradients of `stacked`, back through all layers, with the same masks.

    Parameters
    ----------
    dy : array_like or None
        The gradient of the loss with respect to y, of the shape of y. Elements beyond a
        sequence's length are ignored. None stands for 0, for a loss of the last states alone.
    saved : object
        As `stacked_forward` returned it.
    dstates : sequence, optional
        Gradients with respect to the last states, which add to that through y, in the structure
        of the states; None means zeros. Default: None.

    Returns
    -------
    StackedGradients
        ``(dx, states, layers)``, of the dtypes of x and of the parameters.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or structure.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> layers = [rnn.lstm_init(3, 2, rng=rng), rnn.lstm_init(2, 2, rng=rng)]
    >>> y, states, saved = rnn.stacked_forward(
    ...     rng.normal(size=(5, 4, 3)), layers, dropout=0.5, rng=rng
    ... )
    >>> gradients = rnn.stacked_backward(np.ones_like(y), saved)
    >>> gradients.dx.shape, gradients.layers[1].weight_x.shape
    ((5, 4, 3), (8, 2))
    """
    if not isinstance(saved, _Saved):
        raise TypeError(
            f"saved must be what stacked_forward returned, got an object of type "
            f"{type(saved).__name__}"
        )
    backend = saved.backend
    grad = None
    if dy is not None:
        dy = backend.as_like("dy", dy, saved.x)
        check_shape("dy", dy.shape, saved.shape, "that of y")
        grad = backend.to_time_major(dy, saved.batch_first)
    given = _by_direction("dstates", dstates, saved.plan)
    states, layers = [], []
    for number in reversed(range(len(saved.plan))):
        if number < len(saved.masks):
            grad = backend.apply_mask(grad, saved.masks[number], gain(saved.dropout))
        widths = saved.widths[number]
        parts = [None] * len(widths) if grad is None else backend.split(grad, widths)
        gradients = []
        for direction, part, cell, last in zip(
            saved.plan[number], parts, saved.cells[number], given[number], strict=True
        ):
            with naming(direction.name):
                gradients.append(direction.cell.backward(part, cell, *last))
        grads = [of_direction[0] for of_direction in gradients]
        grad = grads[0] if len(grads) == 1 else backend.add(*grads)
        states.append(_as_given([tuple(of_direction[1:-1]) for of_direction in gradients]))
        layers.append(_as_given([of_direction[-1] for of_direction in gradients]))
    dx = backend.to_time_major(backend.as_float_array("dx", grad), saved.batch_first)
    return StackedGradients(dx, tuple(reversed(states)), tuple(reversed(layers)))


def _options(
    norm: Any,
    variant: Any,
    nonlinearity: Any,
    reset_after: Any,
    eps: Any,
    zoneout: Any,
    recurrent_dropout: Any,
) -> dict[str, Any]:
    """Return the options of the cells, without those of one kind of cell that are None."""
    if norm is not None and not isinstance(norm, str):
        raise TypeError(
            f"norm must be the name of a norm for all layers, got an object of type "
            f"{type(norm).__name__}"
        )
    options = {"norm": norm, "eps": check_eps(eps), "zoneout": zoneout}
    options["recurrent_dropout"] = recurrent_dropout
    some = {"variant": variant, "nonlinearity": nonlinearity, "reset_after": reset_after}
    return options | {name: value for name, value in some.items() if value is not None}


def _run(
    x: Any,
    layers: Any,
    states: Any,
    dropout: Any,
    rng: Any,
    lengths: Any,
    batch_first: Any,
    options: dict[str, Any],
    save: bool,
) -> tuple[Any, tuple[Any, ...], Any]:
    backend, x = backend_for(x, "x")
    if len(x.shape) not in (2, 3):
        raise ValueError(
            f"x must have 3 axes, of time, batch and inputs, or 2 without the batch, "
            f"got {len(x.shape)}"
        )
    batch_first = check_flag("batch_first", batch_first) and len(x.shape) == 3
    y = backend.to_time_major(x, batch_first)
    time, *batch = y.shape[:-1]
    lengths = None if lengths is None else check_lengths(lengths, time, *(batch or (1,)))
    options = options | {"lengths": lengths}
    plan = _planned(layers)
    given = _by_direction("states", states, plan)
    dropout = check_dropout("dropout", dropout, rng)
    recurrent = check_dropout("recurrent_dropout", options["recurrent_dropout"], rng)
    draws = (_any_zoneout(options["zoneout"]) or recurrent > 0) and rng is not None
    last, cells, widths, masks = [], [], [], []
    with _restored_on_error(rng):
        for number, (directions, first) in enumerate(zip(plan, given, strict=True)):
            results = [
                _run_direction(
                    direction, y, before, options | {"rng": _spawned(rng) if draws else None}, save
                )
                for direction, before in zip(directions, first, strict=True)
            ]
            parts = [part for part, _, _ in results]
            last.append(_as_given([of_direction for _, of_direction, _ in results]))
            cells.append(tuple(cell for _, _, cell in results))
            widths.append(tuple(part.shape[-1] for part in parts))
            y = parts[0] if len(parts) == 1 else backend.concatenate(parts)
            if dropout and number < len(plan) - 1:
                masks.append(backend.as_mask(_mask(rng, tuple(y.shape), dropout), y))
                y = backend.apply_mask(y, masks[-1], gain(dropout))
    y = backend.to_time_major(backend.as_float_array("y", y), batch_first)
    if not save:
        return y, tuple(last), None
    saved = _Saved(
        backend, x, plan, tuple(cells), tuple(widths), tuple(masks), dropout, batch_first,
        tuple(y.shape),
    )  # fmt: skip
    return y, tuple(last), saved


def _run_direction(
    direction: _Direction, x: Any, states: tuple[Any, ...], options: dict[str, Any], save: bool
) -> tuple[Any, tuple[Any, ...], Any]:
    """Return the outputs, the last states, and what the backward pass needs or None."""
    function = direction.cell.forward if save else direction.cell.call
    with naming(direction.name):
        y, *rest = function(x, direction.parameters, *states, reverse=direction.reverse, **options)
    return y, tuple(rest[:-1] if save else rest), rest[-1] if save else None


@contextlib.contextmanager
def _restored_on_error(rng: np.random.Generator | None) -> Iterator[None]:
    """Restore the state of the generator if the block raises an error."""
    # A layer checks its arguments when it runs, after the layers below it have drawn.
    if rng is None:
        yield
        return
    before = rng.bit_generator.state
    try:
        yield
    except Exception:
        rng.bit_generator.state = before
        raise


def _as_given(directions: list[Any]) -> Any:
    """Return the values of a layer in its structure: a pair for both directions, or the one."""
    return directions[0] if len(directions) == 1 else tuple(directions)


def _any_zoneout(zoneout: Any) -> bool:
    """Return whether a probability is not 0; the cells check the number of probabilities."""
    given = zoneout if isinstance(zoneout, tuple | list) else (zoneout,)
    probabilities = [check_number("zoneout", value, least=0.0, most=1.0) for value in given]
    return any(probabilities)


def _mask(rng: np.random.Generator, shape: tuple[int, ...], dropout: float) -> Array:
    """Return the dropout mask of an output: True where it keeps an element."""
    mask: Array = _spawned(rng).random(shape) >= dropout
    return mask


def _spawned(rng: np.random.Generator) -> np.random.Generator:
    """Return a generator for one use, so that the number of steps does not affect other draws."""
    return np.random.default_rng(rng.integers(2**63))


def _planned(layers: Any) -> _Plan:
    """Return the directions of each layer."""
    if not isinstance(layers, list | tuple) or _cell_of(layers):
        raise TypeError(
            f"layers must be a list or tuple with the parameters of each layer, got an object of "
            f"type {type(layers).__name__}"
        )
    if not layers:
        raise ValueError("layers must have at least 1 element, got none")
    return tuple(_directions(f"layers[{n}]", layer) for n, layer in enumerate(layers))


def _directions(name: str, layer: Any) -> tuple[_Direction, ...]:
    cell = _cell_of(layer)
    if cell:
        return (_Direction(name, cell, layer, False),)
    expected = f"{', '.join(kind.__name__ for kind in _CELLS)} or Packed"
    if not isinstance(layer, list | tuple):
        raise TypeError(
            f"{name} must be one of {expected}, or a pair of them, got an object of type "
            f"{type(layer).__name__}"
        )
    if len(layer) != 2:
        raise ValueError(
            f"{name} must be one of {expected}, or a pair of them, got {len(layer)} elements"
        )
    directions = []
    for n, parameters in enumerate(layer):
        cell = _cell_of(parameters)
        if not cell:
            raise TypeError(
                f"{name}[{n}] must be one of {expected}, got an object of type "
                f"{type(parameters).__name__}"
            )
        directions.append(_Direction(f"{name}[{n}]", cell, parameters, n == 1))
    return tuple(directions)


def _by_direction(name: str, states: Any, plan: _Plan) -> tuple[tuple[Any, ...], ...]:
    """Return the states of each direction of each layer, as the arguments of its call."""
    result = []
    of_layers = _elements(name, states, len(plan), "one for each layer")
    for n, (directions, value) in enumerate(zip(plan, of_layers, strict=True)):
        path = f"{name}[{n}]"
        named = [(path, value)]
        if len(directions) == 2:
            both = _elements(path, value, 2, "one for each direction")
            named = [(f"{path}[{k}]", of_direction) for k, of_direction in enumerate(both)]
        of_directions = []
        for direction, (where, of_direction) in zip(directions, named, strict=True):
            names = direction.cell.kind.states
            of_directions.append(_elements(where, of_direction, len(names), " and ".join(names)))
        result.append(tuple(of_directions))
    return tuple(result)


def _elements(name: str, value: Any, count: int, meaning: str) -> tuple[Any, ...]:
    """Return the elements of a tuple or list; `count` times None for None."""
    if value is None:
        return (None,) * count
    expected = f"{name} must be None or a tuple with {count} elements, {meaning}"
    if not isinstance(value, list | tuple):
        raise TypeError(f"{expected}, got an object of type {type(value).__name__}")
    if len(value) != count:
        raise ValueError(f"{expected}, got {len(value)}")
    return tuple(value)


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Prefix the errors of a cell with the name of its layer and direction."""
    try:
        yield
    except (TypeError, ValueError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}: {error}") from error
