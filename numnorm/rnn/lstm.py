"""Long short-term memory with normalization, for sequences and for single steps."""

from typing import Any

import numpy as np

from numnorm.array_types import LSTMNorm, LSTMVariant, Number
from numnorm.rnn.batch_statistics import RecurrentBatchNorm
from numnorm.rnn.parameters import LSTM, LSTMParameters, ProjectedLSTMParameters, initial
from numnorm.rnn.passes import Options, Packed, backward, forward, pack, step
from numnorm.rnn.results import LSTMCellForward, LSTMForward, LSTMGradients, LSTMState, LSTMStates
from numnorm.rnn.specs import Spec, lstm_spec


def _spec(norm: Any, variant: Any) -> Spec:
    if isinstance(norm, RecurrentBatchNorm):
        return lstm_spec("batch", variant)._replace(batch=norm)
    return lstm_spec(norm, variant)


def lstm(
    x: Any,
    parameters: LSTMParameters | ProjectedLSTMParameters | Packed,
    h: Any = None,
    c: Any = None,
    *,
    norm: LSTMNorm | RecurrentBatchNorm | None = "layer",
    variant: LSTMVariant = "paper",
    eps: Number = 1e-5,
    lengths: Any = None,
    batch_first: bool = False,
    reverse: bool = False,
    dropout: Number = 0.0,
    recurrent_dropout: Number = 0.0,
    zoneout: Number | tuple[Number, Number] = 0.0,
    rng: np.random.Generator | None = None,
) -> LSTMStates:
    r"""Run a normalized LSTM over sequences.

    .. math::

        (f, i, o, g) &= N(W_h h_{t-1}; \gamma_h, \beta_h) + N(W_x x_t; \gamma_x, \beta_x) + b \\
        c_t &= \sigma(f) \, c_{t-1} + \sigma(i) \tanh(g) \\
        h_t &= \sigma(o) \tanh(N(c_t; \gamma_c, \beta_c))

    with N the norm, over all four gates together [1]_.

    Parameters
    ----------
    x : array_like (T, B, I) or (T, I)
        T steps of B sequences; float16, bfloat16, float32 or float64. Half precision is computed
        in float32. Integers and bool become float64. With (T, I), one sequence, every array lacks
        the axis of the batch: the states are (H,), and y is (T, H).
    parameters : LSTMParameters, ProjectedLSTMParameters or Packed
        Of any float dtype; used in that of x. `lstm_pack` packs them for many calls. With
        projections, h and y have P elements, not H; zoneout and `recurrent_dropout` must be 0, and
        arrays of a device are not accepted.
    h, c : array_like (B, H), optional
        The state and the cell before the first step. Default: 0.
    norm : {"layer", "rms", "ada", "batch", None} or RecurrentBatchNorm, default "layer"
        "batch" normalizes each feature of each step over the batch; `RecurrentBatchNorm` also has
        running statistics. None is the LSTM of Hochreiter and Schmidhuber, with forget gates.
    variant : {"paper", "normalized_cell", "per_gate", "cell_only"}, default "paper"
        "normalized_cell" passes the normalized cell to the next step, as PyTorch's fastrnns and
        TensorFlow Addons do. "per_gate" normalizes each gate of :math:`W_h h + W_x x` separately.
        "cell_only" normalizes only the cell, as in the paper's DRAW.
    eps : float, default 1e-5
        Added to the variance.
    lengths : array_like of int (B,), optional
        The number of steps of each sequence, in any order. Default: T. Elements of x beyond a
        sequence's length are ignored.
    batch_first : bool, default False
        Whether x and y are (B, T, ...).
    reverse : bool, default False
        Whether to process each sequence from its last step to its first.
    dropout, recurrent_dropout : float, default 0
        The probability with which an element of x, and of the state in its product with W_h,
        is zeroed in all steps of a call; the others are divided by 1 minus the probability
        [3]_. They need an `rng`; 0 is for inference.
    zoneout : float or pair of float, default 0
        The probability, between 0 and 1, with which a step keeps an element of the state, and of
        the cell, as it was [2]_.
    rng : numpy.random.Generator, optional
        Draws the masks, for training; without it each step takes zoneout's expected value, as in
        inference. Dropout keeps the elements of x where ``rng.random((B, I), np.float32)``, and
        then those of the state where ``rng.random((B, H), np.float32)``, is at least the
        probability. Then zoneout keeps the old state where
        ``rng.random((T, 2, B, H), np.float32)``, for h and then for c of each step of x, is below
        the probability.

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
    The result of a sequence is the same, bit for bit, whatever the other sequences of the batch,
    in one call or several, and for any number of threads; except with batch norm over the
    statistics of the batch. In half precision a call rounds the states that it returns, so that
    several calls differ from one.

    Arrays of a CUDA device are accepted, too: all of them, including running statistics, must
    belong to one library and one device, but `lengths` to the host. That library computes the
    matrix products (CuPy for Numba's arrays), and may round a row differently in another batch;
    where all steps fit one kernel (`persistent_kernels`), that kernel computes those with the
    state. So on a device the last bits of a sequence's result may depend on the other sequences,
    and on how its steps are divided among calls.

    With drawn zoneout masks, an `rng` in the same state gives the same result for any padding T and
    `lengths`, in one call or, from the first step to the last, in several. The masks of a sequence
    depend on the number of sequences and on its index among them. They are drawn on the host for
    arrays of a device, too. Dropout masks are drawn again in every call. Arrays of a device need a
    `recurrent_dropout` of 0.

    References
    ----------
    .. [1] J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer Normalization", 2016.
    .. [2] D. Krueger et al., "Zoneout: Regularizing RNNs by Randomly Preserving Hidden
       Activations", ICLR 2017.
    .. [3] Y. Gal, Z. Ghahramani, "A Theoretically Grounded Application of Dropout in Recurrent
       Neural Networks", NeurIPS 2016.

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
    options = Options(eps, lengths, batch_first, reverse, zoneout, rng, dropout, recurrent_dropout)
    return LSTMStates(*forward(LSTM, _spec(norm, variant), x, parameters, (h, c), options))


def lstm_forward(
    x: Any,
    parameters: LSTMParameters | ProjectedLSTMParameters | Packed,
    h: Any = None,
    c: Any = None,
    *,
    norm: LSTMNorm | RecurrentBatchNorm | None = "layer",
    variant: LSTMVariant = "paper",
    eps: Number = 1e-5,
    lengths: Any = None,
    batch_first: bool = False,
    reverse: bool = False,
    dropout: Number = 0.0,
    recurrent_dropout: Number = 0.0,
    zoneout: Number | tuple[Number, Number] = 0.0,
    rng: np.random.Generator | None = None,
) -> LSTMForward:
    """Return the states of `lstm` together with what its backward pass needs.

    Parameters
    ----------
    x, parameters, h, c, norm, variant, eps, lengths, batch_first, reverse
        As for `lstm`.
    dropout, recurrent_dropout, zoneout, rng
        As for `lstm`.

    Returns
    -------
    LSTMForward
        ``(y, h, c, saved)``.

    Examples
    --------
    >>> from numnorm import rnn
    >>> parameters = rnn.LSTMParameters([[1.0]] * 4, [[0.5]] * 4)
    >>> y, h, c, saved = rnn.lstm_forward([[[1.0]]], parameters, norm=None)
    >>> rnn.lstm_backward([[[1.0]]], saved).dx.round(3)
    array([[[0.348]]])
    """
    options = Options(eps, lengths, batch_first, reverse, zoneout, rng, dropout, recurrent_dropout)
    return LSTMForward(
        *forward(LSTM, _spec(norm, variant), x, parameters, (h, c), options, save=True)
    )


def lstm_backward(dy: Any, saved: Any, dh: Any = None, dc: Any = None) -> LSTMGradients:
    """Return the gradients of `lstm`, back through all steps.

    Parameters
    ----------
    dy : array_like or None
        The gradient of the loss with respect to y, of the shape of y. Elements beyond a
        sequence's length are ignored. None stands for 0, for a loss of the last states alone.
    saved : object
        As `lstm_forward` returned it.
    dh, dc : array_like (B, H), optional
        Gradients with respect to the last state and cell, which add to that through y. Default: 0.

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
    return LSTMGradients(*backward(LSTM, "lstm_forward", dy, saved, (dh, dc)))


def lstm_cell(
    x: Any,
    parameters: LSTMParameters | ProjectedLSTMParameters | Packed,
    h: Any = None,
    c: Any = None,
    *,
    norm: LSTMNorm | RecurrentBatchNorm | None = "layer",
    variant: LSTMVariant = "paper",
    eps: Number = 1e-5,
    dropout: Number = 0.0,
    recurrent_dropout: Number = 0.0,
    zoneout: Number | tuple[Number, Number] = 0.0,
    rng: np.random.Generator | None = None,
) -> LSTMState:
    """Take one step of a normalized LSTM: the same bytes as that step of `lstm`.

    In half precision the states are rounded after each step; `lstm` does not round between steps.

    Parameters
    ----------
    x : array_like (B, I) or (I,)
        The input of this step. With (I,), the states are (H,).
    parameters, h, c, norm, variant, eps
        As for `lstm`; `h` and `c` as the step before returned them.
    dropout, recurrent_dropout, zoneout, rng
        As for `lstm`.

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
    options = eps, zoneout, rng, dropout, recurrent_dropout
    return LSTMState(*step(LSTM, _spec, (norm, variant), x, parameters, (h, c), options))


def lstm_cell_forward(
    x: Any,
    parameters: LSTMParameters | ProjectedLSTMParameters | Packed,
    h: Any = None,
    c: Any = None,
    *,
    norm: LSTMNorm | RecurrentBatchNorm | None = "layer",
    variant: LSTMVariant = "paper",
    eps: Number = 1e-5,
    dropout: Number = 0.0,
    recurrent_dropout: Number = 0.0,
    zoneout: Number | tuple[Number, Number] = 0.0,
    rng: np.random.Generator | None = None,
) -> LSTMCellForward:
    """Return the state of `lstm_cell` together with what its backward pass needs.

    Parameters
    ----------
    x, parameters, h, c, norm, variant, eps
        As for `lstm_cell`.
    dropout, recurrent_dropout, zoneout, rng
        As for `lstm_cell`.

    Returns
    -------
    LSTMCellForward
        ``(h, c, saved)``.

    Examples
    --------
    >>> from numnorm import rnn
    >>> parameters = rnn.LSTMParameters([[1.0]] * 4, [[0.5]] * 4)
    >>> h, c, saved = rnn.lstm_cell_forward([[1.0]], parameters, norm=None)
    >>> rnn.lstm_cell_backward([[1.0]], saved).dx.round(3)
    array([[0.348]])
    """
    options = Options(
        eps, zoneout=zoneout, rng=rng, dropout=dropout, recurrent_dropout=recurrent_dropout
    )
    spec = _spec(norm, variant)
    result = forward(LSTM, spec, x, parameters, (h, c), options, save=True, single=True)
    return LSTMCellForward(*result)


def lstm_cell_backward(dh: Any, saved: Any, dc: Any = None) -> LSTMGradients:
    """Return the gradients of `lstm_cell`.

    Parameters
    ----------
    dh : array_like (B, H) or None
        The gradient of the loss with respect to the new state. None stands for 0.
    saved : object
        As `lstm_cell_forward` returned it.
    dc : array_like (B, H), optional
        The gradient with respect to the new cell, which adds to that through the state. Default: 0.

    Returns
    -------
    LSTMGradients
        ``(dx, dh, dc, parameters)``; dx is (B, I).

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
    >>> h, c, saved = rnn.lstm_cell_forward(rng.normal(size=(4, 3)), parameters)
    >>> rnn.lstm_cell_backward(np.ones_like(h), saved).dx.shape
    (4, 3)
    """
    gradients = backward(LSTM, "lstm_cell_forward", dh, saved, (None, dc), single=True)
    return LSTMGradients(*gradients)


def lstm_pack(
    parameters: LSTMParameters | ProjectedLSTMParameters,
    *,
    norm: LSTMNorm | None = "layer",
    variant: LSTMVariant = "paper",
    dtype: Any = np.float32,
) -> Packed:
    """Return the parameters of an LSTM, checked and packed for many calls.

    `lstm`, `lstm_forward` and `lstm_cell` take the result in place of the parameters, which they
    otherwise pack in every call; for a single step of one sequence that takes most of the time.
    x must be where the parameters are: on the host, or on the same device.

    Parameters
    ----------
    parameters : LSTMParameters or ProjectedLSTMParameters
        They are copied, on their device: later changes of them have no effect.
    norm, variant : str
        As in the later calls.
    dtype : dtype, default float32
        The dtype of x in these calls; float32 if x is in half precision.

    Returns
    -------
    Packed

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
    return pack(LSTM, lstm_spec(norm, variant), parameters, dtype)


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
    return initial(LSTM, spec, inputs, hidden, rng, dtype, proj_size)
