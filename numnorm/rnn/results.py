"""What the functions of recurrent cells return."""

from typing import Any, NamedTuple

from numnorm.rnn.parameters import GRUParameters, LSTMParameters, RNNParameters


class LSTMStates(NamedTuple):
    """What an LSTM returns.

    Attributes
    ----------
    y : array (T, B, H)
        The state after each step; 0 beyond a sequence's length. (B, T, H) if `batch_first`.
    h, c : array (B, H)
        The state and the cell after each sequence's last step.
    """

    y: Any
    h: Any
    c: Any


class LSTMForward(NamedTuple):
    """What the forward pass returns: an LSTM's states, and what the backward pass needs.

    Attributes
    ----------
    y, h, c : array
        As in `LSTMStates`; y is read-only, as it belongs to `saved`. An array of a device can be
        written none the less: it must not be before the backward pass.
    saved : object
        For `lstm_backward`. For each step of each sequence it holds 10 H numbers of the working
        precision (6 H where no norm is taken of each product; H more if the normalized cell is
        carried or with zoneout, and then 2 H more of what is kept), and the statistics of each
        norm. It refers to x and the parameters, which must not be changed before the backward
        pass.
    """

    y: Any
    h: Any
    c: Any
    saved: Any


class LSTMGradients(NamedTuple):
    """The gradients of an LSTM.

    Attributes
    ----------
    dx : array
        Of the shape of x.
    dh, dc : array (B, H)
        Of the first state and cell.
    parameters : LSTMParameters
        Of the parameters that there are.
    """

    dx: Any
    dh: Any
    dc: Any
    parameters: LSTMParameters


class LSTMState(NamedTuple):
    """The state and the cell of an LSTM after one step.

    Attributes
    ----------
    h, c : array (B, H)
    """

    h: Any
    c: Any


class LSTMCellForward(NamedTuple):
    """What the forward pass of one step returns.

    Attributes
    ----------
    h, c : array (B, H)
        As in `LSTMState`.
    saved : object
        For `lstm_cell_backward`. It refers to x and the parameters, which must not be changed
        before the backward pass.
    """

    h: Any
    c: Any
    saved: Any


class GRUStates(NamedTuple):
    """What a gated recurrent unit returns.

    Attributes
    ----------
    y : array (T, B, H)
        The state after each step; 0 beyond a sequence's length. (B, T, H) if `batch_first`.
    h : array (B, H)
        The state after each sequence's last step.
    """

    y: Any
    h: Any


class GRUForward(NamedTuple):
    """What the forward pass returns: the states, and what the backward pass needs.

    Attributes
    ----------
    y, h : array
        As in `GRUStates`; y is read-only, as it belongs to `saved`. An array of a device can be
        written none the less: it must not be before the backward pass.
    saved : object
        For `gru_backward`. For each step of each sequence it holds 7 H numbers of the
        working precision, H more with zoneout, and the statistics of each norm. It refers to x
        and the parameters, which must not be changed before the backward pass.
    """

    y: Any
    h: Any
    saved: Any


class GRUGradients(NamedTuple):
    """The gradients of a gated recurrent unit.

    Attributes
    ----------
    dx : array
        Of the shape of x.
    dh : array (B, H)
        Of the first state.
    parameters : GRUParameters
        Of the parameters that there are.
    """

    dx: Any
    dh: Any
    parameters: GRUParameters


class GRUCellForward(NamedTuple):
    """What the forward pass of one step returns.

    Attributes
    ----------
    h : array (B, H)
        The new state.
    saved : object
        For `gru_cell_backward`. It refers to x and the parameters, which must not be changed
        before the backward pass.
    """

    h: Any
    saved: Any


class RNNStates(NamedTuple):
    """What a plain recurrent network returns.

    Attributes
    ----------
    y : array (T, B, H)
        The state after each step; 0 beyond a sequence's length. (B, T, H) if `batch_first`.
    h : array (B, H)
        The state after each sequence's last step.
    """

    y: Any
    h: Any


class RNNForward(NamedTuple):
    """What the forward pass returns: the states, and what the backward pass needs.

    Attributes
    ----------
    y, h : array
        As in `RNNStates`; y is read-only, as it belongs to `saved`. An array of a device can be
        written none the less: it must not be before the backward pass.
    saved : object
        For `rnn_backward`. For each step of each sequence it holds 2 H numbers of the
        working precision, H more with zoneout, and the statistics of the norm. It refers to x
        and the parameters, which must not be changed before the backward pass.
    """

    y: Any
    h: Any
    saved: Any


class RNNGradients(NamedTuple):
    """The gradients of a plain recurrent network.

    Attributes
    ----------
    dx : array
        Of the shape of x.
    dh : array (B, H)
        Of the first state.
    parameters : RNNParameters
        Of the parameters that there are.
    """

    dx: Any
    dh: Any
    parameters: RNNParameters


class RNNCellForward(NamedTuple):
    """What the forward pass of one step returns.

    Attributes
    ----------
    h : array (B, H)
        The new state.
    saved : object
        For `rnn_cell_backward`. It refers to x and the parameters, which must not be changed
        before the backward pass.
    """

    h: Any
    saved: Any


class Stacked(NamedTuple):
    """What a stack of layers returns.

    Attributes
    ----------
    y : array (T, B, H)
        The last layer's states after each step, with H the sum over its directions; 0 beyond a
        sequence's length. (B, T, H) if `batch_first`.
    states : tuple
        For each layer its last states as a tuple, ``(h, c)`` of an LSTM; for both directions a
        pair of these.
    """

    y: Any
    states: tuple[Any, ...]


class StackedForward(NamedTuple):
    """What the forward pass returns: the states, and what the backward pass needs.

    Attributes
    ----------
    y : array
    states : tuple
        As in `Stacked`.
    saved : object
        For `stacked_backward`. It holds what each layer saves, and a byte for each element that
        dropout might have zeroed. It refers to x and the layers' parameters, which must not be
        changed before the backward pass.
    """

    y: Any
    states: tuple[Any, ...]
    saved: Any


class StackedGradients(NamedTuple):
    """The gradients of a stack of layers.

    Attributes
    ----------
    dx : array
        Of the shape of x.
    states : tuple
        Of the first states, in the structure of `Stacked`.
    layers : tuple
        Of the parameters, in the structure of the layers.
    """

    dx: Any
    states: tuple[Any, ...]
    layers: tuple[Any, ...]
