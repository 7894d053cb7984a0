"""Weights to and from other libraries' layouts.

========  ===========  =======================================================
numnorm   f, i, o, g
PyTorch   i, f, g, o   ``weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0``
ONNX      i, o, f, g   ``W, R, B`` with one direction, B two biases in a row
========  ===========  =======================================================
"""

from typing import Any

import numpy as np

from numnorm.arguments import as_plain_array, check_shape
from numnorm.rnn.parameters import LSTMParameters

Array = np.ndarray[Any, Any]

# The blocks of the other layout in the order of numnorm.
_OF_TORCH = (1, 0, 3, 2)
_OF_ONNX = (2, 0, 1, 3)


def _reordered(array: Array, blocks: tuple[int, ...]) -> Array:
    parts = np.split(array, 4)
    return np.concatenate([parts[b] for b in blocks])


def _back(blocks: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(blocks.index(b) for b in range(4))


def _weights(names: tuple[str, str], w: Any, r: Any) -> tuple[Array, Array]:
    w, r = as_plain_array(names[0], w), as_plain_array(names[1], r)
    if r.ndim != 2 or r.shape[0] != 4 * r.shape[1]:
        raise ValueError(f"{names[1]} must have shape (4H, H), got {r.shape}")
    if w.ndim != 2 or w.shape[0] != r.shape[0]:
        raise ValueError(f"{names[0]} must have shape ({r.shape[0]}, I), got {w.shape}")
    return w, r


def _sum_of_biases(names: tuple[str, str], first: Any, second: Any, size: int) -> Array | None:
    total = None
    for name, value in zip(names, (first, second), strict=True):
        if value is not None:
            array = as_plain_array(name, value)
            check_shape(name, array.shape, (size,), "that of the gates")
            total = array if total is None else total + array
    return total


def lstm_from_torch(
    weight_ih: Any, weight_hh: Any, bias_ih: Any = None, bias_hh: Any = None
) -> LSTMParameters:
    """Return the parameters of a layer of ``torch.nn.LSTM``, to be used with ``norm=None``.

    Parameters
    ----------
    weight_ih : array_like (4H, I)
    weight_hh : array_like (4H, H)
    bias_ih, bias_hh : array_like (4H,), optional
        As the layer's parameters of these names, as arrays.

    Returns
    -------
    LSTMParameters
        New arrays.

    Raises
    ------
    ValueError
        If an array has a wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rnn.lstm_from_torch(np.ones((4, 1)), np.ones((4, 1)), [1.0, 2.0, 3.0, 4.0]).bias
    array([2., 1., 4., 3.])
    """
    w, r = _weights(("weight_ih", "weight_hh"), weight_ih, weight_hh)
    bias = _sum_of_biases(("bias_ih", "bias_hh"), bias_ih, bias_hh, r.shape[0])
    arrays = (None if a is None else _reordered(a, _OF_TORCH) for a in (w, r, bias))
    return LSTMParameters(*arrays)


def lstm_to_torch(parameters: LSTMParameters) -> tuple[Array, Array, Array, Array]:
    """Return ``(weight_ih, weight_hh, bias_ih, bias_hh)`` of ``torch.nn.LSTM``.

    PyTorch has two biases, which it adds up: the second is 0. It has no norms: gains and biases
    of norms are left out.

    Parameters
    ----------
    parameters : LSTMParameters

    Returns
    -------
    tuple of array
        New arrays.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> parameters = rnn.lstm_init(2, 1, rng=np.random.default_rng(0), norm=None)
    >>> weight_ih, weight_hh, bias_ih, bias_hh = rnn.lstm_to_torch(parameters)
    >>> bias_ih, bias_hh
    (array([0., 1., 0., 0.], dtype=float32), array([0., 0., 0., 0.], dtype=float32))
    """
    w, r, bias = _plain(parameters)
    blocks = _back(_OF_TORCH)
    w, r, bias = (_reordered(array, blocks) for array in (w, r, bias))
    return w, r, bias, np.zeros_like(bias)


def lstm_from_onnx(w: Any, r: Any, b: Any = None) -> LSTMParameters:
    """Return the parameters of the ONNX operator LSTM, to be used with ``norm=None``.

    Parameters
    ----------
    w : array_like (1, 4H, I)
    r : array_like (1, 4H, H)
    b : array_like (1, 8H), optional
        The operator's inputs W, R and B, of one direction.

    Returns
    -------
    LSTMParameters
        New arrays.

    Raises
    ------
    ValueError
        If an array has a wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> b = np.arange(8.0).reshape(1, 8)
    >>> rnn.lstm_from_onnx(np.ones((1, 4, 1)), np.ones((1, 4, 1)), b).bias
    array([ 8.,  4.,  6., 10.])
    """
    w, r = _one_direction("w", w, 3), _one_direction("r", r, 3)
    w, r = _weights(("w", "r"), w, r)
    bias = None
    if b is not None:
        both = _one_direction("b", b, 2)
        check_shape("b", both.shape, (2 * r.shape[0],), "two biases of the gates")
        bias = both[: r.shape[0]] + both[r.shape[0] :]
    arrays = (None if a is None else _reordered(a, _OF_ONNX) for a in (w, r, bias))
    return LSTMParameters(*arrays)


def lstm_to_onnx(parameters: LSTMParameters) -> tuple[Array, Array, Array]:
    """Return ``(W, R, B)`` of the ONNX operator LSTM, with one direction.

    Gains and biases of norms, which the operator does not have, are left out.

    Parameters
    ----------
    parameters : LSTMParameters

    Returns
    -------
    tuple of array
        New arrays.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> parameters = rnn.lstm_init(2, 1, rng=np.random.default_rng(0), norm=None)
    >>> rnn.lstm_to_onnx(parameters)[2]
    array([[0., 0., 1., 0., 0., 0., 0., 0.]], dtype=float32)
    """
    w, r, bias = _plain(parameters)
    w, r, bias = (_reordered(array, _back(_OF_ONNX)) for array in (w, r, bias))
    return w[None], r[None], np.concatenate([bias, np.zeros_like(bias)])[None]


def _one_direction(name: str, value: Any, axes: int) -> Array:
    array: Array = as_plain_array(name, value)
    if array.ndim != axes or array.shape[0] != 1:
        raise ValueError(f"{name} must have {axes} axes, the first of size 1, got {array.shape}")
    result: Array = array[0]
    return result


def _plain(parameters: LSTMParameters) -> tuple[Array, Array, Array]:
    w, r = _weights(("weight_x", "weight_h"), parameters.weight_x, parameters.weight_h)
    if parameters.bias is None:
        return w, r, np.zeros(r.shape[0], r.dtype)
    return w, r, as_plain_array("bias", parameters.bias)
