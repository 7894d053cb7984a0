"""Long short-term memory with normalization, for whole sequences and one step at a time."""

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import check_eps, check_flag, check_shape
from numnorm.backends import backend_for
from numnorm.backends.contract import Scaling, scaling_by
from numnorm.rnn.forms import Form, lstm_form
from numnorm.rnn.parameters import LSTMParameters, checked_lstm, not_lstm_parameters
from numnorm.rnn.sequences import SequenceLayout, sequence_layout

# AdaNorm's C and k, as its own function has them.
_ADA_SCALE, _ADA_K = 1.0, 0.1


class LSTMStates(NamedTuple):
    """What an LSTM returns.

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
    """What the forward pass returns: an LSTM's states, and what the backward pass needs.

    Attributes
    ----------
    y, h, c : array
        As in `LSTMStates`.
    saved : object
        For `lstm_backward`. For each step of each sequence it holds 10 H numbers of the working
        precision (6 H where no norm is taken of each product, H more if the normalized cell is
        carried), the statistics of each norm, x and the parameters.
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
        Of the first state and cell.
    parameters : LSTMParameters
        Of the parameters that there are.
    """

    dx: Any
    dh: Any
    dc: Any
    parameters: LSTMParameters


@dataclasses.dataclass(frozen=True, eq=False)
class LSTMPacked:
    """Parameters that `lstm_pack` has made ready for many calls; its contents are its own."""

    form: Form
    given: LSTMParameters
    backend: Any
    dtype: Any
    weights: Any


class _Saved(NamedTuple):
    backend: Any
    form: Form
    scaling: Scaling
    layout: SequenceLayout
    batch_first: bool
    x: Any
    dtype: Any
    given: LSTMParameters
    weights: Any
    rows: Any


def lstm(
    x: Any,
    parameters: LSTMParameters | LSTMPacked,
    h: Any = None,
    c: Any = None,
    *,
    norm: str | None = "layer",
    variant: str = "paper",
    eps: float = 1e-5,
    lengths: Any = None,
    batch_first: bool = False,
    reverse: bool = False,
) -> LSTMStates:
    r"""Run a normalized LSTM over sequences.

    .. math::

        (f, i, o, g) &= N(W_h h_{t-1}; \gamma_h, \beta_h) + N(W_x x_t; \gamma_x, \beta_x) + b \\
        c_t &= \sigma(f) \, c_{t-1} + \sigma(i) \tanh(g) \\
        h_t &= \sigma(o) \tanh(N(c_t; \gamma_c, \beta_c))

    with N the norm, over all four gates together [1]_.

    Parameters
    ----------
    x : array_like (T, B, I)
        T steps of B sequences; float16, bfloat16, float32 or float64. Half precision is computed
        in float32. Integers and bool become float64.
    parameters : LSTMParameters or LSTMPacked
        Of any float dtype; used in that of x.
    h, c : array_like (B, H), optional
        The state and the cell before the first step. Default: 0.
    norm : {"layer", "rms", "ada", None}, default "layer"
        None is the LSTM of Hochreiter and Schmidhuber, with forget gates.
    variant : {"paper", "normalized_cell", "per_gate", "cell_only"}, default "paper"
        "normalized_cell" hands the normalized cell to the next step, as PyTorch's fastrnns and
        TensorFlow Addons do. "per_gate" normalizes :math:`W_h h + W_x x`, each gate by itself.
        "cell_only" normalizes nothing but the cell, as in the paper's DRAW.
    eps : float, default 1e-5
        Added to the variance.
    lengths : array_like of int (B,), optional
        How many steps each sequence has, in any order. Default: T. What lies beyond influences
        nothing.
    batch_first : bool, default False
        Whether x and y are (B, T, ...).
    reverse : bool, default False
        Whether each sequence is taken from its last step to its first.

    Returns
    -------
    LSTMStates
        ``(y, h, c)``, of the dtype of x.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.

    Notes
    -----
    A sequence's result is the same, bit for bit, whatever is in the batch beside it, whether its
    steps are taken in one call or many, and for any number of threads.

    References
    ----------
    .. [1] J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer Normalization", 2016.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> parameters = rnn.lstm_init(3, 2, rng=rng)
    >>> y, h, c = rnn.lstm(rng.normal(size=(5, 4, 3)), parameters, lengths=[5, 2, 0, 3])
    >>> y.shape, bool((y[2:, 1] == 0).all()), bool((h[1] == y[1, 1]).all())
    ((5, 4, 2), True, True)
    """
    y, h, c, _ = _forward(
        x, parameters, h, c, norm, variant, eps, lengths, batch_first, reverse, False
    )
    return LSTMStates(y, h, c)


def lstm_forward(
    x: Any,
    parameters: LSTMParameters | LSTMPacked,
    h: Any = None,
    c: Any = None,
    *,
    norm: str | None = "layer",
    variant: str = "paper",
    eps: float = 1e-5,
    lengths: Any = None,
    batch_first: bool = False,
    reverse: bool = False,
) -> LSTMForward:
    """Return the states of `lstm` together with what its backward pass needs.

    Parameters
    ----------
    x, parameters, h, c, norm, variant, eps, lengths, batch_first, reverse
        As for `lstm`.

    Returns
    -------
    LSTMForward
        ``(y, h, c, saved)``.
    """
    return LSTMForward(
        *_forward(x, parameters, h, c, norm, variant, eps, lengths, batch_first, reverse, True)
    )


def _forward(
    x: Any,
    parameters: Any,
    h: Any,
    c: Any,
    norm: Any,
    variant: Any,
    eps: Any,
    lengths: Any,
    batch_first: Any,
    reverse: Any,
    save: bool,
) -> tuple[Any, Any, Any, Any]:
    backend, x = backend_for(x, "x")
    form, scaling = lstm_form(norm, variant), scaling_by(check_eps(eps))
    if len(x.shape) != 3:
        raise ValueError(f"x must have 3 axes, of time, batch and inputs, got {len(x.shape)}")
    dtype = x.dtype
    if check_flag("batch_first", batch_first):
        x = x.swapaxes(0, 1)
    layout = sequence_layout(x.shape[0], x.shape[1], lengths, check_flag("reverse", reverse))
    x = backend.working(x)
    if isinstance(parameters, LSTMPacked):
        parameters, weights = _unpacked(parameters, form, x)
    else:
        given = checked_lstm(parameters, form, x.dtype, x.shape[2])
        weights = backend.lstm_weights(given, form.cell, _ADA_SCALE, _ADA_K, False)
    shape = x.shape[1], weights.weight_h.shape[1]
    first_h, first_c = _state("h", h, shape, x.dtype), _state("c", c, shape, x.dtype)
    rows = layout.rows(x)
    given_h = layout.ordered(first_h)
    state, cell, saved = backend.lstm_forward(
        form.cell, scaling, rows, layout.steps, weights, given_h, layout.ordered(first_c), save
    )
    batch = given_h.shape[0]
    y = layout.padded(state[batch:])
    last_h = layout.restored(state[batch + layout.last], first_h)
    last_c = layout.restored(cell[batch + layout.last] if save else cell, first_c)
    y = y.swapaxes(0, 1) if batch_first else y
    kept = _Saved(
        backend, form, scaling, layout, batch_first, rows, dtype, parameters, weights, saved
    )
    y, last_h, last_c = (a.astype(dtype, copy=False) for a in (y, last_h, last_c))
    return y, last_h, last_c, kept if save else None


def _unpacked(packed: LSTMPacked, form: Form, x: Any) -> tuple[LSTMParameters, Any]:
    """Return the parameters and weights, if they were packed for such a call."""
    if packed.form is not form:
        raise ValueError("parameters must be packed for the same norm and variant")
    if packed.dtype != x.dtype:
        raise ValueError(f"parameters must be packed for {x.dtype}, got those for {packed.dtype}")
    inputs = packed.weights.weight_x.shape[1]
    if x.shape[2] != inputs:
        raise ValueError(f"x must have {inputs} inputs, as weight_x has, got {x.shape[2]}")
    return packed.given, packed.weights


def lstm_pack(
    parameters: LSTMParameters,
    *,
    norm: str | None = "layer",
    variant: str = "paper",
    dtype: Any = np.float32,
) -> LSTMPacked:
    """Return the parameters of an LSTM, checked and packed for many calls.

    `lstm`, `lstm_forward` and `lstm_cell` take the result in place of the parameters. Without
    it they pack them in every call, which for one step of one sequence is most of their time.

    Parameters
    ----------
    parameters : LSTMParameters
        They are copied: what becomes of them afterwards changes nothing.
    norm, variant : str
        As in the calls that will follow.
    dtype : dtype, default float32
        That of the x of those calls; for half precision, float32.

    Returns
    -------
    LSTMPacked

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type, or a wrong shape or value.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> parameters = rnn.lstm_init(3, 2, rng=rng)
    >>> packed = rnn.lstm_pack(parameters)
    >>> x = rng.standard_normal((4, 3), np.float32)
    >>> h, c = rnn.lstm_cell(x, packed)
    >>> bool((h == rnn.lstm_cell(x, parameters).h).all())
    True
    """
    form = lstm_form(norm, variant)
    backend, like = backend_for(np.empty(0, dtype), "dtype")
    like = backend.working(like)
    if not isinstance(parameters, LSTMParameters):
        raise not_lstm_parameters(parameters)
    copied = LSTMParameters(*(None if p is None else np.array(p) for p in parameters))
    shape = copied.weight_x.shape
    given = checked_lstm(copied, form, like.dtype, shape[1] if len(shape) == 2 else 0)
    weights = backend.lstm_weights(given, form.cell, _ADA_SCALE, _ADA_K, True)
    return LSTMPacked(form, copied, backend, like.dtype, weights)


class LSTMState(NamedTuple):
    """The state and the cell of an LSTM after one step.

    Attributes
    ----------
    h, c : array (B, H)
    """

    h: Any
    c: Any


def lstm_cell(
    x: Any,
    parameters: LSTMParameters | LSTMPacked,
    h: Any = None,
    c: Any = None,
    *,
    norm: str | None = "layer",
    variant: str = "paper",
    eps: float = 1e-5,
) -> LSTMState:
    """Take one step of a normalized LSTM: the same bytes as that step of `lstm`.

    Parameters
    ----------
    x : array_like (B, I)
        The input of this step.
    parameters, h, c, norm, variant, eps
        As for `lstm`; `h` and `c` as the step before returned them.

    Returns
    -------
    LSTMState
        ``(h, c)``, of the dtype of x.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> packed = rnn.lstm_pack(rnn.lstm_init(3, 2, rng=rng))
    >>> h = c = None
    >>> for x in rng.standard_normal((10, 1, 3), np.float32):
    ...     h, c = rnn.lstm_cell(x, packed, h, c)
    >>> h.shape
    (1, 2)
    """
    _, x = backend_for(x, "x")
    if len(x.shape) != 2:
        raise ValueError(f"x must have 2 axes, of batch and inputs, got {len(x.shape)}")
    _, h, c, _ = _forward(x[None], parameters, h, c, norm, variant, eps, None, False, False, False)
    return LSTMState(h, c)


def _state(name: str, value: Any, shape: tuple[int, int], dtype: Any) -> Any:
    if value is None:
        return np.zeros(shape, dtype)
    _, array = backend_for(value, name)
    check_shape(name, array.shape, shape, "that of the batch and the units")
    return np.array(array, dtype, order="C")


def lstm_backward(dy: Any, saved: Any, dh: Any = None, dc: Any = None) -> LSTMGradients:
    """Return the gradients of `lstm`, back through all steps.

    Parameters
    ----------
    dy : array_like
        The gradient of the loss with respect to y, of its shape. What lies beyond a sequence's
        length is not looked at.
    saved : object
        As `lstm_forward` returned it.
    dh, dc : array_like (B, H), optional
        Those with respect to the last state and cell, beside that through y. Default: 0.

    Returns
    -------
    LSTMGradients
        ``(dx, dh, dc, parameters)``, of the dtypes of x and of the parameters.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> parameters = rnn.lstm_init(3, 2, rng=rng)
    >>> y, h, c, saved = rnn.lstm_forward(rng.normal(size=(5, 4, 3)), parameters)
    >>> gradients = rnn.lstm_backward(np.ones_like(y), saved)
    >>> gradients.parameters.weight_x.shape, gradients.parameters.weight_x.dtype
    ((8, 3), dtype('float32'))
    """
    if not isinstance(saved, _Saved):
        raise TypeError(
            f"saved must be what lstm_forward returned, got an object of type "
            f"{type(saved).__name__}"
        )
    layout, dtype = saved.layout, saved.dtype
    _, slope = backend_for(dy, "dy")
    width = saved.weights.weight_h.shape[1]
    expected = (layout.time, layout.batch, width)
    if saved.batch_first:
        expected = (layout.batch, layout.time, width)
    check_shape("dy", slope.shape, expected, "that of y")
    slope = slope.swapaxes(0, 1) if saved.batch_first else slope
    slope = np.ascontiguousarray(slope, saved.x.dtype)
    shape = layout.batch, width
    last_h, last_c = _state("dh", dh, shape, slope.dtype), _state("dc", dc, shape, slope.dtype)
    found = saved.backend.lstm_backward(
        saved.form.cell, saved.scaling, saved.x, layout.steps, saved.weights, saved.rows,
        layout.rows(slope), layout.ordered(last_h).copy(), layout.ordered(last_c).copy(),
    )  # fmt: skip
    dx = layout.padded(found.dx)
    dx = dx.swapaxes(0, 1) if saved.batch_first else dx
    first_h, first_c = layout.restored(found.dh, last_h), layout.restored(found.dc, last_c)
    return LSTMGradients(
        dx.astype(dtype, copy=False),
        first_h.astype(dtype, copy=False),
        first_c.astype(dtype, copy=False),
        _parameter_gradients(found, saved.given),
    )


def _parameter_gradients(found: Any, given: LSTMParameters) -> LSTMParameters:
    """Return the gradients of the parameters that there are, in their dtypes and shapes."""
    sources = LSTMParameters(
        found.weight_x, found.weight_h, found.offset, found.gamma_x, found.offset,
        found.gamma_h, found.offset, found.gamma_c, found.beta_c,
    )  # fmt: skip
    values: list[Any] = []
    for gradient, value in zip(sources, given, strict=True):
        if value is None:
            values.append(None)
        else:
            parameter = np.asarray(value)
            kind = parameter.dtype if parameter.dtype.kind != "i" else np.dtype(np.float64)
            values.append(np.asarray(gradient).reshape(parameter.shape).astype(kind))
    return LSTMParameters(*values)
