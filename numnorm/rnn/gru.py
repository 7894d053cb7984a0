"""Gated recurrent units with normalization, for sequences and for single steps."""

from typing import Any

import numpy as np

from numnorm.array_types import CellNorm, Number
from numnorm.rnn.parameters import GRU, GRUParameters, initial
from numnorm.rnn.passes import Options, Packed, backward, forward, pack, step
from numnorm.rnn.results import GRUCellForward, GRUForward, GRUGradients, GRUStates
from numnorm.rnn.specs import gru_spec


def gru(
    x: Any,
    parameters: GRUParameters | Packed,
    h: Any = None,
    *,
    norm: CellNorm | None = "layer",
    reset_after: bool = True,
    eps: Number = 1e-5,
    lengths: Any = None,
    batch_first: bool = False,
    reverse: bool = False,
    dropout: Number = 0.0,
    recurrent_dropout: Number = 0.0,
    zoneout: Number = 0.0,
    rng: np.random.Generator | None = None,
) -> GRUStates:
    r"""Run a normalized gated recurrent unit over sequences.

    .. math::

        (z, r) &= N(W_h h_{t-1}; \gamma_h, \beta_h) + N(W_x x_t; \gamma_x, \beta_x) + b \\
        \hat h &= \tanh(N(W x_t; \gamma_x, \beta_x) + b
            + \sigma(r) (N(U h_{t-1}; \gamma_h, \beta_h) + b_h)) \\
        h_t &= (1 - \sigma(z)) \, h_{t-1} + \sigma(z) \, \hat h

    with N the norm of each product, over z and r as one row and over the new state as another
    [1]_.

    Parameters
    ----------
    x : array_like (T, B, I) or (T, I)
        T steps of B sequences; float16, bfloat16, float32 or float64. Half precision is computed
        in float32. Integers and bool become float64. With (T, I), one sequence, every array lacks
        the axis of the batch: the states are (H,), and y is (T, H).
    parameters : GRUParameters or Packed
        Of any float dtype; used in that of x. `gru_pack` packs them for many calls.
    h : array_like (B, H), optional
        The state before the first step. Default: 0.
    norm : {"layer", "rms", "ada", None}, default "layer"
        The norm N; None leaves it out.
    reset_after : bool, default True
        Whether the gate r scales the product with the state, as PyTorch does; else it
        scales the state before the product, as in the original paper [2]_:
        :math:`\hat h = \tanh(N(W x_t; \gamma_x, \beta_x) + b
        + N(U (\sigma(r) h_{t-1}); \gamma_h, \beta_h) + b_h)`. Keras has this option, and ONNX as
        ``linear_before_reset``, which is 0 by default. Arrays of a device need True.
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
        The probability with which an element of x, and of the state in its product with W_h and U,
        is zeroed in all steps of a call; the others are divided by 1 minus the probability
        [4]_. They need an `rng`; 0 is for inference.
    zoneout : float, default 0
        The probability, between 0 and 1, with which a step keeps an element of the state as it
        was [3]_.
    rng : numpy.random.Generator, optional
        Draws the masks, for training; without it each step takes zoneout's expected value, as in
        inference. Dropout keeps the elements of x where ``rng.random((B, I), np.float32)``, and
        then those of the state where ``rng.random((B, H), np.float32)``, is at least the
        probability. Then zoneout keeps the old state where ``rng.random((T, B, H), np.float32)``,
        for the steps of x in order, is below the probability.

    Returns
    -------
    GRUStates
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

    PyTorch, Keras and ONNX define z as 1 - σ(z): `gru_from_torch` and its like flip the signs.

    References
    ----------
    .. [1] J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer Normalization", 2016,
       as used for order embeddings and skip-thoughts.
    .. [2] K. Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder for
       Statistical Machine Translation", EMNLP 2014.
    .. [3] D. Krueger et al., "Zoneout: Regularizing RNNs by Randomly Preserving Hidden
       Activations", ICLR 2017.
    .. [4] Y. Gal, Z. Ghahramani, "A Theoretically Grounded Application of Dropout in Recurrent
       Neural Networks", NeurIPS 2016.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> parameters = rnn.gru_init(3, 2, rng=rng)
    >>> y, h = rnn.gru(rng.normal(size=(5, 4, 3)), parameters, lengths=[5, 2, 0, 3])
    >>> y.shape, bool((y[2:, 1] == 0).all()), bool((h[1] == y[1, 1]).all())
    ((5, 4, 2), True, True)
    """
    options = Options(eps, lengths, batch_first, reverse, zoneout, rng, dropout, recurrent_dropout)
    return GRUStates(*forward(GRU, gru_spec(norm, reset_after), x, parameters, (h,), options))


def gru_forward(
    x: Any,
    parameters: GRUParameters | Packed,
    h: Any = None,
    *,
    norm: CellNorm | None = "layer",
    reset_after: bool = True,
    eps: Number = 1e-5,
    lengths: Any = None,
    batch_first: bool = False,
    reverse: bool = False,
    dropout: Number = 0.0,
    recurrent_dropout: Number = 0.0,
    zoneout: Number = 0.0,
    rng: np.random.Generator | None = None,
) -> GRUForward:
    """Return the states of `gru` together with what its backward pass needs.

    Parameters
    ----------
    x, parameters, h, norm, reset_after, eps, lengths, batch_first, reverse
        As for `gru`.
    dropout, recurrent_dropout, zoneout, rng
        As for `gru`.

    Returns
    -------
    GRUForward
        ``(y, h, saved)``.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> parameters = rnn.gru_init(3, 2, rng=rng)
    >>> y, h, saved = rnn.gru_forward(rng.normal(size=(5, 4, 3)), parameters)
    >>> y.shape, h.shape
    ((5, 4, 2), (4, 2))
    """
    options = Options(eps, lengths, batch_first, reverse, zoneout, rng, dropout, recurrent_dropout)
    return GRUForward(
        *forward(GRU, gru_spec(norm, reset_after), x, parameters, (h,), options, save=True)
    )


def gru_backward(dy: Any, saved: Any, dh: Any = None) -> GRUGradients:
    """Return the gradients of `gru`, back through all steps.

    Parameters
    ----------
    dy : array_like or None
        The gradient of the loss with respect to y, of the shape of y. Elements beyond a
        sequence's length are ignored. None stands for 0, for a loss of the last states alone.
    saved : object
        As `gru_forward` returned it.
    dh : array_like (B, H), optional
        The gradient with respect to the last state, which adds to that through y. Default: 0.

    Returns
    -------
    GRUGradients
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
    >>> parameters = rnn.gru_init(3, 2, rng=rng)
    >>> y, h, saved = rnn.gru_forward(rng.normal(size=(5, 4, 3)), parameters)
    >>> rnn.gru_backward(np.ones_like(y), saved).dx.shape
    (5, 4, 3)
    """
    return GRUGradients(*backward(GRU, "gru_forward", dy, saved, (dh,)))


def gru_cell(
    x: Any,
    parameters: GRUParameters | Packed,
    h: Any = None,
    *,
    norm: CellNorm | None = "layer",
    reset_after: bool = True,
    eps: Number = 1e-5,
    dropout: Number = 0.0,
    recurrent_dropout: Number = 0.0,
    zoneout: Number = 0.0,
    rng: np.random.Generator | None = None,
) -> Any:
    """Take one step of a normalized gated recurrent unit: the same bytes as that step of `gru`.

    In half precision the states are rounded after each step; `gru` does not round between steps.

    Parameters
    ----------
    x : array_like (B, I) or (I,)
        The input of this step. With (I,), the states are (H,).
    parameters, h, norm, reset_after, eps
        As for `gru`; `h` as the step before returned it.
    dropout, recurrent_dropout, zoneout, rng
        As for `gru`.

    Returns
    -------
    array (B, H)
        The new state, of the dtype of x.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> packed = rnn.gru_pack(rnn.gru_init(3, 2, rng=rng))
    >>> h = None
    >>> for x in rng.standard_normal((10, 1, 3), np.float32):
    ...     h = rnn.gru_cell(x, packed, h)
    >>> h.shape
    (1, 2)
    """
    options = eps, zoneout, rng, dropout, recurrent_dropout
    return step(GRU, gru_spec, (norm, reset_after), x, parameters, (h,), options)[0]


def gru_cell_forward(
    x: Any,
    parameters: GRUParameters | Packed,
    h: Any = None,
    *,
    norm: CellNorm | None = "layer",
    reset_after: bool = True,
    eps: Number = 1e-5,
    dropout: Number = 0.0,
    recurrent_dropout: Number = 0.0,
    zoneout: Number = 0.0,
    rng: np.random.Generator | None = None,
) -> GRUCellForward:
    """Return the state of `gru_cell` together with what its backward pass needs.

    Parameters
    ----------
    x, parameters, h, norm, reset_after, eps
        As for `gru_cell`.
    dropout, recurrent_dropout, zoneout, rng
        As for `gru_cell`.

    Returns
    -------
    GRUCellForward
        ``(h, saved)``.

    Examples
    --------
    >>> import numpy as np
    >>> from numnorm import rnn
    >>> rng = np.random.default_rng(0)
    >>> parameters = rnn.gru_init(3, 2, rng=rng)
    >>> h, saved = rnn.gru_cell_forward(rng.normal(size=(4, 3)), parameters)
    >>> h.shape
    (4, 2)
    """
    options = Options(
        eps, zoneout=zoneout, rng=rng, dropout=dropout, recurrent_dropout=recurrent_dropout
    )
    spec = gru_spec(norm, reset_after)
    result = forward(GRU, spec, x, parameters, (h,), options, save=True, single=True)
    return GRUCellForward(*result)


def gru_cell_backward(dh: Any, saved: Any) -> GRUGradients:
    """Return the gradients of `gru_cell`.

    Parameters
    ----------
    dh : array_like (B, H) or None
        The gradient of the loss with respect to the new state. None stands for 0.
    saved : object
        As `gru_cell_forward` returned it.

    Returns
    -------
    GRUGradients
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
    >>> parameters = rnn.gru_init(3, 2, rng=rng)
    >>> h, saved = rnn.gru_cell_forward(rng.normal(size=(4, 3)), parameters)
    >>> rnn.gru_cell_backward(np.ones_like(h), saved).dx.shape
    (4, 3)
    """
    gradients = backward(GRU, "gru_cell_forward", dh, saved, (None,), single=True)
    return GRUGradients(*gradients)


def gru_pack(
    parameters: GRUParameters,
    *,
    norm: CellNorm | None = "layer",
    reset_after: bool = True,
    dtype: Any = np.float32,
) -> Packed:
    """Return the parameters, checked and packed for many calls, as `lstm_pack` does.

    Parameters
    ----------
    parameters : GRUParameters
        They are copied, on their device: later changes of them have no effect.
    norm, reset_after
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
    >>> packed = rnn.gru_pack(rnn.gru_init(3, 2, rng=rng))
    >>> packed
    Packed(gru, 3 inputs, 2 units, float32)
    >>> rnn.gru_cell(rng.standard_normal((4, 3), np.float32), packed).shape
    (4, 2)
    """
    return pack(GRU, gru_spec(norm, reset_after), parameters, dtype)


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
    parameters: GRUParameters = initial(GRU, gru_spec(norm), inputs, hidden, rng, dtype)
    return parameters
