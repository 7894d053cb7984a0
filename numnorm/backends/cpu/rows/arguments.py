"""The groups of arguments that the kernels of rows take."""

from typing import Any, NamedTuple


class Parameters(NamedTuple):
    """One array for gamma and one for beta, ``(channels,)`` or ``(channels, segment)``.

    Attributes
    ----------
    gamma, beta : array, number or None
        The parameters (read; AdaNorm has numbers); the sums of their gradients for each part of the
        rows (read and written, with a first axis of parts); or their gradients (written, 1-D). None
        is for a parameter that the norm lacks or the caller omits.
    """

    gamma: Any
    beta: Any


class Segments(NamedTuple):
    """How the parameters repeat along a row, which consists of segments.

    Attributes
    ----------
    segment : int
        The number of elements of a segment. Each segment belongs to one channel.
    channels : int
        The number of channels.
    """

    segment: int
    channels: int


class Scaling(NamedTuple):
    """How a forward kernel turns a row's sum of squares into its deviation.

    Attributes
    ----------
    eps, eps_on_deviation : float
        What is added to the variance and to the deviation.
    divisor : float
        The sum of squares is divided by it.
    """

    eps: float
    eps_on_deviation: float
    divisor: float


class Statistics(NamedTuple):
    """The statistics of each row: written by a forward kernel, read by a backward kernel.

    Attributes
    ----------
    mean : array (rows,) or None
        The mean. For a formula without centring, a forward kernel writes the root mean square, and
        a backward kernel does not read it.
    rstd : array (rows,)
        The reciprocal deviation. A forward kernel gets two arrays of size 0 to save nothing.
    """

    mean: Any
    rstd: Any


class Incoming(NamedTuple):
    """The gradients that come from the results of a norm of a sum (read).

    Attributes
    ----------
    dy : array
        The gradient with respect to y.
    dtotal : array
        The gradient with respect to the sum, which is added to dx.
    """

    dy: Any
    dtotal: Any


class GradientCoefficients(NamedTuple):
    """The numbers in the gradient of a row.

    Attributes
    ----------
    inv_count : float
        1 / width, the factor of the gradient through the mean; 0 if the mean is detached or not
        subtracted.
    inv_divisor : float
        1 / (width - ddof), the factor of the gradient through the scale; 0 if it is detached.
    eps_on_deviation : float
        What is added to the deviation.
    """

    inv_count: float
    inv_divisor: float
    eps_on_deviation: float
