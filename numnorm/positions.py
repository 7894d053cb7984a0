"""The sinusoidal positional encoding of Vaswani et al. 2017."""

from typing import Any

import numpy as np

from numnorm.arguments import check_dtype, check_integer


def positional_encoding(length: int, width: int, *, dtype: Any = np.float32) -> Any:
    r"""Return sines and cosines that encode the positions of a sequence.

    .. math::

        P_{t, 2i} = \sin(t / 10000^{2i / W}), \qquad P_{t, 2i + 1} = \cos(t / 10000^{2i / W})

    for the positions t = 0, 1, ... and the width W. Add it to the embeddings before a layer norm,
    not after it.

    Parameters
    ----------
    length : int
        The number of positions.
    width : int
        W, the width of the embeddings. If it is odd, the last sine has no cosine.
    dtype : dtype, default float32
        The dtype of the result: float16, bfloat16, float32 or float64. The sines and cosines are
        computed in float64 and rounded once; for bfloat16, first to float32.

    Returns
    -------
    array (length, width)
        It broadcasts to embeddings of shape (B, T, W); for (T, B, W) use ``p[:, None]``.

    Raises
    ------
    TypeError, ValueError
        If `length` or `width` is no integer or too small, or `dtype` is not supported.

    Notes
    -----
    The paper multiplies the embeddings by the square root of W first (section 3.4).

    References
    ----------
    A. Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.5.

    Examples
    --------
    >>> import numnorm
    >>> numnorm.positional_encoding(3, 4).round(3)
    array([[ 0.   ,  1.   ,  0.   ,  1.   ],
           [ 0.841,  0.54 ,  0.01 ,  1.   ],
           [ 0.909, -0.416,  0.02 ,  1.   ]], dtype=float32)
    """
    length, width = check_integer("length", length, 0), check_integer("width", width, 1)
    result = np.empty((length, width), check_dtype(dtype))
    sines = np.arange(0, width, 2)
    angles = np.arange(length)[:, None] / 10000.0 ** (sines / width)
    result[:, 0::2] = np.sin(angles)
    result[:, 1::2] = np.cos(angles[:, : width // 2])
    return result
