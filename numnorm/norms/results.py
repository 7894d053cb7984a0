"""The named tuples that the forward and the backward functions return."""

from typing import Any, Generic, NamedTuple

from numnorm.array_types import Array


class Normalized(NamedTuple, Generic[Array]):
    """A normalized array and the statistics that the backward pass needs.

    Attributes
    ----------
    y : array
        The normalized array, of the shape and dtype of x.
    mean, rstd : array
        The mean, and the factor of ``x - mean`` (the reciprocal of the standard deviation): one
        value for each set of elements that share them; float64 (float32 for float16 input, and
        for JAX without float64). For a deviation below 1e-308 rstd is infinity, and the backward
        pass gives NaN.

    Examples
    --------
    >>> import numnorm
    >>> forward = numnorm.layer_norm_forward([[1.0, 3.0]], eps=0)
    >>> forward.y, forward.mean
    (array([[-1.,  1.]]), array([2.]))
    """

    y: Array
    mean: Any
    rstd: Any


class Gradients(NamedTuple, Generic[Array]):
    """The gradients of a norm with gain and bias.

    Attributes
    ----------
    dx : array
        Of the shape and dtype of x.
    dgamma, dbeta : array
        Of the shape of gamma, in the dtype of gamma, or of x if there is no gamma: sums over all
        axes in which gamma broadcasts against x.

    Examples
    --------
    >>> import numnorm
    >>> y, mean, rstd = numnorm.layer_norm_forward([[1.0, 3.0]], eps=0)
    >>> gradients = numnorm.layer_norm_backward([[4.0, 5.0]], [[1.0, 3.0]], mean, rstd)
    >>> gradients.dgamma, gradients.dbeta
    (array([-4.,  5.]), array([4., 5.]))
    """

    dx: Array
    dgamma: Any
    dbeta: Any


class RMSNormalized(NamedTuple, Generic[Array]):
    """An array divided by its root mean square, and the reciprocal of the root mean square.

    Attributes
    ----------
    y : array
        The normalized array, of the shape and dtype of x.
    rstd : array
        ``1 / sqrt(mean(x**2) + eps)`` of each row; float64 (float32 for float16).

    Examples
    --------
    >>> import numnorm
    >>> forward = numnorm.rms_norm_forward([[2.0, -2.0]], eps=0)
    >>> forward.y, forward.rstd
    (array([[ 1., -1.]]), array([0.5]))
    """

    y: Array
    rstd: Any


class RMSGradients(NamedTuple, Generic[Array]):
    """The gradients of `rms_norm`: dx in the dtype of x, dgamma in that of gamma if given, or x.

    Examples
    --------
    >>> import numnorm
    >>> y, rstd = numnorm.rms_norm_forward([[2.0, -2.0]], eps=0)
    >>> gradients = numnorm.rms_norm_backward([[1.0, 3.0]], [[2.0, -2.0]], rstd)
    >>> gradients.dx, gradients.dgamma
    (array([[1., 1.]]), array([ 1., -3.]))
    """

    dx: Array
    dgamma: Any


class WeightNormalized(NamedTuple, Generic[Array]):
    """Vectors scaled to a given length, and their original lengths.

    Attributes
    ----------
    y : array
        Of the shape and dtype of x.
    norm : array
        The length of each vector of x; float64 (float32 for float16 input). It is NaN for a vector
        with a NaN or an infinity, and infinity for a length beyond the range, of which the backward
        pass gives NaN.

    Examples
    --------
    >>> import numnorm
    >>> forward = numnorm.weight_norm_forward([[3.0, 4.0]], [10.0])
    >>> forward.y, forward.norm
    (array([[6., 8.]]), array([5.]))
    """

    y: Array
    norm: Any


class WeightGradients(NamedTuple, Generic[Array]):
    """The gradients of `weight_norm`: dx in the dtype of x, dg in that of g if given, or x.

    Examples
    --------
    >>> import numnorm
    >>> y, norm = numnorm.weight_norm_forward([[3.0, 4.0]])
    >>> gradients = numnorm.weight_norm_backward([[1.0, 0.0]], [[3.0, 4.0]], norm)
    >>> gradients.dx, gradients.dg
    (array([[ 0.128, -0.096]]), array([0.6]))
    """

    dx: Array
    dg: Any
