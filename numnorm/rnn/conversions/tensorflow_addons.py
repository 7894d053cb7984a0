"""Conversions of parameters from the layer-normalized cells of TensorFlow Addons.

Their kernels have the layout of Keras. TensorFlow is not needed: what is converted is
``cell.get_weights()``.
"""

from typing import Any

from numnorm.rnn.conversions.gate_order import KERAS, from_kernels, with_norm
from numnorm.rnn.parameters import LSTM, RNN, LSTMParameters, RNNParameters


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
