"""Conversions of parameters from haste's recurrent layers [1]_.

The columns of a kernel are the gates of a layer: i, g, f, o of an LSTM and z, r, h of a GRU, where
z is 1 - σ(z) here. haste is not needed: what is converted is the ``state_dict()`` of a module of
haste_pytorch, or ``layer.get_weights()`` of haste_tf.

References
----------
.. [1] S. Nanavati, "Haste: a fast, simple, and open RNN library", 2020, lmnt-com/haste.
"""

from typing import Any

from numnorm.array_likes import as_plain_array
from numnorm.rnn.conversions.gate_order import HASTE, from_kernels, with_norm
from numnorm.rnn.parameters import GRU, LSTM, GRUParameters, LSTMParameters


def lstm_from_haste(
    kernel: Any,
    recurrent_kernel: Any,
    bias: Any,
    gamma: Any = None,
    gamma_h: Any = None,
    beta_h: Any = None,
) -> LSTMParameters:
    """Return the parameters of a layer ``LSTM`` or ``LayerNormLSTM`` of haste.

    Run `lstm` with ``norm=None`` for ``LSTM``, and with its defaults for ``LayerNormLSTM``. haste's
    zoneout with the rate p keeps elements of the state, and none of the cell: it is
    ``zoneout=(p, 0.0)``.

    Parameters
    ----------
    kernel : array_like (I, 4H)
        The weights of the input.
    recurrent_kernel : array_like (H, 4H)
        The weights of the state.
    bias : array_like (4H,)
        The bias.
    gamma : array_like (2, 4H), optional
        The gains of both products, only of ``LayerNormLSTM``.
    gamma_h, beta_h : array_like (H,), optional
        Gain and bias of the norm of the cell, only of ``LayerNormLSTM``.
        ``**module.state_dict()`` gives all of them.

    Returns
    -------
    LSTMParameters
        New arrays; for ``LSTM`` with gains of size 0, which no norm takes.

    Raises
    ------
    TypeError, ValueError
        If an array has an unsupported dtype or a wrong shape, or if only some of the last three are
        given.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> state = {  # as from haste_pytorch.LayerNormLSTM(3, 1).state_dict()
    ...     "kernel": np.ones((3, 4)), "recurrent_kernel": np.ones((1, 4)),
    ...     "bias": np.array([1.0, 2.0, 3.0, 4.0]), "gamma": np.ones((2, 4)),
    ...     "gamma_h": np.ones(1), "beta_h": np.zeros(1),
    ... }
    >>> parameters = rnn.lstm_from_haste(**state)
    >>> parameters.bias, parameters.beta_x
    (array([3., 1., 4., 2.]), None)
    """
    parameters: LSTMParameters = from_kernels(LSTM, HASTE, kernel, recurrent_kernel, ("bias", bias))
    norms = {"gamma": gamma, "gamma_h": gamma_h, "beta_h": beta_h}
    missing = [name for name, value in norms.items() if value is None]
    if len(missing) == len(norms):
        return parameters
    if missing:
        raise TypeError(f"{missing[0]} must be an array, as weights of other norms are, got None")
    gains = as_plain_array("gamma", gamma)
    if gains.ndim != 2 or len(gains) != 2:
        raise ValueError(
            f"gamma must have shape (2, {len(parameters.weight_h)}), got {gains.shape}"
        )
    normalized: LSTMParameters = with_norm(
        LSTM,
        HASTE,
        parameters,
        gamma_x=("gamma[0]", gains[0]),
        gamma_h=("gamma[1]", gains[1]),
        gamma_c=("gamma_h", gamma_h),
        beta_c=("beta_h", beta_h),
    )
    return normalized


def gru_from_haste(
    kernel: Any, recurrent_kernel: Any, bias: Any, recurrent_bias: Any, gamma: Any = None
) -> GRUParameters:
    """Return the parameters of a layer ``GRU`` of haste, to be used with ``norm=None``.

    haste's zoneout with the rate p is ``zoneout=p``. A ``LayerNormGRU`` is refused: it normalizes
    the products of all three gates as one row, but `gru` normalizes z and r as one row and the
    new state as another.

    Parameters
    ----------
    kernel : array_like (I, 3H)
        The weights of the input.
    recurrent_kernel : array_like (H, 3H)
        The weights of the state.
    bias, recurrent_bias : array_like (3H,)
        Both biases. ``**module.state_dict()`` gives all of them.
    gamma : None
        The gains of a ``LayerNormGRU``, which raise an error.

    Returns
    -------
    GRUParameters
        New arrays, with gains of size 0, which no norm takes. z is negated, and the last third of
        `recurrent_bias`, inside the product with r, becomes `bias_h`.

    Raises
    ------
    TypeError, ValueError
        If an array has an unsupported dtype or a wrong shape.
    NotImplementedError
        If the layer is a ``LayerNormGRU``.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> kernels = np.ones((3, 3)), np.ones((1, 3))
    >>> parameters = rnn.gru_from_haste(*kernels, [1.0, 2.0, 3.0], [10.0, 20.0, 30.0])
    >>> parameters.bias, parameters.bias_h
    (array([-11.,  22.,   3.]), array([30.]))
    """
    if gamma is not None:
        raise NotImplementedError(
            "gamma must be None: a LayerNormGRU of haste normalizes all three gates as one row, "
            "gru the new state apart from z and r"
        )
    parameters: GRUParameters = from_kernels(
        GRU, HASTE, kernel, recurrent_kernel, ("bias", bias), ("recurrent_bias", recurrent_bias)
    )
    return parameters
