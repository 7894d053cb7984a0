"""Digits with batches of 128 and of 4
===================================

A network in NumPy learns handwritten digits with four norms and with none, in large batches and in
small ones.

Batch norm takes its statistics from the batch, and four samples say little about it. The other
norms take them from each sample.

The longer comparison of ``python -m numnorm demo`` has a table, too.

To run it, in the folder of the sources: ``pip install '.[demo]'``, then
``python docs/gallery/digits_batch_sizes.py``
"""

import itertools

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import numnorm

WIDTHS = (64, 100, 100, 10)  # inputs, two hidden layers, classes
EPOCHS, SEEDS = {128: 20, 4: 4}, 3  # by the size of a batch

# %%
# The norms
# ---------
#
# Each is a forward function, which returns the output and what the backward function needs, and a
# backward function, which returns the gradients of x and of the gain. The bias belongs to the
# layer.


def batch_forward(x, gain, running):
    """Return x normalized by the batch, and update the running statistics."""
    return numnorm.batch_norm_forward(x, gain, **running)


NORMS = {
    "none": (lambda x, gain, running: (x,), lambda dy, x, gain: (dy, None)),
    "batch": (batch_forward, numnorm.batch_norm_backward),
    "layer": (
        lambda x, gain, running: numnorm.layer_norm_forward(x, gain),
        numnorm.layer_norm_backward,
    ),
    "RMS": (
        lambda x, gain, running: numnorm.rms_norm_forward(x, gain),
        numnorm.rms_norm_backward,
    ),
    "AdaNorm": (
        lambda x, gain, running: numnorm.ada_norm_forward(x),
        lambda dy, x, mean, rstd, gain: (numnorm.ada_norm_backward(dy, x, mean, rstd), None),
    ),
}

# %%
# The network
# -----------


class Network:
    """Linear layers, each but the last with a norm, a bias and a ReLU."""

    def __init__(self, norm, rng):
        self.forward, self.backward = NORMS[norm]
        self.is_batch = norm == "batch"
        pairs = list(itertools.pairwise(WIDTHS))
        self.weights = [rng.normal(0, (2 / n) ** 0.5, (n, m)).astype("f4") for n, m in pairs]
        self.biases = [np.zeros(m, "f4") for m in WIDTHS[1:]]
        self.gains = [np.ones(m, "f4") for m in WIDTHS[1:-1]]
        self.running = [
            {"running_mean": np.zeros(m), "running_var": np.ones(m)} for m in WIDTHS[1:-1]
        ]

    def scores(self, x):
        """Return the scores of the classes, with the running statistics of batch norm."""
        for k, gain in enumerate(self.gains):
            x = x @ self.weights[k]
            if self.is_batch:
                x = numnorm.batch_norm(x, gain, training=False, **self.running[k])
            else:
                x = self.forward(x, gain, None)[0]
            x = np.maximum(x + self.biases[k], 0)
        return x @ self.weights[-1] + self.biases[-1]

    def step(self, x, labels, rate):
        """Take a step of gradient descent on the cross-entropy of a batch."""
        passed = []
        for k, gain in enumerate(self.gains):
            linear = x @ self.weights[k]
            y, *saved = self.forward(linear, gain, self.running[k])
            passed.append((x, linear, saved))
            x = np.maximum(y + self.biases[k], 0)
            passed[-1] += (x > 0,)
        scores = x @ self.weights[-1] + self.biases[-1]
        dy = np.exp(scores - scores.max(axis=1, keepdims=True))
        dy /= dy.sum(axis=1, keepdims=True)
        dy[np.arange(len(labels)), labels] -= 1
        dy *= np.float32(rate / len(labels))
        dx = dy @ self.weights[-1].T
        self.weights[-1] -= x.T @ dy
        self.biases[-1] -= dy.sum(axis=0)
        for k in reversed(range(len(self.gains))):
            x, linear, saved, positive = passed[k]
            dy = dx * positive
            self.biases[k] -= dy.sum(axis=0)
            dlinear, dgain, *_ = self.backward(dy, linear, *saved, self.gains[k])
            dx = dlinear @ self.weights[k].T
            self.weights[k] -= x.T @ dlinear
            if dgain is not None:
                self.gains[k] -= dgain


# %%
# Training
# --------

images, classes = load_digits(return_X_y=True)
images = images.astype("f4") / 16
order = np.random.default_rng(0).permutation(len(images))
held_out, learned = order[:360], order[360:]


def errors(norm, size, seed):
    """Return the share of held-out digits that are wrong, from before the first epoch on."""
    rng = np.random.default_rng(seed)
    network = Network(norm, rng)

    def error():
        return np.mean(network.scores(images[held_out]).argmax(axis=1) != classes[held_out])

    found = [error()]
    for _ in range(EPOCHS[size]):
        shuffled = rng.permutation(learned)
        for start in range(0, len(shuffled) - size + 1, size):
            batch = shuffled[start : start + size]
            network.step(images[batch], classes[batch], rate=0.1 if size == 128 else 0.02)
        found.append(error())
    return found


results = {
    (norm, size): 100 * np.mean([errors(norm, size, seed) for seed in range(SEEDS)], axis=0)
    for size in EPOCHS
    for norm in NORMS
}

# %%
# What they learned
# -----------------

figure, axes = plt.subplots(1, 2, figsize=(5.6, 3.2), sharey=True)
for panel, size in zip(axes, EPOCHS, strict=True):
    for norm, dashes in zip(NORMS, (":", "-", "-", "--", "-."), strict=True):
        panel.plot(results[norm, size], label=norm, linestyle=dashes, linewidth=1.8)
    panel.set(title=f"batches of {size}", xlabel="epoch", yscale="log")
axes[0].set(ylabel="wrong digits, held out (%)")
axes[0].set_yticks([2, 5, 10, 20, 50, 100], [2, 5, 10, 20, 50, 100])
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
plt.show()

print(f"wrong digits in the end, in %, mean of {SEEDS} runs")
print(f"{'':>8}", *(f"batches of {size:<4}" for size in EPOCHS))
for norm in NORMS:
    print(f"{norm:>8}", *(f"{results[norm, size][-1]:<15.1f}" for size in EPOCHS))
