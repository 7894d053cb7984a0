"""Recurrent cells in several layers and both directions, with dropout between the layers.

A layer is called as it would be alone: here stand only the order of the calls, what goes from
one to the next, and the structure of states and gradients, which is that of the layers.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import check_eps, check_flag, check_number, check_shape
from numnorm.backends import backend_for
from numnorm.rnn.results import Stacked, StackedForward, StackedGradients
from numnorm.rnn.sequences import check_lengths
from numnorm.rnn.stacked_plan import Direction, Plan, by_direction, naming, planned

Array = np.ndarray[Any, Any]


class _Saved(NamedTuple):
    backend: Any
    x: Any
    plan: Plan
    kept: tuple[tuple[Any, ...], ...]
    widths: tuple[tuple[int, ...], ...]
    masks: tuple[Any, ...]
    dropout: float
    batch_first: bool
    shape: tuple[int, ...]


def stacked(
    x: Any,
    layers: Sequence[Any],
    states: Sequence[Any] | None = None,
    *,
    dropout: float = 0.0,
    rng: np.random.Generator | None = None,
    lengths: Any = None,
    batch_first: bool = False,
    norm: str | None = "layer",
    variant: str | None = None,
    nonlinearity: str | None = None,
    eps: float = 1e-5,
    zoneout: float = 0.0,
) -> Stacked:
    r"""Run layers of recurrent cells, each on the outputs of the one before.

    .. math::

        y^{(0)} = x, \qquad
        y^{(l)} = [\overrightarrow{r}^{(l)}(d^{(l)}) ; \overleftarrow{r}^{(l)}(d^{(l)})], \qquad
        d^{(1)} = x, \qquad
        d^{(l + 1)} = \frac{m^{(l)}}{1 - p} y^{(l)}

    with r the layer's cell in one direction and in the other (a layer of one direction has the
    first alone), and m a mask whose elements are 0 with the probability p. This is what
    ``torch.nn.LSTM`` does with ``num_layers``, ``bidirectional`` and ``dropout``; dropout
    between the layers alone is that of [1]_.

    Parameters
    ----------
    x : array_like (T, B, I)
        As for `lstm`; the outputs of each layer have its dtype.
    layers : sequence
        For each layer its parameters: an LSTMParameters, GRUParameters or RNNParameters, or
        packed ones; for both directions a pair of them, whose outputs are put side by side, those
        of the first to last step first. A layer's inputs are the outputs of the one before.
    states : sequence, optional
        For each layer the states before the first step, as `Stacked` has them; None stands for
        zeros, for a layer, a direction or a single state. Default: None.
    dropout : float, default 0.0
        p: with this probability an element of a layer's output is zeroed before it enters the
        next layer, and what is kept is divided by 1 - p. 0 when the network is used, and in
        the last layer's output always.
    rng : numpy.random.Generator, optional
        Where the masks come from, and what zoneout keeps; needed if `dropout` is not 0.
    lengths : array_like of int (B,), optional
        How many steps each sequence has, in any order. Default: T.
    batch_first : bool, default False
        Whether x and y are (B, T, ...).
    norm, variant, nonlinearity, eps, zoneout
        As for the cells, and the same for every layer; the second is for LSTM and the third for
        RNN alone, and None stands for their own defaults. What zoneout keeps is drawn if there
        is an `rng`.

    Returns
    -------
    Stacked
        ``(y, states)``, of the dtype of x.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape, structure or value.
        What a cell does not accept is told with the layer's place, such as ``layers[1][0]``.

    Notes
    -----
    Where nothing is drawn, a sequence's result is the same, bit for bit, whatever is in the batch
    beside it. And the states of layers with one direction may be passed in again for the next
    steps: chunk by chunk gives the same bytes as the whole (in half precision, whose states are
    rounded between calls, others). A layer of both directions cannot run in this way, as its
    second direction begins with the last step. Arrays of a CUDA device are taken as `lstm` takes
    them: there the last bits are as its products are.

    Where something is drawn, the same `rng`, in the same state, gives the same result, bit for
    bit, for the same arguments and version of NumPy. From it ``rng.integers(2**63)`` is drawn as
    the seed of a ``default_rng``, for each layer in order: with zoneout once for each direction,
    whose cell gets that generator, and then with dropout once, but for the last layer. What
    dropout keeps of the output (T, B, H), whatever `batch_first`, is where ``random((T, B, H))``
    is at least p. So what is drawn for a sequence depends on the number of sequences and on its
    place among them, but neither on the padding T nor on `lengths`; and in chunks it is other
    than in the whole. All of it is drawn on the host, and copied over for arrays of a device. A
    call that is refused draws nothing.

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
    options = _options(norm, variant, nonlinearity, eps, zoneout)
    y, last, _ = _run(x, layers, states, dropout, rng, lengths, batch_first, options, False)
    return Stacked(y, last)


def stacked_forward(
    x: Any,
    layers: Sequence[Any],
    states: Sequence[Any] | None = None,
    *,
    dropout: float = 0.0,
    rng: np.random.Generator | None = None,
    lengths: Any = None,
    batch_first: bool = False,
    norm: str | None = "layer",
    variant: str | None = None,
    nonlinearity: str | None = None,
    eps: float = 1e-5,
    zoneout: float = 0.0,
) -> StackedForward:
    """Return what `stacked` does together with what its backward pass needs.

    Parameters
    ----------
    x, layers, states, dropout, rng, lengths, batch_first, norm, variant, nonlinearity, eps, zoneout
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
    options = _options(norm, variant, nonlinearity, eps, zoneout)
    return StackedForward(
        *_run(x, layers, states, dropout, rng, lengths, batch_first, options, True)
    )


def stacked_backward(dy: Any, saved: Any, dstates: Sequence[Any] | None = None) -> StackedGradients:
    """Return the gradients of `stacked`, back through all layers, with the masks of that pass.

    Parameters
    ----------
    dy : array_like
        The gradient of the loss with respect to y, of its shape. What lies beyond a sequence's
        length is not looked at.
    saved : object
        As `stacked_forward` returned it.
    dstates : sequence, optional
        Those with respect to the last states, beside that through y, in the structure of the
        states; None stands for zeros. Default: None.

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
    grad = backend.as_like("dy", dy, saved.x)
    check_shape("dy", grad.shape, saved.shape, "that of y")
    grad = backend.to_time_major(grad, saved.batch_first)
    given = by_direction("dstates", dstates, saved.plan)
    states, layers = [], []
    for number in reversed(range(len(saved.plan))):
        if number < len(saved.masks):
            grad = backend.apply_mask(grad, saved.masks[number], _gain(saved.dropout))
        parts = backend.split(grad, saved.widths[number])
        found = []
        for direction, part, kept, last in zip(
            saved.plan[number], parts, saved.kept[number], given[number], strict=True
        ):
            with naming(direction.name):
                found.append(direction.kind.backward(part, kept, *last))
        grad = found[0][0] if len(found) == 1 else backend.add(found[0][0], found[1][0])
        states.append(_as_given([tuple(gradients[1:-1]) for gradients in found]))
        layers.append(_as_given([gradients[-1] for gradients in found]))
    dx = backend.to_time_major(backend.as_float_array("dx", grad), saved.batch_first)
    return StackedGradients(dx, tuple(reversed(states)), tuple(reversed(layers)))


def _options(norm: Any, variant: Any, nonlinearity: Any, eps: Any, zoneout: Any) -> dict[str, Any]:
    """Return the options for each cell: those that only some cells have, if they are given."""
    if norm is not None and not isinstance(norm, str):
        raise TypeError(
            f"norm must be the name of a norm for all layers, got an object of type "
            f"{type(norm).__name__}"
        )
    options = {"norm": norm, "eps": check_eps(eps), "zoneout": zoneout}
    some = {"variant": variant, "nonlinearity": nonlinearity}
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
    if len(x.shape) != 3:
        raise ValueError(f"x must have 3 axes, of time, batch and inputs, got {len(x.shape)}")
    batch_first = check_flag("batch_first", batch_first)
    y = backend.to_time_major(x, batch_first)
    lengths = None if lengths is None else check_lengths(lengths, *y.shape[:2])
    options = options | {"lengths": lengths}
    plan = planned(layers)
    given = by_direction("states", states, plan)
    dropout = _check_dropout(dropout, rng)
    zoned = _any_zoneout(options["zoneout"]) and rng is not None
    last, kept, widths, masks = [], [], [], []
    with _given_back(rng):
        for number, (directions, first) in enumerate(zip(plan, given, strict=True)):
            found = [
                _run_direction(
                    direction, y, before, options | {"rng": _own(rng) if zoned else None}, save
                )
                for direction, before in zip(directions, first, strict=True)
            ]
            last.append(_as_given([of_direction for _, of_direction, _ in found]))
            kept.append(tuple(saved for _, _, saved in found))
            widths.append(tuple(part.shape[-1] for part, _, _ in found))
            y = found[0][0] if len(found) == 1 else backend.concatenate([f[0] for f in found])
            if dropout and number < len(plan) - 1:
                masks.append(backend.as_mask(_mask(rng, tuple(y.shape), dropout), y))
                y = backend.apply_mask(y, masks[-1], _gain(dropout))
    y = backend.to_time_major(backend.as_float_array("y", y), batch_first)
    if not save:
        return y, tuple(last), None
    saved = _Saved(
        backend, x, plan, tuple(kept), tuple(widths), tuple(masks), dropout, batch_first,
        tuple(y.shape),
    )  # fmt: skip
    return y, tuple(last), saved


def _run_direction(
    direction: Direction, x: Any, states: tuple[Any, ...], options: dict[str, Any], save: bool
) -> tuple[Any, tuple[Any, ...], Any]:
    """Return the outputs, the last states, and what is saved, if it is."""
    function = direction.kind.forward if save else direction.kind.call
    with naming(direction.name):
        y, *rest = function(x, direction.parameters, *states, reverse=direction.reverse, **options)
    return y, tuple(rest[:-1] if save else rest), rest[-1] if save else None


@contextlib.contextmanager
def _given_back(rng: np.random.Generator | None) -> Iterator[None]:
    """Have a call that is refused leave the generator as it was."""
    # A layer checks its arguments when it runs: those below it have drawn by then.
    if rng is None:
        yield
        return
    before = rng.bit_generator.state
    try:
        yield
    except Exception:
        rng.bit_generator.state = before
        raise


def _as_given(found: list[Any]) -> Any:
    """Return what belongs to a layer: a pair for both directions."""
    return found[0] if len(found) == 1 else tuple(found)


def _check_dropout(dropout: Any, rng: Any) -> float:
    probability = check_number("dropout", dropout)
    if not 0.0 <= probability < 1.0:
        raise ValueError(f"dropout must be at least 0 and less than 1, got {probability:g}")
    if rng is None and probability:
        raise TypeError("rng must be a numpy.random.Generator if dropout is not 0, got None")
    if rng is not None and not isinstance(rng, np.random.Generator):
        raise TypeError(
            f"rng must be a numpy.random.Generator, got an object of type {type(rng).__name__}"
        )
    return probability


def _any_zoneout(zoneout: Any) -> bool:
    """Return whether anything is kept; the cells check for how many states there are numbers."""
    given = zoneout if isinstance(zoneout, tuple | list) else (zoneout,)
    shares = [check_number("zoneout", share, least=0.0, most=1.0) for share in given]
    return any(shares)


def _mask(rng: np.random.Generator, shape: tuple[int, ...], dropout: float) -> Array:
    """Return where an output is kept."""
    kept: Array = _own(rng).random(shape) >= dropout
    return kept


def _own(rng: np.random.Generator) -> np.random.Generator:
    """Return a generator for one use, so that more steps change nothing that others draw."""
    return np.random.default_rng(rng.integers(2**63))


def _gain(dropout: float) -> float:
    """Return what dropout multiplies with what it keeps."""
    return 1.0 / (1.0 - dropout)
