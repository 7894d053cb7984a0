"""A forecaster under drift: reversible instance norm
==================================================

A network that saw one level of a series fails at another one. Normalizing each window, and undoing
it for the forecast, takes the level and the scale out of what the network has to know.

The series are simulated, so that the drift is known; the network is a few lines of NumPy.

To run it, in the folder of the sources: ``pip install '.[demo]'``, then
``python docs/gallery/reversible_norm.py``
"""

import matplotlib.pyplot as plt
import numpy as np

import numnorm

# %%
# Series with a drift
# -------------------
#
# Four channels with the period of a day, 24 steps. Level and amplitude walk at random and grow, so
# that the last third of the series, on which forecasts are tested, lies where no window of the
# first two thirds was.

STEPS, CHANNELS, DAY = 3000, 4, 24
WINDOW, HORIZON = 72, 24


def series(seed):
    """Return ``(CHANNELS, STEPS)``."""
    rng = np.random.default_rng(seed)
    t = np.arange(STEPS)
    level = 0.004 * t + np.cumsum(rng.normal(0, 0.05, (CHANNELS, STEPS)), axis=1)
    amplitude = np.exp(0.0003 * t + np.cumsum(rng.normal(0, 0.005, (CHANNELS, STEPS)), axis=1))
    phase = rng.uniform(0, DAY, (CHANNELS, 1))
    angle = 2 * np.pi * (t + phase) / DAY
    shape = np.sin(angle) + 0.5 * np.sin(2 * angle)
    return 10 + level + amplitude * shape + rng.normal(0, 0.2, (CHANNELS, STEPS))


def windows_of(x, stride):
    """Return windows ``(N, CHANNELS, WINDOW)``, and what follows each."""
    starts = range(0, x.shape[1] - WINDOW - HORIZON + 1, stride)
    both = np.stack([x[:, start : start + WINDOW + HORIZON] for start in starts])
    return both[..., :WINDOW], both[..., WINDOW:]


def parts_of(seed):
    """Return windows and targets for training, and for the test."""
    x = series(seed)
    cut = STEPS * 2 // 3
    return windows_of(x[:, :cut], 5), windows_of(x[:, cut:], 5)


# %%
# The norm around the network
# ---------------------------
#
# ``Global`` scales all data by the statistics of the training windows, as a ``StandardScaler``
# does: batch norm with stored statistics. ``Reversible`` takes those of each window and channel,
# and has a gain and a bias for each channel. Both undo what they did by ``numnorm.denormalize``,
# and their gradients come from ``_backward``.


class Global:
    """Every window by the statistics of the training windows."""

    def __init__(self, windows):
        moments = numnorm.batch_moments(windows)
        self.stored = {"running_mean": moments.mean, "running_var": moments.var()}
        self.gains = {}

    def normalized(self, windows):
        """Return the windows as the network gets them, and the statistics."""
        return numnorm.batch_norm_forward(windows, training=False, **self.stored)

    def gradients(self, d_network, d_inverse, windows, mean, rstd):
        """Return the gradients of gains: there are none."""
        return {}


class Reversible:
    """Every window by its own statistics."""

    def __init__(self, windows):
        self.gains = {"gamma": np.ones(CHANNELS), "beta": np.zeros(CHANNELS)}

    def normalized(self, windows):
        """Return the windows as the network gets them, and the statistics."""
        return numnorm.instance_norm_forward(windows, **self.gains)

    def gradients(self, d_network, d_inverse, windows, mean, rstd):
        """Return the gradients of gain and bias, which the norm and its inverse share."""
        gamma = self.gains["gamma"]
        norm = numnorm.instance_norm_backward(d_network, windows, mean, rstd, gamma)
        return {"gamma": norm.dgamma + d_inverse.dgamma, "beta": norm.dbeta + d_inverse.dbeta}


# %%
# A network, the same for all channels
# ------------------------------------
#
# One hidden layer, trained by Adam. The loss is the squared error of the forecasts after the norm
# was undone, and its gradient enters by ``denormalize_backward``.


def forecast(norm, weights, windows):
    """Return forecasts, and what the gradients need."""
    y, mean, rstd = norm.normalized(windows)
    hidden = np.tanh(y @ weights["inner"] + weights["bias"])
    out = hidden @ weights["outer"]
    x = numnorm.denormalize(out, mean, rstd, **norm.gains, channel_axis=1)
    return x, (y, mean, rstd, hidden, out)


def gradients_of(norm, weights, windows, targets):
    """Return the gradient of the loss with respect to each array."""
    x, (y, mean, rstd, hidden, out) = forecast(norm, weights, windows)
    dx = 2 * (x - targets) / targets.size
    inverse = numnorm.denormalize_backward(dx, out, mean, rstd, **norm.gains, channel_axis=1)
    d_hidden = (inverse.dy @ weights["outer"].T) * (1 - hidden**2)
    found = {
        "outer": np.einsum("nch,nct->ht", hidden, inverse.dy),
        "inner": np.einsum("ncw,nch->wh", y, d_hidden),
        "bias": d_hidden.sum(axis=(0, 1)),
    }
    return found | norm.gradients(d_hidden @ weights["inner"].T, inverse, windows, mean, rstd)


def trained(kind, windows, targets, seed, epochs=15, batch=32, rate=4e-3):
    """Return a norm and the weights of a network."""
    rng, norm = np.random.default_rng(seed), kind(windows)
    weights = {
        "inner": rng.normal(0, WINDOW**-0.5, (WINDOW, 32)),
        "bias": np.zeros(32),
        "outer": rng.normal(0, 32**-0.5, (32, HORIZON)),
    }
    state = {}
    step = 0
    for _ in range(epochs):
        order = rng.permutation(len(windows))
        for start in range(0, len(order), batch):
            chosen, step = order[start : start + batch], step + 1
            found = gradients_of(norm, weights, windows[chosen], targets[chosen])
            for name, gradient in found.items():
                first, second = state.get(name, (0.0, 0.0))
                first = 0.9 * first + 0.1 * gradient
                second = 0.999 * second + 0.001 * gradient**2
                state[name] = first, second
                change = first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
                array = weights[name] if name in weights else norm.gains[name]
                array -= rate * change
    return norm, weights


# %%
# Beside it, a linear forecaster by least squares, with a little ridge. It can learn by itself to
# carry a level over: weights that sum to 1. Its targets are normalized by the statistics of their
# windows.


def linear(kind, windows, targets, new):
    """Return forecasts of a linear model for new windows."""
    norm = kind(windows)

    def design(y):
        rows = y.reshape(-1, WINDOW)
        return np.concatenate([rows, np.ones((len(rows), 1))], axis=1)

    y, mean, rstd = norm.normalized(windows)
    wanted = (targets - mean[..., np.newaxis]) * rstd[..., np.newaxis]
    rows = design(y)
    matrix = rows.T @ rows + 1e-3 * len(rows) * np.eye(WINDOW + 1)
    solution = np.linalg.solve(matrix, rows.T @ wanted.reshape(-1, HORIZON))
    y, mean, rstd = norm.normalized(new)
    out = (design(y) @ solution).reshape(len(new), CHANNELS, HORIZON)
    return numnorm.denormalize(out, mean, rstd, channel_axis=1)


# %%
# With and without
# ----------------
#
# The mean absolute error on the test windows, for four simulations and starts of the network. The
# last column repeats the last day of the window.

SEEDS = range(4)
errors = {}
for seed in SEEDS:
    (windows, targets), (new, truth) = parts_of(seed)
    for kind in (Global, Reversible):
        norm, weights = trained(kind, windows, targets, seed)
        predicted = forecast(norm, weights, new)[0]
        errors.setdefault(("network", kind.__name__), []).append(abs(predicted - truth).mean())
        predicted = linear(kind, windows, targets, new)
        errors.setdefault(("linear", kind.__name__), []).append(abs(predicted - truth).mean())
        if seed == 0:
            shown = forecast(norm, weights, new[-1:])[0][0, 0]
            errors.setdefault("shown", {})[kind.__name__] = shown
    errors.setdefault(("last day", ""), []).append(abs(new[..., -HORIZON:] - truth).mean())
shown = errors.pop("shown")

print("mean absolute error      " + "".join(f"seed {seed}  " for seed in SEEDS))
for (model, kind), found in errors.items():
    print(f"{model:9} {kind:13} " + "".join(f"{error:7.3f} " for error in found))

means = {key: np.mean(found) for key, found in errors.items()}
assert means["network", "Reversible"] < 0.5 * means["network", "Global"]

# %%
# The network alone meets levels that it has never seen, and its units saturate; reversible instance
# norm makes of them those that it knows. The linear model gains nothing, as it found weights that
# carry a level over by itself.

figure, panel = plt.subplots(figsize=(5.6, 3.0))
(_, _), (new, truth) = parts_of(0)
panel.plot(np.arange(WINDOW), new[-1, 0], color="C4", label="window")
ahead = np.arange(WINDOW, WINDOW + HORIZON)
panel.plot(ahead, truth[-1, 0], color="C4", linestyle=":", label="what came")
panel.plot(ahead, shown["Global"], color="C1", linestyle="--", label="without")
panel.plot(ahead, shown["Reversible"], color="C0", label="reversible norm")
panel.set(xlabel="step", ylabel="channel 0")
figure.legend(loc="outside upper center", ncols=4)
plt.show()
