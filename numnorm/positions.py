"""The sinusoidal positional encoding of Vaswani et al. 2017."""

from typing import Any

import numpy as np

from numnorm.arguments import check_dtype, check_integer


def positional_encoding(length: int, width: int, *, dtype: Any = np.float32) -> Any:
    r"""Return sines and cosines that tell the positions of a sequence apart.

    .. math::

        P_{t, 2i} = \sin(t / 10000^{2i / W}), \qquad P_{t, 2i + 1} = \cos(t / 10000^{2i / W})

    for the positions t = 0, 1, ... and a width of W. It is added to embeddings of that width,
    before a layer norm, not after it.

    Parameters
    ----------
    length : int
        The number of positions.
    width : int
        W, that of the embeddings. The last sine of an odd width has no cosine.
    dtype : dtype, default float32
        Of the result: float16, bfloat16, float32 or float64. The sines and
        cosines are float64, and rounded once; for bfloat16 by way of float32.

    Returns
    -------
    array (length, width)
        For embeddings of shape (B, T, W) as it is; for (T, B, W) as ``p[:, None]``.

    Raises
    ------
    TypeError, ValueError
        If an argument is no integer or too small, or dtype another than these.

    Notes
    -----
    The paper multiplies the embeddings by the root of W before it adds them (section 3.4).

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
