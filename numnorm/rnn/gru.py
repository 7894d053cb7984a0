"""Gated recurrent units with normalization, for whole sequences and one step at a time."""

from typing import Any

import numpy as np

from numnorm.rnn.parameters import GRU, GRUParameters
from numnorm.rnn.passes import Options, Packed, backward, forward, pack
from numnorm.rnn.results import GRUCellForward, GRUForward, GRUGradients, GRUStates
from numnorm.rnn.specs import gru_spec


def gru(
    x: Any,
    parameters: GRUParameters | Packed,
    h: Any = None,
    *,
    norm: str | None = "layer",
    eps: float = 1e-5,
    lengths: Any = None,
    batch_first: bool = False,
    reverse: bool = False,
    zoneout: float = 0.0,
    rng: np.random.Generator | None = None,
) -> GRUStates:
    r"""Run a normalized gated recurrent unit over sequences.

    .. math::

        (z, r) &= N(W_h h_{t-1}; \gamma_h, \beta_h) + N(W_x x_t; \gamma_x, \beta_x) + b \\
        \hat h &= \tanh(N(W x_t; \gamma_x, \beta_x) + b
            + \sigma(r) (N(U h_{t-1}; \gamma_h, \beta_h) + b_h)) \\
        h_t &= (1 - \sigma(z)) \, h_{t-1} + \sigma(z) \, \hat h

    with N the norm, over both gates together, and over the rest, each product by itself [1]_.

    Parameters
    ----------
    x : array_like (T, B, I)
        T steps of B sequences; float16, bfloat16, float32 or float64. Half precision is computed
        in float32. Integers and bool become float64.
    parameters : GRUParameters or Packed
        Of any float dtype; used in that of x. `gru_pack` packs them for many calls.
    h : array_like (B, H), optional
        The state before the first step. Default: 0.
    norm : {"layer", "rms", "ada", None}, default "layer"
        Which norm N is; None leaves it out.
    eps : float, default 1e-5
        Added to the variance.
    lengths : array_like of int (B,), optional
        How many steps each sequence has, in any order. Default: T. What lies beyond influences
        nothing.
    batch_first : bool, default False
        Whether x and y are (B, T, ...).
    reverse : bool, default False
        Whether each sequence is taken from its last step to its first.
    zoneout : float, default 0
        The probability, between 0 and 1, with which a step keeps an element of the state as it
        was [2]_.
    rng : numpy.random.Generator, optional
        Draws what is kept, for training; without it each step takes the expected value, as
        trained networks do. Kept is what ``rng.random((T, B, H), np.float32)``, for the steps
        of x in turn, has below the probability.

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
    A sequence's result is the same, bit for bit, whatever is in the batch beside it, whether its
    steps are taken in one call or many, and for any number of threads. In half precision a call
    rounds the states that it returns: there many calls differ from one.

    Arrays of a CUDA device are taken too, as by `lstm`: there the last bits of a sequence's result
    may depend on what is beside it, and on how its steps are divided among calls, and there are as
    many units at most.

    With drawn zoneout, too, the same `rng`, in the same state, gives the same result, in one call
    or, first to last step, in many, whatever the padding T and `lengths`: but a sequence's draws
    depend on the number of sequences and on its place among them. They are drawn on the host for
    arrays of a device, too.

    PyTorch, Keras and ONNX call 1 - σ(z) their z: `gru_from_torch` turns signs.

    References
    ----------
    .. [1] J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer Normalization", 2016,
       as used for order embeddings and skip-thoughts.
    .. [2] D. Krueger et al., "Zoneout: Regularizing RNNs by Randomly Preserving Hidden
       Activations", ICLR 2017.

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
    options = Options(eps, lengths, batch_first, reverse, zoneout, rng)
    spec = gru_spec(norm)
    y, (h,), _ = forward(GRU, spec, x, parameters, (h,), options, save=False)
    return GRUStates(y, h)


def gru_forward(
    x: Any,
    parameters: GRUParameters | Packed,
    h: Any = None,
    *,
    norm: str | None = "layer",
    eps: float = 1e-5,
    lengths: Any = None,
    batch_first: bool = False,
    reverse: bool = False,
    zoneout: float = 0.0,
    rng: np.random.Generator | None = None,
) -> GRUForward:
    """Return the states of `gru` together with what its backward pass needs.

    Parameters
    ----------
    x, parameters, h, norm, eps, lengths, batch_first, reverse, zoneout, rng
        As for `gru`.

    Returns
    -------
    GRUForward
        ``(y, h, saved)``.
    """
    options = Options(eps, lengths, batch_first, reverse, zoneout, rng)
    spec = gru_spec(norm)
    y, (h,), saved = forward(GRU, spec, x, parameters, (h,), options, save=True)
    return GRUForward(y, h, saved)


def gru_backward(dy: Any, saved: Any, dh: Any = None) -> GRUGradients:
    """Return the gradients of `gru`, back through all steps.

    Parameters
    ----------
    dy : array_like
        The gradient of the loss with respect to y, of its shape. What lies beyond a sequence's
        length is not looked at.
    saved : object
        As `gru_forward` returned it.
    dh : array_like (B, H), optional
        That with respect to the last state, beside that through y. Default: 0.

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
    norm: str | None = "layer",
    eps: float = 1e-5,
    zoneout: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Any:
    """Take one step of a normalized gated recurrent unit: the same bytes as that step of `gru`.

    In half precision the states are rounded from step to step, those within `gru` are not.

    Parameters
    ----------
    x : array_like (B, I)
        The input of this step.
    parameters, h, norm, eps, zoneout, rng
        As for `gru`; `h` as the step before returned it.

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
    options, spec = Options(eps, zoneout=zoneout, rng=rng), gru_spec(norm)
    _, (h,), _ = forward(GRU, spec, x, parameters, (h,), options, save=False, single=True)
    return h


def gru_cell_forward(
    x: Any,
    parameters: GRUParameters | Packed,
    h: Any = None,
    *,
    norm: str | None = "layer",
    eps: float = 1e-5,
    zoneout: float = 0.0,
    rng: np.random.Generator | None = None,
) -> GRUCellForward:
    """Return the state of `gru_cell` together with what its backward pass needs.

    Parameters
    ----------
    x, parameters, h, norm, eps, zoneout, rng
        As for `gru_cell`.

    Returns
    -------
    GRUCellForward
        ``(h, saved)``.
    """
    options, spec = Options(eps, zoneout=zoneout, rng=rng), gru_spec(norm)
    _, (h,), saved = forward(GRU, spec, x, parameters, (h,), options, save=True, single=True)
    return GRUCellForward(h, saved)


def gru_cell_backward(dh: Any, saved: Any) -> GRUGradients:
    """Return the gradients of `gru_cell`.

    Parameters
    ----------
    dh : array_like (B, H)
        The gradient of the loss with respect to the new state.
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
    """
    gradients = backward(GRU, "gru_cell_forward", dh, saved, (None,), single=True)
    return GRUGradients(*gradients)


def gru_pack(
    parameters: GRUParameters, *, norm: str | None = "layer", dtype: Any = np.float32
) -> Packed:
    """Return the parameters, checked and packed for many calls.

    As `lstm_pack` does for an LSTM.

    Parameters
    ----------
    parameters : GRUParameters
        They are copied, where they lie: what becomes of them afterwards changes nothing.
    norm : str or None
        As in the calls that will follow.
    dtype : dtype, default float32
        That of the x of those calls; for half precision, float32.

    Returns
    -------
    Packed
    """
    return pack(GRU, gru_spec(norm), parameters, dtype)
