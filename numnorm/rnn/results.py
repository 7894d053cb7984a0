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

    Examples
    --------
    >>> from numnorm.rnn import LSTMParameters, lstm
    >>> states = lstm([[[1.0]], [[0.0]]], LSTMParameters([[1.0]] * 4, [[0.5]] * 4), norm=None)
    >>> states.y.shape, states.h.round(3), states.c.round(3)
    ((2, 1, 1), array([[0.209]]), array([[0.404]]))
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
        statistics of each norm. It refers to x and the parameters: do not change them before the
        backward pass.

    Examples
    --------
    >>> from numnorm.rnn import LSTMParameters, lstm_forward
    >>> result = lstm_forward([[[1.0]]], LSTMParameters([[1.0]] * 4, [[0.5]] * 4), norm=None)
    >>> result.h.round(3), result.y.flags.writeable
    (array([[0.37]]), False)
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

    Examples
    --------
    >>> from numnorm.rnn import LSTMParameters, lstm_backward, lstm_forward
    >>> saved = lstm_forward([[[1.0]]], LSTMParameters([[1.0]] * 4, [[0.5]] * 4), norm=None).saved
    >>> gradients = lstm_backward([[[1.0]]], saved)
    >>> gradients.dx.round(3), gradients.parameters.weight_x.shape, gradients.parameters.bias
    (array([[[0.348]]]), (4, 1), None)
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

    Examples
    --------
    >>> from numnorm.rnn import LSTMParameters, lstm_cell
    >>> state = lstm_cell([[1.0]], LSTMParameters([[1.0]] * 4, [[0.5]] * 4), norm=None)
    >>> state.h.round(3), state.c.round(3)
    (array([[0.37]]), array([[0.557]]))
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

    Examples
    --------
    >>> from numnorm.rnn import LSTMParameters, lstm_cell_backward, lstm_cell_forward
    >>> result = lstm_cell_forward([[1.0]], LSTMParameters([[1.0]] * 4, [[0.5]] * 4), norm=None)
    >>> lstm_cell_backward([[1.0]], result.saved).dx.round(3)
    array([[0.348]])
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

    Examples
    --------
    >>> from numnorm.rnn import GRUParameters, gru
    >>> states = gru([[[1.0]], [[0.0]]], GRUParameters([[1.0]] * 3, [[0.5]] * 3), norm=None)
    >>> states.y.shape, states.h.round(3)
    ((2, 1, 1), array([[0.329]]))
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
        dtype, H more with each of zoneout, `recurrent_dropout` and ``reset_after=False`` (2 H on a
        device), and the statistics of each norm. It refers to x and the parameters: do not change
        them before the backward pass.

    Examples
    --------
    >>> from numnorm.rnn import GRUParameters, gru_forward
    >>> result = gru_forward([[[1.0]]], GRUParameters([[1.0]] * 3, [[0.5]] * 3), norm=None)
    >>> result.h.round(3), result.y.flags.writeable
    (array([[0.557]]), False)
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

    Examples
    --------
    >>> from numnorm.rnn import GRUParameters, gru_backward, gru_forward
    >>> saved = gru_forward([[[1.0]]], GRUParameters([[1.0]] * 3, [[0.5]] * 3), norm=None).saved
    >>> gradients = gru_backward([[[1.0]]], saved)
    >>> gradients.dx.round(3), gradients.parameters.weight_x.shape, gradients.parameters.bias
    (array([[[0.457]]]), (3, 1), None)
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

    Examples
    --------
    >>> from numnorm.rnn import GRUParameters, gru_cell_backward, gru_cell_forward
    >>> result = gru_cell_forward([[1.0]], GRUParameters([[1.0]] * 3, [[0.5]] * 3), norm=None)
    >>> gru_cell_backward([[1.0]], result.saved).dx.round(3)
    array([[0.457]])
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

    Examples
    --------
    >>> from numnorm.rnn import RNNParameters, rnn
    >>> states = rnn([[[1.0]], [[0.0]]], RNNParameters([[1.0]], [[0.5]]), norm=None)
    >>> states.y.shape, states.h.round(3)
    ((2, 1, 1), array([[0.363]]))
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
        It refers to x and the parameters: do not change them before the backward pass.

    Examples
    --------
    >>> from numnorm.rnn import RNNParameters, rnn_forward
    >>> result = rnn_forward([[[1.0]]], RNNParameters([[1.0]], [[0.5]]), norm=None)
    >>> result.h.round(3), result.y.flags.writeable
    (array([[0.762]]), False)
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

    Examples
    --------
    >>> from numnorm.rnn import RNNParameters, rnn_backward, rnn_forward
    >>> saved = rnn_forward([[[1.0]]], RNNParameters([[1.0]], [[0.5]]), norm=None).saved
    >>> gradients = rnn_backward([[[1.0]]], saved)
    >>> gradients.dx.round(3), gradients.parameters.weight_x.shape, gradients.parameters.bias
    (array([[[0.42]]]), (1, 1), None)
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

    Examples
    --------
    >>> from numnorm.rnn import RNNParameters, rnn_cell_backward, rnn_cell_forward
    >>> result = rnn_cell_forward([[1.0]], RNNParameters([[1.0]], [[0.5]]), norm=None)
    >>> rnn_cell_backward([[1.0]], result.saved).dx.round(3)
    array([[0.42]])
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

    Examples
    --------
    >>> from numnorm.rnn import RNNParameters, stacked
    >>> y, states = stacked([[[1.0]], [[0.0]]], [RNNParameters([[1.0]], [[0.5]])] * 2, norm=None)
    >>> y.shape, [h.round(3) for (h,) in states]
    ((2, 1, 1), [array([[0.363]]), array([[0.594]])])
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

    Examples
    --------
    >>> from numnorm.rnn import RNNParameters, stacked_forward
    >>> result = stacked_forward([[[1.0]]], [RNNParameters([[1.0]], [[0.5]])] * 2, norm=None)
    >>> result.y.shape, len(result.states)
    ((1, 1, 1), 2)
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

    Examples
    --------
    >>> from numnorm.rnn import RNNParameters, stacked_backward, stacked_forward
    >>> saved = stacked_forward([[[1.0]]], [RNNParameters([[1.0]], [[0.5]])] * 2, norm=None).saved
    >>> gradients = stacked_backward([[[1.0]]], saved)
    >>> gradients.dx.round(3), gradients.layers[1].weight_x.round(3)
    (array([[[0.247]]]), array([[0.448]]))
    """

    dx: Any
    states: tuple[Any, ...]
    layers: tuple[Any, ...]
