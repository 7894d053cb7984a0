"""Norms with missing values and weights as they are defined, in extended precision.

Statistics over `axes`: W = sum w, mean = sum w x / W, variance = sum w (x - mean)**2 / (W - ddof).
A weight of 0 and a mask differ in one thing: what is left out has the result `fill`.
"""

from typing import NamedTuple

import numpy as np
from reference import exact, inverse


class Rows(NamedTuple):
    """An array in which the elements with one mean lie along `axes`, and gamma and beta with it.

    Attributes
    ----------
    shape : tuple of int
        The shape in which the statistics are taken.
    axes : tuple of int
        Their axes.
    moved : tuple of int
        The axes of x in the order of `shape`, before any of them is split.
    parameters : tuple of int
        The axes of the moved x that gamma and beta have.
    """

    shape: tuple
    axes: tuple
    moved: tuple
    parameters: tuple


def rows_of(norm, shape, axis=-1, channel_axis=1, groups=1):
    """Return where the statistics of a norm lie in x."""
    ndim = len(shape)
    every = tuple(range(ndim))
    if norm in ("layer_norm", "rms_norm", "ada_norm", "weight_norm", "standard_normal_variate"):
        axes = axis if isinstance(axis, tuple) else (axis,)
        axes = tuple(sorted(a % ndim for a in axes))
        others = tuple(a for a in every if a not in axes)
        return Rows(shape, axes, every, others if norm == "weight_norm" else axes)
    channel = channel_axis % ndim
    if norm == "batch_norm":
        return Rows(shape, tuple(a for a in every if a != channel), every, (channel,))
    moved = (0, channel, *(a for a in every if a not in (0, channel)))
    n, c, *spatial = (shape[a] for a in moved)
    groups = c if norm == "instance_norm" else groups
    split = (n, groups, c // groups, *spatial)
    return Rows(split, tuple(range(2, len(split))), moved, (1,))


def normalized(
    x, keep, weights, rows, *, eps, ddof=0, eps_in_std=False, centred=True, length=False
):
    """Return (xhat, mean, rstd) in the order of `rows.moved`: xhat is 0 where `keep` is false."""
    x, keep, w = (np.transpose(a, rows.moved) for a in np.broadcast_arrays(x, keep, weights))
    shape, axes = x.shape, rows.axes
    x, keep, w = (a.reshape(rows.shape) for a in (exact(x), keep, exact(w)))
    w = np.where(keep, w, 0)
    total = w.sum(axes, keepdims=True)
    seen = np.where(total > 0, total, np.nan)
    mean = np.longdouble(0)
    if centred:
        counted = np.where(w > 0, x, 0)
        mean = (w * counted).sum(axes, keepdims=True) / seen
    d = np.where(keep, x - mean, 0)
    if centred:
        # The distances are exact near the mean: their mean corrects its rounding.
        d = d - (w * np.where(w > 0, d, 0)).sum(axes, keepdims=True) / seen
        d = np.where(keep, d, 0)
    squares = (w * np.square(np.where(w > 0, d, 0))).sum(axes, keepdims=True)
    divisor = np.ones_like(total) if length else total - ddof
    variance = squares / np.where(divisor > 0, divisor, np.nan)
    rstd = inverse(np.sqrt(variance) + eps if eps_in_std else np.sqrt(variance + eps))
    xhat = np.where(keep, d * rstd, 0).reshape(shape)
    return xhat, np.squeeze(np.broadcast_to(mean, rstd.shape), axes), np.squeeze(rstd, axes)


def spread(parameter, ndim, axes):
    """Return a parameter of `axes` so that it broadcasts."""
    return np.expand_dims(exact(parameter), tuple(a for a in range(ndim) if a not in axes))


def output(x, keep, weights, rows, gamma, beta, of_xhat, **options):
    """Return y, in the order of x, 0 where `keep` is false."""
    xhat, _, _ = normalized(x, keep, weights, rows, **options)
    y = of_xhat(xhat)
    if gamma is not None:
        y = y * spread(gamma, y.ndim, rows.parameters)
    if beta is not None:
        y = y + spread(beta, y.ndim, rows.parameters)
    y = np.where(np.transpose(np.broadcast_to(keep, np.shape(x)), rows.moved), y, 0)
    return y.transpose(np.argsort(rows.moved))
