"""The recurrent cells over sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from autograd.tracer import getval, isbox

from numnorm import rnn as cells
from numnorm.array_types import CellNorm, LSTMNorm, LSTMVariant, Nonlinearity, Number
from numnorm.autograd.primitives import Differentiable
from numnorm.rnn.parameters import GRU, LSTM, RNN, Kind, kind_of, named


def _cell(
    kind: Kind, forward: Callable[..., Any], backward: Callable[..., Any]
) -> Callable[..., tuple[Any, ...]]:
    """Return a cell as a function of x, the tuple of its parameters, and its first states."""
    count = len(kind.states)

    def result(x: Any, *arrays: Any, make: Any, **options: Any) -> tuple[tuple[Any, ...], Any]:
        states, values = arrays[:count], arrays[count:]
        *outputs, saved = forward(x, make(*values), *states, **options)
        return tuple(outputs), saved

    def gradients(dys: Any, saved: Any, *_: Any, **options: Any) -> tuple[Any, ...]:
        dy, *dstates = dys
        dx, *dfirst, dparameters = backward(dy, saved, *dstates)
        return dx, *dfirst, *dparameters

    result.__name__ = kind.name
    differentiable = Differentiable(result, gradients)

    def run(x: Any, parameters: Any, *states: Any, **options: Any) -> tuple[Any, ...]:
        if isbox(parameters) and isinstance(getval(parameters), tuple | list):
            parameters = tuple(parameters)
        own = kind_of(kind, parameters)
        values = named(own, parameters)
        outputs = differentiable(x, *states, *values, make=own.parameters, **options)
        return tuple(outputs[i] for i in range(count + 1))

    return run


_LSTM = _cell(LSTM, cells.lstm_forward, cells.lstm_backward)
_GRU = _cell(GRU, cells.gru_forward, cells.gru_backward)
_RNN = _cell(RNN, cells.rnn_forward, cells.rnn_backward)


def lstm(
    x: Any,
    parameters: Any,
    h: Any = None,
    c: Any = None,
    *,
    norm: LSTMNorm | cells.RecurrentBatchNorm | None = "layer",
    variant: LSTMVariant = "paper",
    eps: Number = 1e-5,
    lengths: Any = None,
    batch_first: bool = False,
    reverse: bool = False,
    dropout: Number = 0.0,
    recurrent_dropout: Number = 0.0,
    zoneout: Number | tuple[Number, Number] = 0.0,
    rng: np.random.Generator | None = None,
) -> cells.LSTMStates:
    """Return `numnorm.rnn.lstm`, with gradients with respect to x, parameters, h and c.

    Parameters
    ----------
    x : array (T, B, I) or (T, I)
        As for `numnorm.rnn.lstm`.
    parameters : LSTMParameters, ProjectedLSTMParameters or tuple
        Not packed. Autograd differentiates with respect to a tuple or a dictionary of arrays:
        make an `LSTMParameters` of it in the function.
    h, c, norm, variant, eps, lengths, batch_first, reverse
        As for `numnorm.rnn.lstm`.
    dropout, recurrent_dropout, zoneout, rng
        As for `numnorm.rnn.lstm`.

    Returns
    -------
    LSTMStates
        ``(y, h, c)``.

    Notes
    -----
    With ``norm="ada"`` the norm's factor is a constant for the gradient, as in `ada_norm`.

    Examples
    --------
    >>> import autograd
    >>> import numpy as np
    >>> import numnorm.autograd
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(5, 4, 3))
    >>> def loss(weights):
    ...     y, h, c = numnorm.autograd.lstm(x, rnn.LSTMParameters(**weights))
    ...     return (y**2).sum()
    >>> gradients = autograd.grad(loss)(rnn.lstm_init(3, 2, rng=rng)._asdict())
    >>> gradients["weight_x"].shape
    (8, 3)
    """
    outputs = _LSTM(
        x,
        parameters,
        h,
        c,
        norm=norm,
        variant=variant,
        eps=eps,
        lengths=lengths,
        batch_first=batch_first,
        reverse=reverse,
        dropout=dropout,
        recurrent_dropout=recurrent_dropout,
        zoneout=zoneout,
        rng=rng,
    )
    return cells.LSTMStates(*outputs)


def gru(
    x: Any,
    parameters: Any,
    h: Any = None,
    *,
    norm: CellNorm | None = "layer",
    reset_after: bool = True,
    eps: Number = 1e-5,
    lengths: Any = None,
    batch_first: bool = False,
    reverse: bool = False,
    dropout: Number = 0.0,
    recurrent_dropout: Number = 0.0,
    zoneout: Number = 0.0,
    rng: np.random.Generator | None = None,
) -> cells.GRUStates:
    """Return `numnorm.rnn.gru`, with gradients with respect to x, parameters and h.

    Parameters
    ----------
    x : array (T, B, I) or (T, I)
        As for `numnorm.rnn.gru`.
    parameters : GRUParameters or tuple
        As for `lstm`.
    h, norm, reset_after, eps, lengths, batch_first, reverse
        As for `numnorm.rnn.gru`.
    dropout, recurrent_dropout, zoneout, rng
        As for `numnorm.rnn.gru`.

    Returns
    -------
    GRUStates
        ``(y, h)``.

    Examples
    --------
    >>> import autograd
    >>> import numpy as np
    >>> import numnorm.autograd
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> parameters = rnn.gru_init(3, 2, rng=rng)
    >>> def loss(x):
    ...     return numnorm.autograd.gru(x, parameters).h.sum()
    >>> autograd.grad(loss)(rng.normal(size=(5, 4, 3))).shape
    (5, 4, 3)
    """
    outputs = _GRU(
        x,
        parameters,
        h,
        norm=norm,
        reset_after=reset_after,
        eps=eps,
        lengths=lengths,
        batch_first=batch_first,
        reverse=reverse,
        dropout=dropout,
        recurrent_dropout=recurrent_dropout,
        zoneout=zoneout,
        rng=rng,
    )
    return cells.GRUStates(*outputs)


def rnn(
    x: Any,
    parameters: Any,
    h: Any = None,
    *,
    norm: CellNorm | None = "layer",
    nonlinearity: Nonlinearity = "tanh",
    eps: Number = 1e-5,
    lengths: Any = None,
    batch_first: bool = False,
    reverse: bool = False,
    dropout: Number = 0.0,
    recurrent_dropout: Number = 0.0,
    zoneout: Number = 0.0,
    rng: np.random.Generator | None = None,
) -> cells.RNNStates:
    """Return `numnorm.rnn.rnn`, with gradients with respect to x, parameters and h.

    Parameters
    ----------
    x : array (T, B, I) or (T, I)
        As for `numnorm.rnn.rnn`.
    parameters : RNNParameters or tuple
        As for `lstm`.
    h, norm, nonlinearity, eps, lengths, batch_first, reverse
        As for `numnorm.rnn.rnn`.
    dropout, recurrent_dropout, zoneout, rng
        As for `numnorm.rnn.rnn`.

    Returns
    -------
    RNNStates
        ``(y, h)``.

    Examples
    --------
    >>> import autograd
    >>> import numpy as np
    >>> import numnorm.autograd
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> parameters = rnn.rnn_init(3, 2, rng=rng)
    >>> def loss(x):
    ...     return numnorm.autograd.rnn(x, parameters).h.sum()
    >>> autograd.grad(loss)(rng.normal(size=(5, 4, 3))).shape
    (5, 4, 3)
    """
    outputs = _RNN(
        x,
        parameters,
        h,
        norm=norm,
        nonlinearity=nonlinearity,
        eps=eps,
        lengths=lengths,
        batch_first=batch_first,
        reverse=reverse,
        dropout=dropout,
        recurrent_dropout=recurrent_dropout,
        zoneout=zoneout,
        rng=rng,
    )
    return cells.RNNStates(*outputs)
