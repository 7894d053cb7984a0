"""Every norm as its paper defines it, in extended precision and independent of numnorm.

All inputs are cast to `np.longdouble` first, which holds every float64 exactly. On x86 it has 64
bits of mantissa and exponents up to 1e4932, so that the mean and the scale of the test data cost no
digits: the errors that the tests see are those of numnorm.

Zero variance with eps = 0 is defined as rstd = 0 (the output is beta, the gradient is zero).
"""

import numpy as np

LONGDOUBLE_IS_WIDER = np.finfo(np.longdouble).max > np.finfo(np.float64).max


def exact(values):
    """`values` as extended precision; every dtype of the library converts without rounding."""
    return np.asarray(values).astype(np.longdouble)


def normalized_axes(ndim, axis):
    """`axis`, an int or a tuple, as non-negative axes in the order of the array."""
    axes = axis if isinstance(axis, tuple) else (axis,)
    return tuple(sorted(number % ndim for number in axes))


def other_axes(ndim, axes):
    """The axes that are not in `axes`."""
    return tuple(number for number in range(ndim) if number not in axes)


def along(parameter, ndim, axes, missing):
    """Return a parameter of `axes`, shaped to broadcast; `missing` if it is None."""
    if parameter is None:
        return np.longdouble(missing)
    return np.expand_dims(exact(parameter), other_axes(ndim, axes))


def inverse(values):
    """Return 1 / values, and 0 for values of 0."""
    zero = values == 0
    return np.where(zero, 0, 1 / np.where(zero, 1, values))


# Statistics. They keep the reduced axes with length 1.


def row_mean(x, axes):
    """Return the mean, with the first element as pivot: exact for constant rows."""
    first = x[tuple(slice(0, 1) if n in axes else slice(None) for n in range(x.ndim))]
    return first + (x - first).mean(axes, keepdims=True)


def centred(x, axes):
    """Return the distances to the mean.

    In a row that varies very little, the rounding of the mean matters. The distances to the rounded
    mean are exact there, so that subtracting their mean corrects it.
    """
    distances = x - row_mean(x, axes)
    return distances - distances.mean(axes, keepdims=True)


def row_variance(x, axes, ddof=0):
    """The mean squared distance to the mean, with `ddof` subtracted from the count."""
    count = np.prod([x.shape[number] for number in axes])
    return np.square(centred(x, axes)).sum(axes, keepdims=True) / (count - ddof)


def row_rstd(x, axes, eps):
    """One over the root of variance + eps."""
    return inverse(np.sqrt(row_variance(x, axes) + np.longdouble(eps)))


def through_statistics(g, xhat, rstd, axes, detach=None):
    """Return the gradient of (x - mean) * rstd for upstream `g` (Ioffe, Szegedy 2015, section 3).

    A detached mean or scale is a constant: its term is absent (Xu et al. 2019, section 3.2).
    """
    dx = g
    if detach not in ("mean", "both"):
        dx = dx - g.mean(axes, keepdims=True)
    if detach not in ("scale", "both"):
        dx = dx - xhat * (g * xhat).mean(axes, keepdims=True)
    return dx * rstd


# Layer norm: Ba, Kiros, Hinton, "Layer Normalization", 2016, equations 3 and 4.


def layer_norm(x, gamma=None, beta=None, axis=-1, eps=1e-5):
    x = exact(x)
    axes = normalized_axes(x.ndim, axis)
    mean, rstd = row_mean(x, axes), row_rstd(x, axes, eps)
    y = centred(x, axes) * rstd * along(gamma, x.ndim, axes, 1) + along(beta, x.ndim, axes, 0)
    return y, mean.squeeze(axes), rstd.squeeze(axes)


def layer_norm_backward(dy, x, gamma=None, axis=-1, eps=1e-5, detach=None):
    dy, x = exact(dy), exact(x)
    axes = normalized_axes(x.ndim, axis)
    rows = other_axes(x.ndim, axes)
    rstd = row_rstd(x, axes, eps)
    xhat = centred(x, axes) * rstd
    dx = through_statistics(dy * along(gamma, x.ndim, axes, 1), xhat, rstd, axes, detach)
    return dx, (dy * xhat).sum(rows), dy.sum(rows)


# Standard normal variate: Barnes, Dhanoa, Lister, "Standard Normal Variate Transformation and
# De-trending of Near-Infrared Diffuse Reflectance Spectra", 1989.


def standard_normal_variate(x, axis=-1, ddof=0):
    x = exact(x)
    axes = normalized_axes(x.ndim, axis)
    rstd = inverse(np.sqrt(row_variance(x, axes, ddof)))
    return centred(x, axes) * rstd, row_mean(x, axes).squeeze(axes), rstd.squeeze(axes)


def standard_normal_variate_backward(dy, x, axis=-1, ddof=0):
    dy, x = exact(dy), exact(x)
    axes = normalized_axes(x.ndim, axis)
    count = np.prod([x.shape[number] for number in axes])
    rstd = inverse(np.sqrt(row_variance(x, axes, ddof)))
    xhat = centred(x, axes) * rstd
    projected = (dy * xhat).sum(axes, keepdims=True) / (count - ddof)
    return rstd * (dy - dy.mean(axes, keepdims=True) - xhat * projected)


# RMS norm: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019, equation 4.


def rms_norm(x, gamma=None, axis=-1, eps=1e-5):
    x = exact(x)
    axes = normalized_axes(x.ndim, axis)
    rstd = inverse(np.sqrt(np.square(x).mean(axes, keepdims=True) + np.longdouble(eps)))
    return x * rstd * along(gamma, x.ndim, axes, 1), rstd.squeeze(axes)


def rms_norm_backward(dy, x, gamma=None, axis=-1, eps=1e-5):
    dy, x = exact(dy), exact(x)
    axes = normalized_axes(x.ndim, axis)
    rstd = np.expand_dims(rms_norm(x, None, axis, eps)[1], axes)
    g, xhat = dy * along(gamma, x.ndim, axes, 1), x * rstd
    dx = rstd * (g - xhat * (g * xhat).mean(axes, keepdims=True))
    return dx, (dy * xhat).sum(other_axes(x.ndim, axes))


# AdaNorm: Xu et al., "Understanding and Improving Layer Normalization", 2019, equation 6:
# z = C (1 - k y) y, the factor C (1 - k y) being a constant in the backward pass.


def ada_denominator(x, axes, eps, eps_in, ddof):
    """Return the divisor of the centred row, and the standard deviation that the gradient uses."""
    variance, eps = row_variance(x, axes, ddof), np.longdouble(eps)
    if eps_in == "std":
        return np.sqrt(variance) + eps, np.sqrt(variance)
    return np.sqrt(variance + eps), np.sqrt(variance + eps)


def ada_norm(x, axis=-1, scale=1.0, k=0.1, eps=1e-5, eps_in="variance", ddof=0):
    x = exact(x)
    axes = normalized_axes(x.ndim, axis)
    mean, rstd = row_mean(x, axes), inverse(ada_denominator(x, axes, eps, eps_in, ddof)[0])
    y = centred(x, axes) * rstd
    z = np.longdouble(scale) * (1 - np.longdouble(k) * y) * y
    return z, mean.squeeze(axes), rstd.squeeze(axes)


def ada_norm_backward(
    dy, x, axis=-1, scale=1.0, k=0.1, eps=1e-5, eps_in="variance", ddof=0, detach_factor=True
):
    dy, x = exact(dy), exact(x)
    axes = normalized_axes(x.ndim, axis)
    count = np.prod([x.shape[number] for number in axes])
    denominator, deviation = ada_denominator(x, axes, eps, eps_in, ddof)
    y = centred(x, axes) * inverse(denominator)
    grad = 1 - (1 if detach_factor else 2) * np.longdouble(k) * y
    h = dy * np.longdouble(scale) * grad
    through_mean = (h - h.mean(axes, keepdims=True)) * inverse(denominator)
    projected = (h * y).sum(axes, keepdims=True) / (count - ddof)
    return through_mean - y * projected * inverse(deviation)


# Batch norm: Ioffe and Szegedy, "Batch Normalization", 2015, algorithms 1 (training) and
# 2 (inference). Each index along `channel_axis` has its own statistics.


def shared_and_channel(channel_axis, ndim):
    """The axes that share statistics, and the axis that carries gamma and beta."""
    channel = normalized_axes(ndim, channel_axis)
    return other_axes(ndim, channel), channel


def batch_norm(x, gamma=None, beta=None, channel_axis=1, eps=1e-5):
    x = exact(x)
    shared, channel = shared_and_channel(channel_axis, x.ndim)
    mean, rstd = row_mean(x, shared), row_rstd(x, shared, eps)
    xhat = centred(x, shared) * rstd
    y = xhat * along(gamma, x.ndim, channel, 1) + along(beta, x.ndim, channel, 0)
    return y, mean.squeeze(shared), rstd.squeeze(shared)


def batch_norm_backward(dy, x, gamma=None, channel_axis=1, eps=1e-5):
    dy, x = exact(dy), exact(x)
    shared, channel = shared_and_channel(channel_axis, x.ndim)
    rstd = row_rstd(x, shared, eps)
    xhat = centred(x, shared) * rstd
    dx = through_statistics(dy * along(gamma, x.ndim, channel, 1), xhat, rstd, shared)
    return dx, (dy * xhat).sum(shared), dy.sum(shared)


def batch_norm_inference(
    x, running_mean, running_var, gamma=None, beta=None, channel_axis=1, eps=1e-5
):
    x, mean = exact(x), exact(running_mean)
    rstd = inverse(np.sqrt(exact(running_var) + np.longdouble(eps)))
    _, channel = shared_and_channel(channel_axis, x.ndim)
    xhat = (x - along(mean, x.ndim, channel, 0)) * along(rstd, x.ndim, channel, 1)
    y = xhat * along(gamma, x.ndim, channel, 1) + along(beta, x.ndim, channel, 0)
    return y, mean, rstd


def batch_norm_inference_backward(
    dy, x, running_mean, running_var, gamma=None, channel_axis=1, eps=1e-5
):
    dy, x = exact(dy), exact(x)
    shared, channel = shared_and_channel(channel_axis, x.ndim)
    xhat, _, rstd = batch_norm_inference(
        x, running_mean, running_var, channel_axis=channel_axis, eps=eps
    )
    dx = dy * along(gamma, x.ndim, channel, 1) * along(rstd, x.ndim, channel, 1)
    return dx, (dy * xhat).sum(shared), dy.sum(shared)


def kept_share(convention, momentum, batches=None):
    """Return the weight of the old running statistics in the update by a batch.

    PyTorch's momentum is the weight of the new batch, that of Keras, Flax and ONNX the weight of
    the old statistics; the cumulative average weights all batches equally.
    """
    if momentum == "cumulative":
        return np.longdouble(batches) / (batches + 1)
    momentum = np.longdouble(momentum)
    return 1 - momentum if convention == "torch" else momentum


def running_statistics(x, running_mean, running_var, kept, ddof, channel_axis=1):
    """Return running mean and variance after the batch `x`; ddof = 1 is Bessel's correction."""
    x = exact(x)
    shared, _ = shared_and_channel(channel_axis, x.ndim)
    mean = row_mean(x, shared).squeeze(shared)
    variance = row_variance(x, shared, ddof).squeeze(shared)
    return (
        kept * exact(running_mean) + (1 - kept) * mean,
        kept * exact(running_var) + (1 - kept) * variance,
    )


# Group norm: Wu and He, "Group Normalization", 2018, equation 7. Instance norm: Ulyanov, Vedaldi,
# Lempitsky, "Instance Normalization", 2016, which is group norm with one channel a group.


def split_groups(x, groups, channel_axis):
    """`x` with its channels second, and the same numbers as (sample, group, member)."""
    moved = np.moveaxis(x, channel_axis, 1)
    return moved, moved.reshape(len(moved), groups, -1)


def group_norm(x, gamma=None, beta=None, groups=1, channel_axis=1, eps=1e-5):
    moved, rows = split_groups(exact(x), groups, channel_axis)
    mean, rstd = row_mean(rows, (2,)), row_rstd(rows, (2,), eps)
    xhat = (centred(rows, (2,)) * rstd).reshape(moved.shape)
    y = xhat * along(gamma, moved.ndim, (1,), 1) + along(beta, moved.ndim, (1,), 0)
    return np.moveaxis(y, 1, channel_axis), mean[..., 0], rstd[..., 0]


def group_norm_backward(dy, x, gamma=None, groups=1, channel_axis=1, eps=1e-5):
    moved, rows = split_groups(exact(x), groups, channel_axis)
    dy = np.moveaxis(exact(dy), channel_axis, 1)
    rstd = row_rstd(rows, (2,), eps)
    xhat = centred(rows, (2,)) * rstd
    g = (dy * along(gamma, moved.ndim, (1,), 1)).reshape(rows.shape)
    dx = through_statistics(g, xhat, rstd, (2,)).reshape(moved.shape)
    shared = other_axes(moved.ndim, (1,))
    dgamma = (dy * xhat.reshape(moved.shape)).sum(shared)
    return np.moveaxis(dx, 1, channel_axis), dgamma, dy.sum(shared)


def instance_norm(x, gamma=None, beta=None, channel_axis=1, eps=1e-5):
    return group_norm(x, gamma, beta, np.shape(x)[channel_axis], channel_axis, eps)


def instance_norm_backward(dy, x, gamma=None, channel_axis=1, eps=1e-5):
    return group_norm_backward(dy, x, gamma, np.shape(x)[channel_axis], channel_axis, eps)


# Weight norm: Salimans and Kingma, "Weight Normalization", 2016, equations 2 and 3.


def weight_norm(x, g=None, axis=-1):
    x = exact(x)
    axes = normalized_axes(x.ndim, axis)
    norm = np.sqrt(np.square(x).sum(axes, keepdims=True))
    gain = along(g, x.ndim, other_axes(x.ndim, axes), 1)
    return gain * x * inverse(norm), norm.squeeze(axes)


def weight_norm_backward(dy, x, g=None, axis=-1):
    dy, x = exact(dy), exact(x)
    axes = normalized_axes(x.ndim, axis)
    inverse_norm = np.expand_dims(inverse(weight_norm(x, None, axis)[1]), axes)
    gain = along(g, x.ndim, other_axes(x.ndim, axes), 1)
    dg = (dy * x).sum(axes, keepdims=True) * inverse_norm
    dx = gain * inverse_norm * dy - gain * dg * np.square(inverse_norm) * x
    return dx, dg.squeeze(axes)


# Mergeable moments: Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for
# Computing Sample Variances", 1979, equations 2.1.


def moments(x, channel_axis=1):
    """Count, mean and summed squared distance to the mean, for each channel."""
    x = exact(x)
    shared, _ = shared_and_channel(channel_axis, x.ndim)
    count = int(np.prod([x.shape[number] for number in shared]))
    if count == 0:
        nothing = np.zeros(x.shape[channel_axis], np.longdouble)
        return 0, nothing, nothing
    m2 = row_variance(x, shared) * count
    return count, row_mean(x, shared).squeeze(shared), m2.squeeze(shared)


def merge_moments(left, right):
    """The moments of two sets of elements together."""
    count = left[0] + right[0]
    if count == 0:
        return left
    delta = right[1] - left[1]
    weight = np.longdouble(right[0]) / count
    return count, left[1] + delta * weight, left[2] + right[2] + delta**2 * left[0] * weight
