"""Moving norms as Kaldi, torchaudio, pandas and braindecode define them, in extended precision.

Each is written window by window or step by step, along the first axis. `reference.exact` says why
longdouble is exact enough.
"""

import numpy as np
from reference import centred, exact, inverse, row_mean


def kaldi_window(t, steps, window, center, min_window):
    """Return the start and the end of the window of step t: SlidingWindowCmnInternal of Kaldi.

    A trailing window of Kaldi and of torchaudio holds `window` + 1 steps, here it holds `window`.
    """
    if center:
        start = t - window // 2
        end = start + window
    else:
        start = t - (window - 1)
        end = t + 1
    if start < 0:
        end -= start
        start = 0
    if not center and end > t:
        end = max(t + 1, min_window)
    if end > steps:
        start -= end - steps
        end = steps
        start = max(start, 0)
    return start, end


def moving_norm(x, window, center=False, min_window=1, mean=True, scale=True, eps=0.0):
    """Return y, the mean and rstd of each step; a mean of 0 and an rstd of 1 if left out."""
    x = exact(x)
    y, means, rstds = np.empty_like(x), np.zeros_like(x), np.ones_like(x)
    for t in range(len(x)):
        start, end = kaldi_window(t, len(x), window, center, min_window)
        values = x[start:end]
        deviations = centred(values, (0,)) if mean else values
        if mean:
            means[t] = row_mean(values, (0,))[0]
        if scale:
            variance = np.square(deviations).mean(axis=0)
            rstds[t] = inverse(np.sqrt(variance + np.longdouble(eps)))
        y[t] = deviations[t - start] * rstds[t]
    return y, means, rstds


def moving_norm_backward(dy, x, window, center=False, min_window=1, mean=True, scale=True, eps=0.0):
    """Return dx: the gradients of the norms of all windows, each added where its window lies."""
    dy, x = exact(dy), exact(x)
    rstds = moving_norm(x, window, center, min_window, mean, scale, eps)[2]
    dx = np.zeros_like(x)
    for t in range(len(x)):
        start, end = kaldi_window(t, len(x), window, center, min_window)
        values = x[start:end]
        deviations = centred(values, (0,)) if mean else values
        gradient = dy[t] * rstds[t]
        dx[t] += gradient
        if mean:
            dx[start:end] -= gradient / (end - start)
        if scale:
            projected = dy[t] * deviations[t - start] * rstds[t] ** 3 / (end - start)
            dx[start:end] -= projected * deviations
    return dx


def torchaudio_sliding_window_cmn(x, cmn_window, min_cmn_window, center, norm_vars):
    """Return what torchaudio 2 computes for (time, features), its running sums in longdouble."""
    x = exact(x)
    steps = len(x)
    last_start = last_end = -1
    y = np.zeros_like(x)
    total = squares = np.zeros_like(x[0])
    for t in range(steps):
        if center:
            start = t - cmn_window // 2
            end = start + cmn_window
        else:
            start = t - cmn_window
            end = t + 1
        if start < 0:
            end -= start
            start = 0
        if not center and end > t:
            end = max(t + 1, min_cmn_window)
        if end > steps:
            start -= end - steps
            end = steps
            start = max(start, 0)
        if last_start == -1:
            total = x[start:end].sum(axis=0)
            squares = np.square(x[start:end]).sum(axis=0)
        else:
            if start > last_start:
                total = total - x[last_start]
                squares = squares - x[last_start] ** 2
            if end > last_end:
                total = total + x[last_end]
                squares = squares + x[last_end] ** 2
        count = end - start
        last_start, last_end = start, end
        y[t] = x[t] - total / count
        if norm_vars:
            if count == 1:
                y[t] = 0
            else:
                y[t] *= (squares / count - total**2 / np.longdouble(count) ** 2) ** -0.5
    return y


def ewm_means(x, alpha, adjust):
    """Return the exponentially weighted means of pandas by their weights, not by recursion."""
    x, alpha = exact(x), np.longdouble(alpha)
    means = np.empty_like(x)
    for t in range(len(x)):
        weights = (1 - alpha) ** np.arange(t, -1, -1, dtype=np.longdouble)
        if not adjust:
            weights[1:] *= alpha
        weights = weights.reshape(-1, *[1] * (x.ndim - 1))
        # Around x[t], so that an offset of all values costs no digits.
        means[t] = x[t] + (weights * (x[: t + 1] - x[t])).sum(axis=0) / weights.sum()
    return means


def ewm_means_by_recursion(x, alpha, adjust):
    """Return the same by the recursion of pandas' documentation."""
    x, alpha = exact(x), np.longdouble(alpha)
    means = np.empty_like(x)
    weight = np.longdouble(0)
    for t in range(len(x)):
        if adjust:
            weight = 1 + (1 - alpha) * weight
            share = 1 / weight
        else:
            share = alpha if t else np.longdouble(1)
        means[t] = x[t] if t == 0 else means[t - 1] + (x[t] - means[t - 1]) * share
    return means


def exponential_norm(x, alpha, adjust=True, initial=0, eps=1e-4, means_of=ewm_means):
    """Return y, mean and rstd: exponential_moving_standardize of braindecode."""
    x, eps = exact(x), np.longdouble(eps)
    means = means_of(x, alpha, adjust)
    deviations = x - means
    rstds = inverse(np.maximum(eps, np.sqrt(means_of(np.square(deviations), alpha, adjust))))
    y = deviations * rstds
    if initial and len(x):
        block = x[:initial]
        means[:initial] = row_mean(block, (0,))
        deviation = np.sqrt(np.square(centred(block, (0,))).mean(axis=0))
        rstds[:initial] = inverse(np.maximum(eps, deviation))
        y[:initial] = centred(block, (0,)) * rstds[:initial]
    return y, means, rstds


def clear_of_least_deviation(rstds, eps):
    """Return whether no deviation is so near to `eps` that rounding decides which is larger.

    The gradient jumps there.
    """
    share = rstds * np.longdouble(eps)
    return not ((share > 1 - 1e-5) & (share < 1)).any()
