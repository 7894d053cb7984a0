"""The recurrent cells as their callers take them: the kind of each, and its public functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.rnn.elman import (
    rnn,
    rnn_backward,
    rnn_cell,
    rnn_cell_backward,
    rnn_cell_forward,
    rnn_forward,
    rnn_init,
    rnn_pack,
)
from numnorm.rnn.gru import (
    gru,
    gru_backward,
    gru_cell,
    gru_cell_backward,
    gru_cell_forward,
    gru_forward,
    gru_init,
    gru_pack,
)
from numnorm.rnn.lstm import (
    lstm,
    lstm_backward,
    lstm_cell,
    lstm_cell_backward,
    lstm_cell_forward,
    lstm_forward,
    lstm_init,
    lstm_pack,
)
from numnorm.rnn.parameters import GRU, LSTM, RNN, Kind


class Cell(NamedTuple):
    """A kind of recurrent cell and its public functions.

    Attributes
    ----------
    kind : Kind
    call, forward, backward : callable
        Over sequences: `lstm`, `lstm_forward` and `lstm_backward` of an LSTM.
    step, step_forward, step_backward : callable
        Of one step: `lstm_cell`, `lstm_cell_forward` and `lstm_cell_backward`.
    pack, init : callable
        Of parameters: `lstm_pack` and `lstm_init`.
    """

    kind: Kind
    call: Callable[..., Any]
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    step: Callable[..., Any]
    step_forward: Callable[..., Any]
    step_backward: Callable[..., Any]
    pack: Callable[..., Any]
    init: Callable[..., Any]


CELLS = {
    "lstm": Cell(
        LSTM,
        call=lstm,
        forward=lstm_forward,
        backward=lstm_backward,
        step=lstm_cell,
        step_forward=lstm_cell_forward,
        step_backward=lstm_cell_backward,
        pack=lstm_pack,
        init=lstm_init,
    ),
    "gru": Cell(
        GRU,
        call=gru,
        forward=gru_forward,
        backward=gru_backward,
        step=gru_cell,
        step_forward=gru_cell_forward,
        step_backward=gru_cell_backward,
        pack=gru_pack,
        init=gru_init,
    ),
    "rnn": Cell(
        RNN,
        call=rnn,
        forward=rnn_forward,
        backward=rnn_backward,
        step=rnn_cell,
        step_forward=rnn_cell_forward,
        step_backward=rnn_cell_backward,
        pack=rnn_pack,
        init=rnn_init,
    ),
}
