"""The parameters of recurrent cells: what they are, their checks, how they begin."""

from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import as_plain_array, check_float, check_integer, check_shape
from numnorm.rnn.forms import Form, lstm_form

Array = np.ndarray[Any, Any]


class LSTMParameters(NamedTuple):
    """The parameters of an LSTM with I inputs and H units; gates in the order f, i, o, g.

    Attributes
    ----------
    weight_x : array (4H, I)
        W_x, for the input.
    weight_h : array (4H, H)
        W_h, for the state.
    bias : array (4H,), optional
        b. Default: 0.
    gamma_x, beta_x : array (4H,), optional
        Gain and bias of the norm of W_x x.
    gamma_h, beta_h : array (4H,), optional
        Those of W_h h; with ``variant="per_gate"``, those of the gates.
    gamma_c, beta_c : array (H,), optional
        Those of the cell. Every gain is 1 by default, and every bias 0.
    """

    weight_x: Any
    weight_h: Any
    bias: Any = None
    gamma_x: Any = None
    beta_x: Any = None
    gamma_h: Any = None
    beta_h: Any = None
    gamma_c: Any = None
    beta_c: Any = None


def not_lstm_parameters(value: Any) -> TypeError:
    """Return the error for something else in their place."""
    return TypeError(
        f"parameters must be an LSTMParameters, got an object of type {type(value).__name__}"
    )


def checked_lstm(parameters: Any, form: Form, working: Any, inputs: int) -> LSTMParameters:
    """Return the parameters of an LSTM in the working dtype, C-contiguous."""
    if not isinstance(parameters, tuple) or len(parameters) != len(LSTMParameters._fields):
        raise not_lstm_parameters(parameters)
    given = LSTMParameters(*parameters)
    hidden = _hidden(given.weight_h)
    shapes = {"weight_x": (4 * hidden, inputs), "weight_h": (4 * hidden, hidden)}
    values: dict[str, Any] = {}
    for name, value in given._asdict().items():
        normed = name.startswith(("gamma", "beta"))
        if value is None:
            if not normed and name != "bias":
                raise TypeError(f"{name} must be an array, got None")
            values[name] = None
        elif normed and name not in form.parameters:
            raise ValueError(f"{name} must be None, as this norm and variant do not use it")
        else:
            expected = shapes.get(name, (hidden if name.endswith("_c") else 4 * hidden,))
            values[name] = _as_parameter(name, value, expected, working)
    return LSTMParameters(**values)


def _hidden(weight_h: Any) -> int:
    shape = as_plain_array("weight_h", weight_h).shape
    if len(shape) != 2 or shape[0] != 4 * shape[1] or shape[1] == 0:
        raise ValueError(f"weight_h must have shape (4H, H) with H at least 1, got {shape}")
    return int(shape[1])


def _as_parameter(name: str, value: Any, expected: tuple[int, ...], working: Any) -> Array:
    array = as_plain_array(name, value)
    check_shape(name, array.shape, expected, "that of the units and inputs")
    check_float(name, array.dtype)
    return np.ascontiguousarray(array, working)


def _orthogonal(generator: np.random.Generator, size: int) -> Array:
    """Return a random orthogonal matrix, uniform among all of them (Mezzadri 2007)."""
    q, r = np.linalg.qr(generator.standard_normal((size, size)))
    return q * np.sign(np.diag(r))


def _glorot(generator: np.random.Generator, units: int, inputs: int) -> Array:
    """Return uniform weights of the variance 2 / (inputs + units) (Glorot and Bengio 2010)."""
    bound = np.sqrt(6.0 / (inputs + units))
    return generator.uniform(-bound, bound, (units, inputs))


def lstm_init(
    inputs: int,
    hidden: int,
    *,
    rng: np.random.Generator,
    norm: str | None = "layer",
    variant: str = "paper",
    dtype: Any = np.float32,
) -> LSTMParameters:
    """Return the parameters that an LSTM begins with.

    Each gate's weights for the state are orthogonal, those for the input uniform as Glorot and
    Bengio have them; gains are 1 and biases 0, but for the forget gate's, which is 1.

    Parameters
    ----------
    inputs, hidden : int
        I and H.
    rng : numpy.random.Generator
        Where the numbers come from.
    norm, variant : str
        As for `lstm`.
    dtype : dtype, default float32
        Of all parameters.

    Returns
    -------
    LSTMParameters

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> parameters = rnn.lstm_init(3, 2, rng=np.random.default_rng(0))
    >>> parameters.bias
    array([1., 1., 0., 0., 0., 0., 0., 0.], dtype=float32)
    """
    inputs, hidden = check_integer("inputs", inputs, 1), check_integer("hidden", hidden, 1)
    form = lstm_form(norm, variant)
    weight_x = np.concatenate([_glorot(rng, hidden, inputs) for _ in range(4)])
    weight_h = np.concatenate([_orthogonal(rng, hidden) for _ in range(4)])
    bias = np.repeat([1.0, 0.0, 0.0, 0.0], hidden)
    sizes = {"x": 4 * hidden, "h": 4 * hidden, "c": hidden}
    normed = {
        name: (np.ones if name.startswith("gamma") else np.zeros)(sizes[name[-1]], dtype)
        for name in form.parameters
    }
    weights = (array.astype(dtype) for array in (weight_x, weight_h, bias))
    return LSTMParameters(*weights, **normed)
