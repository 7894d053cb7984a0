"""Conversions of parameters from and to ONNX's recurrent operators."""

from typing import Any

import numpy as np

from numnorm.rnn.conversions.gate_order import from_onnx, to_onnx
from numnorm.rnn.parameters import GRU, LSTM, RNN, GRUParameters, LSTMParameters, RNNParameters

Array = np.ndarray[Any, Any]


def lstm_from_onnx(w: Any, r: Any, b: Any = None) -> LSTMParameters:
    """Return the parameters of the ONNX operator LSTM, to be used with ``norm=None``.

    Parameters
    ----------
    w : array_like (1, 4H, I)
    r : array_like (1, 4H, H)
    b : array_like (1, 8H), optional
        The operator's inputs W, R and B with one direction.

    Returns
    -------
    LSTMParameters
        New arrays, with gains of size 0, which no norm takes.

    Raises
    ------
    TypeError, ValueError
        If an array has an unsupported dtype or a wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> b = np.arange(8.0).reshape(1, 8)
    >>> rnn.lstm_from_onnx(np.ones((1, 4, 1)), np.ones((1, 4, 1)), b).bias
    array([ 8.,  4.,  6., 10.])
    """
    parameters: LSTMParameters = from_onnx(LSTM, w, r, b)
    return parameters


def lstm_to_onnx(parameters: LSTMParameters) -> tuple[Array, Array, Array]:
    """Return ``(W, R, B)`` of the ONNX operator LSTM, with one direction.

    Gains and biases of norms are left out, because the operator has none.

    Parameters
    ----------
    parameters : LSTMParameters

    Returns
    -------
    tuple of array
        New arrays.

    Raises
    ------
    TypeError, ValueError
        If the parameters belong to another cell, or one has a wrong dtype or shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> parameters = rnn.lstm_init(2, 1, rng=np.random.default_rng(0), norm=None)
    >>> rnn.lstm_to_onnx(parameters)[2]
    array([[0., 0., 1., 0., 0., 0., 0., 0.]], dtype=float32)
    """
    return to_onnx(LSTM, parameters)


def gru_from_onnx(w: Any, r: Any, b: Any = None) -> GRUParameters:
    """Return the parameters of the ONNX operator GRU, to be used with ``norm=None``.

    With the operator's default, ``linear_before_reset=0``, its reset gate multiplies the state
    before the product: run `gru` with ``reset_after=False``. With 1, and in PyTorch, it multiplies
    the product, as `gru` does by default.

    Parameters
    ----------
    w : array_like (1, 3H, I)
    r : array_like (1, 3H, H)
    b : array_like (1, 6H), optional
        The operator's inputs W, R and B with one direction.

    Returns
    -------
    GRUParameters
        New arrays, with gains of size 0, which no norm takes. z is negated, and the
        last sixth of `b` becomes `bias_h`.

    Raises
    ------
    TypeError, ValueError
        If an array has an unsupported dtype or a wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> ones = np.ones((1, 3, 1))
    >>> parameters = rnn.gru_from_onnx(ones, ones, [[1.0, 2.0, 3.0, 10.0, 20.0, 30.0]])
    >>> parameters.bias, parameters.bias_h
    (array([-11.,  22.,   3.]), array([30.]))
    """
    parameters: GRUParameters = from_onnx(GRU, w, r, b)
    return parameters


def gru_to_onnx(parameters: GRUParameters) -> tuple[Array, Array, Array]:
    """Return ``(W, R, B)`` of the ONNX operator GRU, with one direction.

    The operator must have ``linear_before_reset=1``, which is not its default, unless `gru` runs
    with ``reset_after=False``. Gains and biases of norms are left out, because it has none.

    Parameters
    ----------
    parameters : GRUParameters

    Returns
    -------
    tuple of array
        New arrays.

    Raises
    ------
    TypeError, ValueError
        If the parameters belong to another cell, or one has a wrong dtype or shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> ones = np.ones((3, 1))
    >>> parameters = rnn.GRUParameters(ones, ones, bias=[1.0, 2.0, 3.0], bias_h=[4.0])
    >>> rnn.gru_to_onnx(parameters)[2][0, [0, 1, 2, 5]]
    array([-1.,  2.,  3.,  4.])
    """
    return to_onnx(GRU, parameters)


def rnn_from_onnx(w: Any, r: Any, b: Any = None) -> RNNParameters:
    """Return the parameters of the ONNX operator RNN, to be used with ``norm=None``.

    `rnn` supports its activations Tanh, the default, and Relu.

    Parameters
    ----------
    w : array_like (1, H, I)
    r : array_like (1, H, H)
    b : array_like (1, 2H), optional
        The operator's inputs W, R and B with one direction.

    Returns
    -------
    RNNParameters
        New arrays, with gains of size 0, which no norm takes.

    Raises
    ------
    TypeError, ValueError
        If an array has an unsupported dtype or a wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> b = [[1.0, 2.0, 3.0, 5.0]]
    >>> rnn.rnn_from_onnx(np.ones((1, 2, 1)), np.ones((1, 2, 2)), b).bias
    array([4., 7.])
    """
    parameters: RNNParameters = from_onnx(RNN, w, r, b)
    return parameters


def rnn_to_onnx(parameters: RNNParameters) -> tuple[Array, Array, Array]:
    """Return ``(W, R, B)`` of the ONNX operator RNN, with one direction.

    Gain and bias of a norm are left out, because the operator has none.

    Parameters
    ----------
    parameters : RNNParameters

    Returns
    -------
    tuple of array
        New arrays.

    Raises
    ------
    TypeError, ValueError
        If the parameters belong to another cell, or one has a wrong dtype or shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> parameters = rnn.RNNParameters(np.ones((2, 1)), np.ones((2, 2)), bias=[1.0, 2.0])
    >>> rnn.rnn_to_onnx(parameters)[2]
    array([[1., 2., 0., 0.]])
    """
    return to_onnx(RNN, parameters)
