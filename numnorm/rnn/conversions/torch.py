"""Conversions of parameters from and to PyTorch's recurrent layers.

The order of the gates in the rows of the weights, for each library:

=======  ==========  ==========  ==============================================================
..       LSTM        GRU         arrays
=======  ==========  ==========  ==============================================================
numnorm  f, i, o, g  z, r, new   ``weight_x, weight_h, bias``, and of the GRU ``bias_h``
PyTorch  i, f, g, o  r, -z, new  ``weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0``
ONNX     i, o, f, g  -z, r, new  ``W, R, B`` with one direction, B two biases in a row
Keras    i, f, g, o  -z, r, new  ``kernel, recurrent_kernel, bias``, with gates as columns
haste    i, g, f, o  -z, r, new  the same; of the GRU also ``recurrent_bias``
=======  ==========  ==========  ==============================================================

-z is z negated, because z of the other libraries is 1 - σ(z) here.
"""

import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from numnorm.arguments import brief
from numnorm.rnn.conversions.gate_order import from_torch, to_torch
from numnorm.rnn.parameters import (
    GRU,
    LSTM,
    RNN,
    GRUParameters,
    LSTMParameters,
    ProjectedLSTMParameters,
    RNNParameters,
    check_resets_after,
    named,
)
from numnorm.rnn.stacked import naming

Array = np.ndarray[Any, Any]


def lstm_from_torch(
    weight_ih: Any,
    weight_hh: Any,
    bias_ih: Any = None,
    bias_hh: Any = None,
    weight_hr: Any = None,
) -> LSTMParameters | ProjectedLSTMParameters:
    """Return the parameters of a layer of ``torch.nn.LSTM``, to be used with ``norm=None``.

    Parameters
    ----------
    weight_ih : array_like (4H, I)
    weight_hh : array_like (4H, H), or (4H, P) with projections
    bias_ih, bias_hh : array_like (4H,), optional
    weight_hr : array_like (P, H), optional
        The layer's parameters of these names, as arrays; the last one with ``proj_size``.

    Returns
    -------
    LSTMParameters or ProjectedLSTMParameters
        New arrays, with gains of size 0, which no norm takes.

    Raises
    ------
    TypeError, ValueError
        If an array has an unsupported dtype or a wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rnn.lstm_from_torch(np.ones((4, 1)), np.ones((4, 1)), [1.0, 2.0, 3.0, 4.0]).bias
    array([2., 1., 4., 3.])
    """
    parameters: LSTMParameters | ProjectedLSTMParameters = from_torch(
        LSTM, weight_ih, weight_hh, bias_ih, bias_hh, weight_hr
    )
    return parameters


def lstm_to_torch(parameters: LSTMParameters | ProjectedLSTMParameters) -> tuple[Array, ...]:
    """Return ``(weight_ih, weight_hh, bias_ih, bias_hh)`` of ``torch.nn.LSTM``.

    With projections ``weight_hr`` is the fifth array. PyTorch adds two biases: the second is 0.
    Gains and biases of norms are left out, because PyTorch has none.

    Parameters
    ----------
    parameters : LSTMParameters or ProjectedLSTMParameters

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
    >>> weight_ih, weight_hh, bias_ih, bias_hh = rnn.lstm_to_torch(parameters)
    >>> bias_ih, bias_hh
    (array([0., 1., 0., 0.], dtype=float32), array([0., 0., 0., 0.], dtype=float32))
    """
    return to_torch(LSTM, parameters)


def gru_from_torch(
    weight_ih: Any, weight_hh: Any, bias_ih: Any = None, bias_hh: Any = None
) -> GRUParameters:
    r"""Return the parameters of a layer of ``torch.nn.GRU``, to be used with ``norm=None``.

    PyTorch's update gate is the factor of the old state, :math:`h_t = z h_{t-1} + (1 - z) n`,
    numnorm's that of the new one: z is negated.

    Parameters
    ----------
    weight_ih : array_like (3H, I)
    weight_hh : array_like (3H, H)
    bias_ih, bias_hh : array_like (3H,), optional
        The layer's parameters of these names, as arrays.

    Returns
    -------
    GRUParameters
        New arrays, with gains of size 0, which no norm takes. The last third of
        `bias_hh`, inside the product with r, becomes `bias_h`.

    Raises
    ------
    TypeError, ValueError
        If an array has an unsupported dtype or a wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> ones = np.ones((3, 1))
    >>> parameters = rnn.gru_from_torch(ones, ones, [1.0, 2.0, 3.0], [10.0, 20.0, 30.0])
    >>> parameters.bias, parameters.bias_h
    (array([-22.,  11.,   3.]), array([30.]))
    """
    parameters: GRUParameters = from_torch(GRU, weight_ih, weight_hh, bias_ih, bias_hh)
    return parameters


def gru_to_torch(parameters: GRUParameters) -> tuple[Array, ...]:
    """Return ``(weight_ih, weight_hh, bias_ih, bias_hh)`` of ``torch.nn.GRU``.

    The second bias is 0 except for `bias_h`. Gains and biases of norms are left out, because
    PyTorch has none.

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
    >>> weight_ih, weight_hh, bias_ih, bias_hh = rnn.gru_to_torch(parameters)
    >>> weight_ih.ravel(), bias_ih, bias_hh[2]
    (array([ 1., -1.,  1.]), array([ 2., -1.,  3.]), np.float64(4.0))
    """
    check_resets_after(named(GRU, parameters).bias_h, reset_after=True)
    return to_torch(GRU, parameters)


def rnn_from_torch(
    weight_ih: Any, weight_hh: Any, bias_ih: Any = None, bias_hh: Any = None
) -> RNNParameters:
    """Return the parameters of a layer of ``torch.nn.RNN``, to be used with ``norm=None``.

    `rnn` must be called with the `nonlinearity` of the layer.

    Parameters
    ----------
    weight_ih : array_like (H, I)
    weight_hh : array_like (H, H)
    bias_ih, bias_hh : array_like (H,), optional
        The layer's parameters of these names, as arrays.

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
    >>> rnn.rnn_from_torch(np.ones((2, 1)), np.ones((2, 2)), [1.0, 2.0], [3.0, 5.0]).bias
    array([4., 7.])
    """
    parameters: RNNParameters = from_torch(RNN, weight_ih, weight_hh, bias_ih, bias_hh)
    return parameters


def rnn_to_torch(parameters: RNNParameters) -> tuple[Array, ...]:
    """Return ``(weight_ih, weight_hh, bias_ih, bias_hh)`` of ``torch.nn.RNN``.

    The second bias is 0. Gain and bias of a norm are left out, because PyTorch has none.

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
    >>> rnn.rnn_to_torch(parameters)[2:]
    (array([1., 2.]), array([0., 0.]))
    """
    return to_torch(RNN, parameters)


_KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
_MODULES: dict[str, Callable[..., Any]] = {
    "LSTM": lstm_from_torch,
    "GRU": gru_from_torch,
    "RNN": rnn_from_torch,
}


def layers_from_torch(state: Any, from_torch: Callable[..., Any] | None = None) -> list[Any]:
    """Return the layers of a recurrent module of PyTorch, for `stacked` with ``norm=None``.

    Its `batch_first`, and the `nonlinearity` of an RNN, are arguments of `stacked`.

    Parameters
    ----------
    state : torch.nn.LSTM, GRU or RNN, or mapping of str to array_like
        The module, or its ``state_dict()``: ``weight_ih_l0``, ``bias_hh_l1_reverse`` and so on. If
        that is of a larger module, select a part:
        ``{n.removeprefix("lstm."): a for n, a in state.items() if n.startswith("lstm.")}``.
    from_torch : callable, optional
        Converts one direction of one layer, such as `lstm_from_torch`. A module needs none.

    Returns
    -------
    list
        For each layer the result of `from_torch`; a pair for both directions.

    Raises
    ------
    TypeError
        If `state` is neither, or `from_torch` cannot be called.
    ValueError
        If a name is missing, if `stacked` does not support one, or if an array has a wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> state = {  # as from torch.nn.LSTM(3, 2, num_layers=2, bias=False).state_dict()
    ...     "weight_ih_l0": np.ones((8, 3)), "weight_hh_l0": np.ones((8, 2)),
    ...     "weight_ih_l1": np.ones((8, 2)), "weight_hh_l1": np.ones((8, 2)),
    ... }
    >>> layers = rnn.layers_from_torch(state, rnn.lstm_from_torch)
    >>> rnn.stacked(np.ones((5, 1, 3)), layers, norm=None).y.shape
    (5, 1, 2)
    """
    if (convert := _converter_of(state)) is not None:
        state, from_torch = state.state_dict(), from_torch or convert
    if not isinstance(state, Mapping):
        raise TypeError(
            f"state must be a torch.nn.LSTM, GRU or RNN, or a state_dict(), got {brief(state)}"
        )
    if not callable(from_torch):
        raise TypeError(
            f"from_torch must be a function, such as lstm_from_torch, got {brief(from_torch)}"
        )
    count = next(n for n in itertools.count() if n and f"weight_ih_l{n}" not in state)
    suffixes = ("", "_reverse") if "weight_ih_l0_reverse" in state else ("",)
    layers = [[f"_l{n}{suffix}" for suffix in suffixes] for n in range(count)]
    kinds = _kinds(state)
    known = {kind + suffix for layer in layers for suffix in layer for kind in kinds}
    for name in state:
        if name not in known:
            raise ValueError(
                f"state must have nothing but {', '.join(kinds)} of {count} x {len(suffixes)} "
                f"layers and directions, from 'weight_ih_l0' on, got {name!r}"
            )
    result = []
    for layer in layers:
        directions = tuple(_direction(state, suffix, from_torch) for suffix in layer)
        result.append(directions if len(directions) == 2 else directions[0])
    return result


def _converter_of(module: Any) -> Callable[..., Any] | None:
    """Return what converts a layer of a recurrent module; None for anything else."""
    classes = sys.modules.get("torch.nn")  # whoever has a module has imported it
    for name, convert in _MODULES.items():
        if classes is not None and isinstance(module, getattr(classes, name)):
            return convert
    return None


def _kinds(state: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the arrays of each direction, without suffix."""
    return (*_KINDS, "weight_hr") if "weight_hr_l0" in state else _KINDS


def _direction(state: Mapping[str, Any], suffix: str, from_torch: Callable[..., Any]) -> Any:
    for kind in _KINDS[:2]:
        if kind + suffix not in state:
            raise ValueError(f"state must have {kind + suffix!r}, which is missing")
    with naming(suffix.removeprefix("_")):
        return from_torch(*(state.get(kind + suffix) for kind in _kinds(state)))
