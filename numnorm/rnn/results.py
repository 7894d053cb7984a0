"""The named tuples that the functions of recurrent cells return."""

from typing import Any, NamedTuple

from numnorm.rnn.parameters import GRUParameters, RNNParameters


class LSTMStates(NamedTuple):
    """The states of an LSTM over sequences.

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
    """The states of an LSTM over sequences, and what its backward pass needs.

    Attributes
    ----------
    y, h, c : array
        As in `LSTMStates`; y is read-only, because `saved` refers to it. Arrays of other
        libraries have no such flag: do not write to y before the backward pass.
    saved : object
        For `lstm_backward`. For each step of each sequence it holds 10 H numbers in the compute
        dtype (6 H without a norm of each product; H more with variant "normalized_cell" or
        zoneout; 2 H more of zoneout masks; H more with `recurrent_dropout` or projections), and the
        statistics of each norm. It refers to x and
        the parameters: do not change them before the backward pass.
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
        The gradients with respect to the first state and cell.
    parameters : LSTMParameters or ProjectedLSTMParameters
        The gradients of the given parameters; None for the others.
    """

    dx: Any
    dh: Any
    dc: Any
    parameters: Any


class LSTMState(NamedTuple):
    """The state and the cell of an LSTM after one step.

    Attributes
    ----------
    h, c : array (B, H)
    """

    h: Any
    c: Any


class LSTMCellForward(NamedTuple):
    """The state and the cell of an LSTM after one step, and what its backward pass needs.

    Attributes
    ----------
    h, c : array (B, H)
        As in `LSTMState`.
    saved : object
        For `lstm_cell_backward`. It refers to x and the parameters: do not change them before
        the backward pass.
    """

    h: Any
    c: Any
    saved: Any


class GRUStates(NamedTuple):
    """The states of a gated recurrent unit over sequences.

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
    """The states, and what the backward pass needs.

    Attributes
    ----------
    y, h : array
        As in `GRUStates`; y is read-only, because `saved` refers to it. Arrays of other
        libraries have no such flag: do not write to y before the backward pass.
    saved : object
        For `gru_backward`. For each step of each sequence it holds 7 H numbers in the compute
        dtype, H more with each of zoneout, `recurrent_dropout` and ``reset_after=False``, and the
        statistics of each norm. It refers to x and the
        parameters: do not change them before the backward pass.
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
        The gradient with respect to the first state.
    parameters : GRUParameters
        The gradients of the given parameters; None for the others.
    """

    dx: Any
    dh: Any
    parameters: GRUParameters


class GRUCellForward(NamedTuple):
    """The state after one step, and what its backward pass needs.

    Attributes
    ----------
    h : array (B, H)
        The new state.
    saved : object
        For `gru_cell_backward`. It refers to x and the parameters: do not change them before
        the backward pass.
    """

    h: Any
    saved: Any


class RNNStates(NamedTuple):
    """The states of a plain recurrent network over sequences.

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
    """The states, and what the backward pass needs.

    Attributes
    ----------
    y, h : array
        As in `RNNStates`; y is read-only, because `saved` refers to it. Arrays of other
        libraries have no such flag: do not write to y before the backward pass.
    saved : object
        For `rnn_backward`. For each step of each sequence it holds 2 H numbers in the compute
        dtype, H more with each of zoneout and `recurrent_dropout`, and the statistics of the norm.
        It refers to x and the
        parameters: do not change them before the backward pass.
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
        The gradient with respect to the first state.
    parameters : RNNParameters
        The gradients of the given parameters; None for the others.
    """

    dx: Any
    dh: Any
    parameters: RNNParameters


class RNNCellForward(NamedTuple):
    """The state after one step, and what its backward pass needs.

    Attributes
    ----------
    h : array (B, H)
        The new state.
    saved : object
        For `rnn_cell_backward`. It refers to x and the parameters: do not change them before
        the backward pass.
    """

    h: Any
    saved: Any


class Stacked(NamedTuple):
    """The states of a stack of layers.

    Attributes
    ----------
    y : array (T, B, H)
        The last layer's states after each step, where H counts the units of all its directions;
        0 beyond a sequence's length. (B, T, H) if `batch_first`.
    states : tuple
        For each layer its last states as a tuple, such as ``(h, c)`` of an LSTM; a pair of these
        for a layer of both directions.
    """

    y: Any
    states: tuple[Any, ...]


class StackedForward(NamedTuple):
    """The states, and what the backward pass needs.

    Attributes
    ----------
    y : array
    states : tuple
        As in `Stacked`.
    saved : object
        For `stacked_backward`. It holds what each layer saves, and a byte for each element of a
        dropout mask. It refers to x and the parameters of the layers: do not change them before
        the backward pass.
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
        The gradients of the first states, in the structure of `Stacked`.
    layers : tuple
        The gradients of the parameters, in the structure of the layers.
    """

    dx: Any
    states: tuple[Any, ...]
    layers: tuple[Any, ...]
