"""Initial parameters of recurrent cells."""

from typing import Any

import numpy as np

from numnorm.arguments import check_dtype, check_generator, check_integer
from numnorm.array_types import CellNorm, LSTMNorm, LSTMVariant
from numnorm.rnn.parameters import (
    GRU,
    LSTM,
    PROJECTED_LSTM,
    RNN,
    GRUParameters,
    Kind,
    RNNParameters,
)
from numnorm.rnn.specs import Spec, gru_spec, lstm_spec, rnn_spec

Array = np.ndarray[Any, Any]


def _orthogonal(generator: np.random.Generator, size: int) -> Array:
    """Return a uniformly distributed random orthogonal matrix (Mezzadri 2007)."""
    q, r = np.linalg.qr(generator.standard_normal((size, size)))
    return q * np.sign(np.diag(r))


def _glorot(generator: np.random.Generator, units: int, inputs: int) -> Array:
    """Return uniform weights of variance 2 / (inputs + units) (Glorot and Bengio 2010)."""
    bound = np.sqrt(6.0 / (inputs + units))
    return generator.uniform(-bound, bound, (units, inputs))


def _initial(
    kind: Kind,
    spec: Spec,
    inputs: Any,
    hidden: Any,
    rng: np.random.Generator,
    dtype: Any,
    proj_size: Any = None,
) -> Any:
    inputs, hidden = check_integer("inputs", inputs, 1), check_integer("hidden", hidden, 1)
    dtype = check_dtype(dtype)
    size = hidden if proj_size is None else check_integer("proj_size", proj_size, 1)
    if size > hidden:
        raise ValueError(f"proj_size must be at most {hidden}, the number of units, got {size}")
    check_generator(rng)
    values = {
        "weight_x": np.concatenate([_glorot(rng, hidden, inputs) for _ in range(kind.gates)]),
        "weight_h": np.concatenate([_orthogonal(rng, hidden)[:, :size] for _ in range(kind.gates)]),
    }
    if proj_size is not None:
        values["projection"], kind = _glorot(rng, size, hidden), PROJECTED_LSTM
    for name, size in kind.sizes.items():
        if name in spec.parameters or name.startswith("bias"):
            gain = 0.1 if spec.batch else 1.0  # as in Cooijmans et al.
            values[name] = np.full(size * hidden, gain if name.startswith("gamma") else 0.0)
    if kind.name == LSTM.name:
        values["bias"][:hidden] = 1.0
    with np.errstate(under="ignore"):  # a number may be below the range of the dtype
        return kind.parameters(**{name: value.astype(dtype) for name, value in values.items()})


def lstm_init(
    inputs: int,
    hidden: int,
    *,
    rng: np.random.Generator,
    norm: LSTMNorm | None = "layer",
    variant: LSTMVariant = "paper",
    dtype: Any = np.float32,
    proj_size: int | None = None,
) -> Any:
    """Return initial parameters of an LSTM.

    The weights of each gate are orthogonal for the state and Glorot-uniform for the input. Gains
    are 1 (0.1 for batch norm); biases are 0 except that of the forget gate, which is 1.

    Parameters
    ----------
    inputs, hidden : int
        I and H.
    rng : numpy.random.Generator
        The source of the random weights.
    norm, variant : str
        As for `lstm`.
    dtype : dtype, default float32
        The dtype of all parameters: float16, bfloat16, float32 or float64.
    proj_size : int, optional
        P, at most H: the state is a projection of the outputs to P elements.

    Returns
    -------
    LSTMParameters or ProjectedLSTMParameters
        The latter with `proj_size`.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> parameters = rnn.lstm_init(3, 2, rng=np.random.default_rng(0))
    >>> parameters.bias
    array([1., 1., 0., 0., 0., 0., 0., 0.], dtype=float32)
    """
    spec = lstm_spec(norm, variant)
    return _initial(LSTM, spec, inputs, hidden, rng, dtype, proj_size)


def gru_init(
    inputs: int,
    hidden: int,
    *,
    rng: np.random.Generator,
    norm: CellNorm | None = "layer",
    dtype: Any = np.float32,
) -> GRUParameters:
    """Return initial parameters of a gated recurrent unit.

    As for `lstm_init`; all biases are 0.

    Parameters
    ----------
    inputs, hidden : int
        I and H.
    rng : numpy.random.Generator
        The source of the random weights.
    norm : str or None
        As for `gru`.
    dtype : dtype, default float32
        The dtype of all parameters: float16, bfloat16, float32 or float64.

    Returns
    -------
    GRUParameters

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rnn.gru_init(3, 2, rng=np.random.default_rng(0)).weight_x.shape
    (6, 3)
    """
    parameters: GRUParameters = _initial(GRU, gru_spec(norm), inputs, hidden, rng, dtype)
    return parameters


def rnn_init(
    inputs: int,
    hidden: int,
    *,
    rng: np.random.Generator,
    norm: CellNorm | None = "layer",
    dtype: Any = np.float32,
) -> RNNParameters:
    """Return initial parameters of a plain recurrent network.

    As for `lstm_init`; the bias is 0.

    Parameters
    ----------
    inputs, hidden : int
        I and H.
    rng : numpy.random.Generator
        The source of the random weights.
    norm : str or None
        As for `rnn`.
    dtype : dtype, default float32
        The dtype of all parameters: float16, bfloat16, float32 or float64.

    Returns
    -------
    RNNParameters

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rnn.rnn_init(3, 2, rng=np.random.default_rng(0)).weight_x.shape
    (2, 3)
    """
    parameters: RNNParameters = _initial(RNN, rnn_spec(norm, "tanh"), inputs, hidden, rng, dtype)
    return parameters
