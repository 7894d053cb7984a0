"""The definitions of the recurrent cells in longdouble, one step of one sequence at a time.

With batch norm, all sequences that have a step take it together.
"""

import numpy as np
import reference


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Norm:
    """A norm by name; after `rerun`, AdaNorm uses the factors of its first run again.

    AdaNorm's authors define its gradient with a constant factor 1 - k y: a numerical gradient must
    not vary it, either.
    """

    def __init__(self, name, eps):
        self.name, self.eps = name, eps
        self.factors, self.turn = [], None

    def rerun(self):
        self.turn = 0

    def __call__(self, x, gamma=None, beta=None):
        if self.name is None:
            return x
        if self.name == "layer":
            return reference.layer_norm(x, gamma, beta, eps=self.eps)[0]
        if self.name == "rms":
            return reference.rms_norm(x, gamma, eps=self.eps)[0]
        xhat = reference.layer_norm(x, eps=self.eps)[0]
        if self.turn is None:
            self.factors.append(1 - np.longdouble(0.1) * xhat)
            return self.factors[-1] * xhat
        self.turn += 1
        return self.factors[self.turn - 1] * xhat


def lstm_step(norm, variant, p, x, h, c):
    """Return state and cell after one step of one sequence; p has the parameters by name."""
    of_x, of_h = p["weight_x"] @ x, p["weight_h"] @ h
    if variant in ("paper", "normalized_cell"):
        z = norm(of_h, p["gamma_h"], p["beta_h"]) + norm(of_x, p["gamma_x"], p["beta_x"])
    elif variant == "per_gate":
        z = np.concatenate(
            [
                norm(*(None if a is None else a[part] for a in (of_x + of_h, *weights)))
                for weights in [(p["gamma_h"], p["beta_h"])]
                for part in np.split(np.arange(of_h.size), 4)
            ]
        )
    else:
        z = of_x + of_h
    z = z + (0 if p["bias"] is None else p["bias"])
    f, i, o, g = np.split(z, 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    normalized = norm(c, p["gamma_c"], p["beta_c"])
    h = sigmoid(o) * np.tanh(normalized)
    h = p["projection"] @ h if "projection" in p else h
    return h, normalized if variant == "normalized_cell" else c


def lstm(norm, variant, p, x, h, c, lengths=None, reverse=False):
    """Return all states, the last states and the last cells for x (T, B, I)."""
    time, batch = x.shape[:2]
    y = np.zeros((time, *h.shape), np.longdouble)
    h, c = np.array(h, np.longdouble), np.array(c, np.longdouble)
    for b in range(batch):
        steps = range(time if lengths is None else lengths[b])
        for t in reversed(steps) if reverse else steps:
            h[b], c[b] = lstm_step(norm, variant, p, x[t, b], h[b], c[b])
            y[t, b] = h[b]
    return y, h, c


def gru_step(norm, p, x, h, reset_after=True, operand=None):
    """Return the state of a gated recurrent unit after one step of one sequence.

    With `reset_after` r scales the product with the state, else the state (Cho et al. 2014).
    `operand` is the state with dropout, for the products.
    """
    operand = h if operand is None else operand
    width = h.size
    gates, candidate = slice(0, 2 * width), slice(2 * width, 3 * width)

    def normalized(row, site, part):
        weights = p["gamma" + site], p["beta" + site]
        return norm(row[part], *(None if w is None else w[part] for w in weights))

    of_x, of_h = p["weight_x"] @ x, p["weight_h"] @ operand
    bias = np.zeros(3 * width) if p["bias"] is None else p["bias"]
    z, r = np.split(normalized(of_h, "_h", gates) + normalized(of_x, "_x", gates) + bias[gates], 2)
    r = sigmoid(r)
    if not reset_after:
        of_h = p["weight_h"] @ (r * operand)
    old = normalized(of_h, "_h", candidate) + (0 if p["bias_h"] is None else p["bias_h"])
    old = r * old if reset_after else old
    new = np.tanh(normalized(of_x, "_x", candidate) + bias[candidate] + old)
    return (1 - sigmoid(z)) * h + sigmoid(z) * new


def rnn_step(norm, p, x, h, nonlinearity="tanh"):
    """Return the state of a plain recurrent network after one step of one sequence."""
    z = norm(p["weight_h"] @ h + p["weight_x"] @ x, p["gamma"], p["beta"])
    z = z + (0 if p["bias"] is None else p["bias"])
    return np.tanh(z) if nonlinearity == "tanh" else np.maximum(z, 0)


def sequences(step, x, states, keeps=None, drops=None, lengths=None, reverse=False):
    """Return all states h and the last states of ``step(x, *states)``.

    `keeps` has a zoneout mask (T, B, H), or the probabilities, for each state. `drops` has the
    factors of dropout (B, I) and (B, H): then the step gets the `operand`, its state with dropout.
    """
    time, batch = x.shape[:2]
    states = [np.array(s, np.longdouble) for s in states]
    y = np.zeros((time, *states[0].shape), np.longdouble)
    for b in range(batch):
        steps = range(time if lengths is None else lengths[b])
        for t in reversed(steps) if reverse else steps:
            before = [s[b].copy() for s in states]
            if drops is None:
                new = step(x[t, b], *before)
            else:
                new = step(x[t, b] * drops[0][b], *before, operand=before[0] * drops[1][b])
            for i, (s, n, old) in enumerate(zip(states, new, before, strict=True)):
                mask = 0 if keeps is None else keeps[i][t, b]
                s[b] = (1 - mask) * n + mask * old
            y[t, b] = states[0][b]
    return y, *states


class BatchNorm:
    """Batch norm of each step; `seen` has the inputs of each step and site.

    `statistics` has a pair of running means and variances, (steps, features), for each site; None
    uses the statistics of the batch.
    """

    def __init__(self, eps, statistics=None):
        self.eps, self.statistics, self.seen = eps, statistics, {}

    def __call__(self, t, site, x, gamma, beta):
        self.seen[t, site] = x
        if self.statistics is None:
            return reference.batch_norm(x, gamma, beta, eps=self.eps)[0]
        mean, variance = (of_steps[min(t, len(of_steps) - 1)] for of_steps in self.statistics[site])
        return reference.batch_norm_inference(x, mean, variance, gamma, beta, eps=self.eps)[0]


def batch_lstm_step(norm, variant, p, t, x, h, c):
    """Return states and cells after one step of all sequences that have it."""
    of_x, of_h = x @ p["weight_x"].T, h @ p["weight_h"].T
    if variant in ("paper", "normalized_cell"):
        z = norm(t, "h", of_h, p["gamma_h"], p["beta_h"])
        z = z + norm(t, "x", of_x, p["gamma_x"], p["beta_x"])
    elif variant == "per_gate":
        z = norm(t, "h", of_h + of_x, p["gamma_h"], p["beta_h"])
    else:
        z = of_x + of_h
    f, i, o, g = np.split(z + (0 if p["bias"] is None else p["bias"]), 4, axis=1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    normalized = norm(t, "c", c, p["gamma_c"], p["beta_c"])
    return sigmoid(o) * np.tanh(normalized), normalized if variant == "normalized_cell" else c


def batch_lstm(norm, variant, p, x, h, c, lengths=None, reverse=False):
    """Return all states, the last states and the last cells for x (T, B, I)."""
    time, batch = x.shape[:2]
    lengths = np.array([time] * batch if lengths is None else lengths)
    y = np.zeros((time, *h.shape), np.longdouble)
    h, c = np.array(h, np.longdouble), np.array(c, np.longdouble)
    for t in range(lengths.max(initial=0)):
        (active,) = np.nonzero(lengths > t)
        index = lengths[active] - 1 - t if reverse else np.full(active.size, t)
        h[active], c[active] = batch_lstm_step(
            norm, variant, p, t, x[index, active], h[active], c[active]
        )
        y[index, active] = h[active]
    return y, h, c
