"""Moving norms in which steps are missing, by their definitions in extended precision.

Time is the first axis. Each function takes a mask `keep` of the shape of x; what it leaves out may
be any number, and NaN comes out where no step counts.
"""

import numpy as np
from moving_reference import kaldi_window
from reference import exact, inverse


def kept_moments(values, keep, mean=True):
    """Return the count, the mean, the deviations and their mean square over the first axis."""
    count = keep.sum(axis=0)
    total = np.where(count, count, 1)
    first = np.take_along_axis(values, keep.argmax(axis=0)[None], 0)
    distances = np.where(keep, values - first, 0)
    about = distances.sum(axis=0) / total if mean else -first[0]
    deviations = np.where(keep, values - first - about, 0)
    square = np.square(deviations).sum(axis=0) / total
    empty = np.where(count, np.longdouble(0), np.nan)
    return count, (first[0] + about if mean else 0) + empty, deviations, square + empty


def moving_norm(x, keep, window, center=False, min_window=1, mean=True, scale=True, eps=0.0):
    """Return y, the mean and rstd of each step."""
    x = exact(np.where(keep, x, 0))
    y, means, rstds = np.full_like(x, np.nan), np.full_like(x, np.nan), np.full_like(x, np.nan)
    for t in range(len(x)):
        held = slice(*kaldi_window(t, len(x), window, center, min_window))
        _, means[t], deviations, square = kept_moments(x[held], keep[held], mean)
        square = square + np.longdouble(eps)
        rstds[t] = inverse(np.sqrt(square)) if scale else np.where(np.isnan(square), np.nan, 1)
        y[t] = np.where(keep[t], deviations[t - held.start] * rstds[t], np.nan)
    return y, means, rstds


def moving_norm_backward(
    dy, x, keep, window, center=False, min_window=1, mean=True, scale=True, eps=0.0
):
    """Return dx: the gradients of the norms of all windows, each added where its window lies."""
    dy, x = np.where(keep, exact(dy), 0), exact(np.where(keep, x, 0))
    rstds = np.nan_to_num(moving_norm(x, keep, window, center, min_window, mean, scale, eps)[2])
    dx = np.zeros_like(x)
    for t in range(len(x)):
        held = slice(*kaldi_window(t, len(x), window, center, min_window))
        count, _, deviations, _ = kept_moments(x[held], keep[held], mean)
        total, gradient = np.where(count, count, 1), dy[t] * rstds[t]
        dx[t] += gradient
        if mean:
            dx[held] -= np.where(keep[held], gradient / total, 0)
        if scale:
            projected = dy[t] * deviations[t - held.start] * rstds[t] ** 3 / total
            dx[held] -= projected * deviations
    return dx


def ewm_means(x, keep, alpha, adjust):
    """Return the means of pandas with ``ignore_na=False``, by its algorithm."""
    x, fading = exact(np.where(keep, x, 0)), 1 - np.longdouble(alpha)
    new = np.longdouble(1) if adjust else np.longdouble(alpha)
    means, mean = np.full_like(x, np.nan), np.full_like(x[:1].sum(axis=0), np.nan)
    weight = np.ones_like(mean)
    for t in range(len(x)):
        begun = ~np.isnan(mean)
        weight = np.where(begun, weight * fading, weight)
        moved = mean + (x[t] - mean) * (new / (weight + new))
        mean = np.where(keep[t], np.where(begun, moved, x[t]), mean)
        weight = np.where(keep[t] & begun, weight + new if adjust else 1, weight)
        means[t] = mean
    return means


def exponential_norm(x, keep, alpha, adjust=True, initial=0, eps=1e-4):
    """Return y, mean and rstd of each step."""
    x, eps = exact(np.where(keep, x, 0)), np.longdouble(eps)
    means = ewm_means(x, keep, alpha, adjust)
    deviations = x - means
    square = ewm_means(np.where(keep, np.square(deviations), 0), keep, alpha, adjust)
    rstds = inverse(np.maximum(eps, np.sqrt(square)))
    y = deviations * rstds
    if initial and len(x):
        block = slice(0, initial)
        _, mean, own, square = kept_moments(x[block], keep[block])
        means[block], rstds[block] = mean, inverse(np.maximum(eps, np.sqrt(square)))
        y[block] = own * rstds[block]
    return np.where(keep, y, np.nan), means, rstds


def exponential_norm_backward(dy, x, keep, alpha, adjust=True, initial=0, eps=1e-4):
    """Return dx by the chain rule through the weights of each step."""
    dy, x = np.where(keep, exact(dy), 0), exact(np.where(keep, x, 0))
    steps, shape = len(x), x.shape[1:]
    if not x.size:
        return x
    flat_keep = keep.reshape(steps, 1, -1)
    units = np.eye(steps)[:, :, None] * np.ones(flat_keep.shape)
    # mean[t] = sum over s of weights[t, s] x[s], in each channel.
    weights = ewm_means(units, np.broadcast_to(flat_keep, units.shape), alpha, adjust)
    weights = np.nan_to_num(weights)
    dy, x, flat = dy.reshape(steps, -1), x.reshape(steps, -1), keep.reshape(steps, -1)
    deviations = np.where(flat, x - np.einsum("tsc,sc->tc", weights, x), 0)
    deviation = np.sqrt(np.einsum("tsc,sc->tc", weights, np.square(deviations)))
    rstds = inverse(np.maximum(np.longdouble(eps), deviation))
    later = (np.arange(steps) >= initial)[:, None]
    own = np.where(later, dy * rstds, 0)
    moving = np.where(later & (deviation > eps), dy * deviations * rstds**3, 0)
    through = own - deviations * np.einsum("tsc,tc->sc", weights, moving)
    dx = np.where(flat, through - np.einsum("tsc,tc->sc", weights, through), 0)
    if initial and steps:
        held = slice(0, initial)
        count, _, centred, square = kept_moments(x[held], flat[held])
        total, spread = np.where(count, count, 1), np.sqrt(np.nan_to_num(square))
        rstd = inverse(np.maximum(np.longdouble(eps), spread))
        projected = np.where(spread > eps, (dy[held] * centred * rstd).sum(axis=0) / total, 0)
        terms = dy[held] - dy[held].sum(axis=0) / total - centred * rstd * projected
        dx[held] += np.where(flat[held], terms * rstd, 0)
    return dx.reshape(steps, *shape)
