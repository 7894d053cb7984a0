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
    """

    dx: Array
    dgamma: Any
    dbeta: Any


class RmsNormalized(NamedTuple, Generic[Array]):
    """An array divided by its root mean square, and the reciprocal of the root mean square.

    Attributes
    ----------
    y : array
        The normalized array, of the shape and dtype of x.
    rstd : array
        ``1 / sqrt(mean(x**2) + eps)`` of each row; float64 (float32 for float16).
    """

    y: Array
    rstd: Any


class RmsGradients(NamedTuple, Generic[Array]):
    """The gradients of `rms_norm`: dx in the dtype of x, dgamma in that of gamma if given, or x."""

    dx: Array
    dgamma: Any


class WeightNormalized(NamedTuple, Generic[Array]):
    """Vectors scaled to a given length, and their original lengths.

    Attributes
    ----------
    w : array
        Of the shape and dtype of v.
    norm : array
        The length of each vector of v; float64 (float32 for float16 input).
    """

    w: Array
    norm: Any


class WeightGradients(NamedTuple, Generic[Array]):
    """The gradients of `weight_norm`: dv in the dtype of v, dg in that of g if given, or v."""

    dv: Array
    dg: Any
