"""Plain (Elman) recurrent networks with normalization, for sequences and for single steps."""

from typing import Any

import numpy as np

from numnorm.array_types import CellNorm, Nonlinearity, Number
from numnorm.rnn.parameters import RNN, RNNParameters, initial
from numnorm.rnn.passes import Options, Packed, backward, forward, pack, step
from numnorm.rnn.results import RNNCellForward, RNNForward, RNNGradients, RNNStates
from numnorm.rnn.specs import rnn_spec


def rnn(
    x: Any,
    parameters: RNNParameters | Packed,
    h: Any = None,
    *,
    norm: CellNorm | None = "layer",
    nonlinearity: Nonlinearity = "tanh",
    eps: Number = 1e-5,
    lengths: Any = None,
    batch_first: bool = False,
    reverse: bool = False,
    dropout: Number = 0.0,
    recurrent_dropout: Number = 0.0,
    zoneout: Number = 0.0,
    rng: np.random.Generator | None = None,
) -> RNNStates:
    r"""Run a normalized plain recurrent network over sequences.

    .. math::

        h_t = f(N(W_h h_{t-1} + W_x x_t; \gamma, \beta) + b)

    with N the norm and f the nonlinearity [1]_.

    Parameters
    ----------
    x : array_like (T, B, I) or (T, I)
        T steps of B sequences; float16, bfloat16, float32 or float64. Half precision is computed
        in float32. Integers and bool become float64. With (T, I), one sequence, every array lacks
        the axis of the batch: the states are (H,), and y is (T, H).
    parameters : RNNParameters or Packed
        Of any float dtype; used in that of x. `rnn_pack` packs them for many calls.
    h : array_like (B, H), optional
        The state before the first step. Default: 0.
    norm : {"layer", "rms", "ada", None}, default "layer"
        The norm N; None leaves it out.
    nonlinearity : {"tanh", "relu"}, default "tanh"
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
    zoneout : float, default 0
        The probability, between 0 and 1, with which a step keeps an element of the state as it
        was [2]_.
    rng : numpy.random.Generator, optional
        Draws the masks, for training; without it each step takes zoneout's expected value, as in
        inference. Dropout keeps the elements of x where ``rng.random((B, I), np.float32)``, and
        then those of the state where ``rng.random((B, H), np.float32)``, is at least the
        probability. Then zoneout keeps the old state where ``rng.random((T, B, H), np.float32)``,
        for the steps of x in order, is below the probability.

    Returns
    -------
    RNNStates
        ``(y, h)``, of the dtype of x.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape or value.

    Notes
    -----
    The result of a sequence is the same, bit for bit, whatever the other sequences of the batch,
    in one call or several, and for any number of threads. In half precision a call rounds the
    states that it returns, so that several calls differ from one.

    Arrays of a CUDA device are accepted as by `lstm`, with the same limit on the units. There the
    last bits of a sequence's result may depend on the other sequences, and on how its steps are
    divided among calls.

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
    >>> parameters = rnn.rnn_init(3, 2, rng=rng)
    >>> y, h = rnn.rnn(rng.normal(size=(5, 4, 3)), parameters, lengths=[5, 2, 0, 3])
    >>> y.shape, bool((y[2:, 1] == 0).all()), bool((h[1] == y[1, 1]).all())
    ((5, 4, 2), True, True)
    """
    options = Options(eps, lengths, batch_first, reverse, zoneout, rng, dropout, recurrent_dropout)
    return RNNStates(*forward(RNN, rnn_spec(norm, nonlinearity), x, parameters, (h,), options))


def rnn_forward(
    x: Any,
    parameters: RNNParameters | Packed,
    h: Any = None,
    *,
    norm: CellNorm | None = "layer",
    nonlinearity: Nonlinearity = "tanh",
    eps: Number = 1e-5,
    lengths: Any = None,
    batch_first: bool = False,
    reverse: bool = False,
    dropout: Number = 0.0,
    recurrent_dropout: Number = 0.0,
    zoneout: Number = 0.0,
    rng: np.random.Generator | None = None,
) -> RNNForward:
    """Return the states of `rnn` together with what its backward pass needs.

    Parameters
    ----------
    x, parameters, h, norm, nonlinearity, eps, lengths, batch_first, reverse
        As for `rnn`.
    dropout, recurrent_dropout, zoneout, rng
        As for `rnn`.

    Returns
    -------
    RNNForward
        ``(y, h, saved)``.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> parameters = rnn.rnn_init(3, 2, rng=rng)
    >>> y, h, saved = rnn.rnn_forward(rng.normal(size=(5, 4, 3)), parameters)
    >>> y.shape, h.shape
    ((5, 4, 2), (4, 2))
    """
    options = Options(eps, lengths, batch_first, reverse, zoneout, rng, dropout, recurrent_dropout)
    return RNNForward(
        *forward(RNN, rnn_spec(norm, nonlinearity), x, parameters, (h,), options, save=True)
    )


def rnn_backward(dy: Any, saved: Any, dh: Any = None) -> RNNGradients:
    """Return the gradients of `rnn`, back through all steps.

    Parameters
    ----------
    dy : array_like or None
        The gradient of the loss with respect to y, of the shape of y. Elements beyond a
        sequence's length are ignored. None stands for 0, for a loss of the last states alone.
    saved : object
        As `rnn_forward` returned it.
    dh : array_like (B, H), optional
        The gradient with respect to the last state, which adds to that through y. Default: 0.

    Returns
    -------
    RNNGradients
        ``(dx, dh, parameters)``, of the dtypes of x and of the parameters.

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> parameters = rnn.rnn_init(3, 2, rng=rng)
    >>> y, h, saved = rnn.rnn_forward(rng.normal(size=(5, 4, 3)), parameters)
    >>> rnn.rnn_backward(np.ones_like(y), saved).dx.shape
    (5, 4, 3)
    """
    return RNNGradients(*backward(RNN, "rnn_forward", dy, saved, (dh,)))


def rnn_cell(
    x: Any,
    parameters: RNNParameters | Packed,
    h: Any = None,
    *,
    norm: CellNorm | None = "layer",
    nonlinearity: Nonlinearity = "tanh",
    eps: Number = 1e-5,
    dropout: Number = 0.0,
    recurrent_dropout: Number = 0.0,
    zoneout: Number = 0.0,
    rng: np.random.Generator | None = None,
) -> Any:
    """Take one step of a normalized plain recurrent network: the same bytes as that step of `rnn`.

    In half precision the states are rounded after each step; `rnn` does not round between steps.

    Parameters
    ----------
    x : array_like (B, I) or (I,)
        The input of this step. With (I,), the states are (H,).
    parameters, h, norm, nonlinearity, eps
        As for `rnn`; `h` as the step before returned it.
    dropout, recurrent_dropout, zoneout, rng
        As for `rnn`.

    Returns
    -------
    array (B, H)
        The new state, of the dtype of x.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> packed = rnn.rnn_pack(rnn.rnn_init(3, 2, rng=rng))
    >>> h = None
    >>> for x in rng.standard_normal((10, 1, 3), np.float32):
    ...     h = rnn.rnn_cell(x, packed, h)
    >>> h.shape
    (1, 2)
    """
    options = eps, zoneout, rng, dropout, recurrent_dropout
    return step(RNN, rnn_spec, (norm, nonlinearity), x, parameters, (h,), options)[0]


def rnn_cell_forward(
    x: Any,
    parameters: RNNParameters | Packed,
    h: Any = None,
    *,
    norm: CellNorm | None = "layer",
    nonlinearity: Nonlinearity = "tanh",
    eps: Number = 1e-5,
    dropout: Number = 0.0,
    recurrent_dropout: Number = 0.0,
    zoneout: Number = 0.0,
    rng: np.random.Generator | None = None,
) -> RNNCellForward:
    """Return the state of `rnn_cell` together with what its backward pass needs.

    Parameters
    ----------
    x, parameters, h, norm, nonlinearity, eps
        As for `rnn_cell`.
    dropout, recurrent_dropout, zoneout, rng
        As for `rnn_cell`.

    Returns
    -------
    RNNCellForward
        ``(h, saved)``.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> parameters = rnn.rnn_init(3, 2, rng=rng)
    >>> h, saved = rnn.rnn_cell_forward(rng.normal(size=(4, 3)), parameters)
    >>> h.shape
    (4, 2)
    """
    options = Options(
        eps, zoneout=zoneout, rng=rng, dropout=dropout, recurrent_dropout=recurrent_dropout
    )
    spec = rnn_spec(norm, nonlinearity)
    result = forward(RNN, spec, x, parameters, (h,), options, save=True, single=True)
    return RNNCellForward(*result)


def rnn_cell_backward(dh: Any, saved: Any) -> RNNGradients:
    """Return the gradients of `rnn_cell`.

    Parameters
    ----------
    dh : array_like (B, H) or None
        The gradient of the loss with respect to the new state. None stands for 0.
    saved : object
        As `rnn_cell_forward` returned it.

    Returns
    -------
    RNNGradients
        ``(dx, dh, parameters)``; dx is (B, I).

    Raises
    ------
    TypeError, ValueError
        If an argument has an unsupported type or dtype, or a wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> parameters = rnn.rnn_init(3, 2, rng=rng)
    >>> h, saved = rnn.rnn_cell_forward(rng.normal(size=(4, 3)), parameters)
    >>> rnn.rnn_cell_backward(np.ones_like(h), saved).dx.shape
    (4, 3)
    """
    gradients = backward(RNN, "rnn_cell_forward", dh, saved, (None,), single=True)
    return RNNGradients(*gradients)


def rnn_pack(
    parameters: RNNParameters,
    *,
    norm: CellNorm | None = "layer",
    nonlinearity: Nonlinearity = "tanh",
    dtype: Any = np.float32,
) -> Packed:
    """Return the parameters, checked and packed for many calls, as `lstm_pack` does.

    Parameters
    ----------
    parameters : RNNParameters
        They are copied, on their device: later changes of them have no effect.
    norm, nonlinearity : str
        As in the later calls.
    dtype : dtype, default float32
        The dtype of x in these calls; float32 if x is in half precision.

    Returns
    -------
    Packed

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> packed = rnn.rnn_pack(rnn.rnn_init(3, 2, rng=rng))
    >>> packed
    Packed(rnn, 3 inputs, 2 units, float32)
    >>> rnn.rnn_cell(rng.standard_normal((4, 3), np.float32), packed).shape
    (4, 2)
    """
    return pack(RNN, rnn_spec(norm, nonlinearity), parameters, dtype)


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
    parameters: RNNParameters = initial(RNN, rnn_spec(norm, "tanh"), inputs, hidden, rng, dtype)
    return parameters
