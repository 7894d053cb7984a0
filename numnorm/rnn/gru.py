"""Gated recurrent units with normalization, for sequences and for single steps."""

from typing import Any

import numpy as np

from numnorm.rnn.parameters import GRU, GRUParameters
from numnorm.rnn.passes import Options, Packed, backward, forward, pack, step
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

    with N the norm of each product, over z and r as one row and over the new state as another
    [1]_.

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
        The norm N; None leaves it out.
    eps : float, default 1e-5
        Added to the variance.
    lengths : array_like of int (B,), optional
        The number of steps of each sequence, in any order. Default: T. Elements of x beyond a
        sequence's length are ignored.
    batch_first : bool, default False
        Whether x and y are (B, T, ...).
    reverse : bool, default False
        Whether to process each sequence from its last step to its first.
    zoneout : float, default 0
        The probability, between 0 and 1, with which a step keeps an element of the state as it
        was [2]_.
    rng : numpy.random.Generator, optional
        Draws the zoneout masks, for training; without it each step takes the expected value, as
        in inference. A step keeps the elements where ``rng.random((T, B, H), np.float32)``,
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
    arrays of a device, too.

    PyTorch, Keras and ONNX define z as 1 - σ(z): `gru_from_torch` flips the signs.

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
    return GRUStates(*forward(GRU, gru_spec(norm), x, parameters, (h,), options))


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
    return GRUForward(*forward(GRU, gru_spec(norm), x, parameters, (h,), options, save=True))


def gru_backward(dy: Any, saved: Any, dh: Any = None) -> GRUGradients:
    """Return the gradients of `gru`, back through all steps.

    Parameters
    ----------
    dy : array_like
        The gradient of the loss with respect to y, of the shape of y. Elements beyond a
        sequence's length are ignored.
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
    norm: str | None = "layer",
    eps: float = 1e-5,
    zoneout: float = 0.0,
    rng: np.random.Generator | None = None,
) -> Any:
    """Take one step of a normalized gated recurrent unit: the same bytes as that step of `gru`.

    In half precision the states are rounded after each step; `gru` does not round between steps.

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
    return step(GRU, gru_spec, (norm,), x, parameters, (h,), (eps, zoneout, rng))[0]


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
    result = forward(GRU, spec, x, parameters, (h,), options, save=True, single=True)
    return GRUCellForward(*result)


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
    """Return the parameters, checked and packed for many calls, as `lstm_pack` does.

    Parameters
    ----------
    parameters : GRUParameters
        They are copied, on their device: later changes of them have no effect.
    norm : str or None
        As in the later calls.
    dtype : dtype, default float32
        The dtype of x in these calls; float32 if x is in half precision.

    Returns
    -------
    Packed
    """
    return pack(GRU, gru_spec(norm), parameters, dtype)
