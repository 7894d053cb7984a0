"""Conversions of parameters from and to Keras's recurrent layers, and from TensorFlow Addons.

The columns of a kernel are the gates of a layer: i, f, c, o of an LSTM and z, r, h of a GRU, where
z is 1 - σ(z) here. The layer-normalized cells of TensorFlow Addons have the same kernels. Neither
library is needed: what is converted is ``layer.get_weights()`` or ``cell.get_weights()``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numnorm.arguments import brief, check_flag
from numnorm.array_likes import as_plain_array
from numnorm.rnn.conversions.gate_order import KERAS, from_kernels, to_kernels, with_norm
from numnorm.rnn.parameters import (
    GRU,
    LSTM,
    RNN,
    GRUParameters,
    LSTMParameters,
    RNNParameters,
    check_resets_after,
    named,
)
from numnorm.rnn.stacked import naming

Array = np.ndarray[Any, Any]


def lstm_from_keras(kernel: Any, recurrent_kernel: Any, bias: Any = None) -> LSTMParameters:
    """Return the parameters of a layer ``keras.layers.LSTM``, to be used with ``norm=None``.

    Its activations must be the defaults, tanh and sigmoid. `unit_forget_bias` only sets the first
    value of the bias. Keras's inputs have the batch first: run `lstm` with ``batch_first=True``.

    Parameters
    ----------
    kernel : array_like (I, 4H)
        The weights of the input.
    recurrent_kernel : array_like (H, 4H)
        The weights of the state.
    bias : array_like (4H,), optional
        The bias, if the layer has one: ``*layer.get_weights()`` gives all of them.

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
    >>> rnn.lstm_from_keras(np.ones((3, 4)), np.ones((1, 4)), [1.0, 2.0, 3.0, 4.0]).bias
    array([2., 1., 4., 3.])
    """
    parameters: LSTMParameters = from_kernels(LSTM, KERAS, kernel, recurrent_kernel, ("bias", bias))
    return parameters


def lstm_to_keras(parameters: LSTMParameters) -> tuple[Array, Array, Array]:
    """Return ``(kernel, recurrent_kernel, bias)`` of a layer ``keras.layers.LSTM``.

    Gains and biases of norms are left out, because Keras has none.

    Parameters
    ----------
    parameters : LSTMParameters
        The parameters of the layer, with a norm or without.

    Returns
    -------
    tuple of array
        New arrays, for ``layer.set_weights``.

    Raises
    ------
    TypeError, ValueError
        If the parameters belong to another cell, or one has a wrong dtype or shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> parameters = rnn.lstm_init(2, 1, rng=np.random.default_rng(0), norm=None)
    >>> rnn.lstm_to_keras(parameters)[2]
    array([0., 1., 0., 0.], dtype=float32)
    """
    return to_kernels(LSTM, KERAS, parameters, "Keras")[:3]


def gru_from_keras(kernel: Any, recurrent_kernel: Any, bias: Any = None) -> GRUParameters:
    """Return the parameters of a layer ``keras.layers.GRU``, to be used with ``norm=None``.

    Run `gru` with the `reset_after` of the layer: True is the default of both. A bias of shape
    (2, 3H) belongs to True, one of shape (3H,) to False: `gru` then refuses the parameters with
    True. The activations must be the defaults, tanh and sigmoid. Keras's inputs have the batch
    first: run `gru` with ``batch_first=True``.

    Parameters
    ----------
    kernel : array_like (I, 3H)
        The weights of the input.
    recurrent_kernel : array_like (H, 3H)
        The weights of the state.
    bias : array_like (2, 3H) or (3H,), optional
        The bias, if the layer has one: ``*layer.get_weights()`` gives all of them.

    Returns
    -------
    GRUParameters
        New arrays, with gains of size 0, which no norm takes. z is negated, and the last third of
        ``bias[1]``, inside the product with r, becomes `bias_h`; from a bias of shape (3H,) that
        has size 0.

    Raises
    ------
    TypeError, ValueError
        If an array has an unsupported dtype or a wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> kernels = np.ones((3, 3)), np.ones((1, 3))
    >>> parameters = rnn.gru_from_keras(*kernels, [[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]])
    >>> parameters.bias, parameters.bias_h
    (array([-11.,  22.,   3.]), array([30.]))
    """
    first, second = ("bias", bias), ("bias[1]", None)
    if bias is not None:
        both = as_plain_array("bias", bias)
        if both.ndim == 2:
            if len(both) != 2:
                raise ValueError(
                    f"bias must have shape (2, 3H), or (3H,) without reset_after, got {both.shape}"
                )
            first, second = ("bias[0]", both[0]), ("bias[1]", both[1])
    parameters: GRUParameters = from_kernels(GRU, KERAS, kernel, recurrent_kernel, first, second)
    if first[1] is None or second[1] is not None:
        return parameters
    # The empty array marks the parameters, as the empty arrays of `without_norm` do.
    return parameters._replace(bias_h=np.empty(0, parameters.bias.dtype))


def gru_to_keras(
    parameters: GRUParameters, *, reset_after: bool = True
) -> tuple[Array, Array, Array]:
    """Return ``(kernel, recurrent_kernel, bias)`` of a layer ``keras.layers.GRU``.

    Gains and biases of norms are left out, because Keras has none.

    Parameters
    ----------
    parameters : GRUParameters
        The parameters of the layer, with a norm or without.
    reset_after : bool, default True
        That of the layer: the bias has the shape (2, 3H) with True and (3H,) with False.

    Returns
    -------
    tuple of array
        New arrays, for ``layer.set_weights``.

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
    >>> rnn.gru_to_keras(parameters, reset_after=False)[2]
    array([-1.,  2.,  7.])
    """
    after = check_flag("reset_after", reset_after)
    check_resets_after(named(GRU, parameters).bias_h, after)
    kernel, recurrent_kernel, first, second = to_kernels(GRU, KERAS, parameters, "Keras")
    return kernel, recurrent_kernel, np.stack([first, second]) if after else first + second


def rnn_from_keras(kernel: Any, recurrent_kernel: Any, bias: Any = None) -> RNNParameters:
    """Return the parameters of a layer ``keras.layers.SimpleRNN``, to be used with ``norm=None``.

    `rnn` must be called with the layer's activation, tanh or relu, as its `nonlinearity`, and with
    ``batch_first=True`` for inputs of Keras, which have the batch first.

    Parameters
    ----------
    kernel : array_like (I, H)
        The weights of the input.
    recurrent_kernel : array_like (H, H)
        The weights of the state.
    bias : array_like (H,), optional
        The bias, if the layer has one: ``*layer.get_weights()`` gives all of them.

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
    >>> rnn.rnn_from_keras(np.ones((3, 2)), np.eye(2)).weight_x.shape
    (2, 3)
    """
    parameters: RNNParameters = from_kernels(RNN, KERAS, kernel, recurrent_kernel, ("bias", bias))
    return parameters


def rnn_to_keras(parameters: RNNParameters) -> tuple[Array, Array, Array]:
    """Return ``(kernel, recurrent_kernel, bias)`` of a layer ``keras.layers.SimpleRNN``.

    Gain and bias of a norm are left out, because Keras has none.

    Parameters
    ----------
    parameters : RNNParameters
        The parameters of the layer, with a norm or without.

    Returns
    -------
    tuple of array
        New arrays, for ``layer.set_weights``.

    Raises
    ------
    TypeError, ValueError
        If the parameters belong to another cell, or one has a wrong dtype or shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> parameters = rnn.RNNParameters(np.ones((2, 3)), np.eye(2), bias=[1.0, 2.0])
    >>> kernel, recurrent_kernel, bias = rnn.rnn_to_keras(parameters)
    >>> kernel.shape, bias
    ((3, 2), array([1., 2.]))
    """
    return to_kernels(RNN, KERAS, parameters, "Keras")[:3]


def lstm_from_tfa(
    kernel: Any,
    recurrent_kernel: Any,
    bias: Any,
    kernel_gamma: Any,
    kernel_beta: Any,
    recurrent_gamma: Any,
    recurrent_beta: Any,
    state_gamma: Any,
    state_beta: Any,
) -> LSTMParameters:
    """Return the parameters of a cell ``tfa.rnn.LayerNormLSTMCell``.

    Run `lstm` with ``variant="normalized_cell"``, as the cell passes the normalized state to the
    next step, and with ``eps=1e-3`` or the cell's `norm_epsilon`. The norm is the default, "layer".
    The activations must be the defaults, tanh and sigmoid. For inputs of TensorFlow, which have the
    batch first, add ``batch_first=True``.

    Parameters
    ----------
    kernel : array_like (I, 4H)
        The weights of the input.
    recurrent_kernel : array_like (H, 4H)
        The weights of the state.
    bias : array_like (4H,) or None
        None without `use_bias`.
    kernel_gamma, kernel_beta, recurrent_gamma, recurrent_beta : array_like (4H,)
        Gain and bias of `kernel_norm` and of `recurrent_norm`.
    state_gamma, state_beta : array_like (H,)
        Gain and bias of `state_norm`. ``*cell.get_weights()`` gives all of them; without
        `use_bias` a None is to be put in at the place of the bias.

    Returns
    -------
    LSTMParameters
        New arrays.

    Raises
    ------
    TypeError, ValueError
        If an array has an unsupported dtype or a wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> norms = [np.ones(8), np.zeros(8), np.ones(8), np.zeros(8), np.ones(2), np.zeros(2)]
    >>> kernels = np.ones((3, 8)), np.ones((2, 8))
    >>> parameters = rnn.lstm_from_tfa(*kernels, np.ones(8), *norms)
    >>> x = np.ones((5, 1, 3))
    >>> rnn.lstm(x, parameters, variant="normalized_cell", eps=1e-3).y.shape
    (5, 1, 2)
    """
    parameters = from_kernels(LSTM, KERAS, kernel, recurrent_kernel, ("bias", bias))
    normalized: LSTMParameters = with_norm(
        LSTM,
        KERAS,
        parameters,
        gamma_x=("kernel_gamma", kernel_gamma),
        beta_x=("kernel_beta", kernel_beta),
        gamma_h=("recurrent_gamma", recurrent_gamma),
        beta_h=("recurrent_beta", recurrent_beta),
        gamma_c=("state_gamma", state_gamma),
        beta_c=("state_beta", state_beta),
    )
    return normalized


def rnn_from_tfa(kernel: Any, recurrent_kernel: Any, bias: Any, gamma: Any) -> RNNParameters:
    """Return the parameters of a cell ``tfa.rnn.LayerNormSimpleRNNCell``.

    Run `rnn` with the defaults: the norm "layer" and ``eps=1e-5``, or the cell's
    `layernorm_epsilon`; and with the cell's activation, tanh or relu, as `nonlinearity`. For inputs
    of TensorFlow, which have the batch first, add ``batch_first=True``.

    Parameters
    ----------
    kernel : array_like (I, H)
        The weights of the input.
    recurrent_kernel : array_like (H, H)
        The weights of the state.
    bias : array_like (H,) or None
        None without `use_bias`.
    gamma : array_like (H,)
        The gain of the norm. ``*cell.get_weights()`` gives all of them; without `use_bias` a None
        is to be put in at the place of the bias.

    Returns
    -------
    RNNParameters
        New arrays.

    Raises
    ------
    TypeError, ValueError
        If an array has an unsupported dtype or a wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> parameters = rnn.rnn_from_tfa(np.ones((3, 2)), np.eye(2), np.zeros(2), np.ones(2))
    >>> rnn.rnn(np.ones((5, 1, 3)), parameters).y.shape
    (5, 1, 2)
    """
    parameters = from_kernels(RNN, KERAS, kernel, recurrent_kernel, ("bias", bias))
    normalized: RNNParameters = with_norm(RNN, KERAS, parameters, gamma=("gamma", gamma))
    return normalized


def layers_from_keras(
    weights: Sequence[Sequence[Any]], from_keras: Callable[..., Any]
) -> list[Any]:
    """Return the layers of a stack of recurrent layers of Keras, for `stacked`.

    Keras's inputs have the batch first: run `stacked` with ``batch_first=True``.

    Parameters
    ----------
    weights : sequence
        For each layer its weights, such as
        ``[layer.get_weights() for layer in model.layers if isinstance(layer, keras.layers.LSTM)]``.
        A layer ``keras.layers.Bidirectional`` gives the weights of the forward direction, then of
        the backward one; its `merge_mode` must be the default, "concat". A file has them in another
        order.
    from_keras : callable
        Converts one direction of one layer, such as `lstm_from_keras`.

    Returns
    -------
    list
        For each layer the result of `from_keras`; a pair for both directions.

    Raises
    ------
    TypeError
        If `weights` is no sequence of sequences, or `from_keras` cannot be called.
    ValueError
        If a layer has the wrong number of arrays, or if an array has a wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> one = [np.ones((3, 8)), np.ones((2, 8)), np.ones(8)]  # as from keras.layers.LSTM(2)
    >>> two = [np.ones((2, 20)), np.ones((5, 20))] * 2  # Bidirectional(LSTM(5, use_bias=False))
    >>> layers = rnn.layers_from_keras([one, two], rnn.lstm_from_keras)
    >>> rnn.stacked(np.ones((4, 1, 3)), layers, norm=None).y.shape
    (4, 1, 10)
    """
    if not callable(from_keras):
        raise TypeError(
            f"from_keras must be a function, such as lstm_from_keras, got {brief(from_keras)}"
        )
    return [
        _layer(f"weights[{n}]", arrays, from_keras)
        for n, arrays in enumerate(_sequence("weights", weights, "a list for each layer"))
    ]


def _layer(name: str, arrays: Any, from_keras: Callable[..., Any]) -> Any:
    arrays = _sequence(name, arrays, "the arrays of layer.get_weights()")
    half = len(arrays) // 2
    # One direction begins with two matrices, and a bias or a gain may follow.
    if half < 2 or len(arrays) % 2 or np.ndim(arrays[half]) != 2:
        return _direction(name, arrays, from_keras)
    first, second = np.shape(arrays[0]), np.shape(arrays[half])
    if first[:1] != second[:1]:
        raise ValueError(
            f"{name} must be one layer, whose directions have the same inputs, got kernels of the "
            f"shapes {first} and {second}: give each layer a list of its own"
        )
    return tuple(
        _direction(f"{name}, direction {n}", part, from_keras)
        for n, part in enumerate((arrays[:half], arrays[half:]))
    )


def _direction(name: str, arrays: Sequence[Any], from_keras: Callable[..., Any]) -> Any:
    with naming(name):
        return from_keras(*arrays)


def _sequence(name: str, value: Any, meaning: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name} must be a list or tuple, {meaning}, got {brief(value)}")
    return value
