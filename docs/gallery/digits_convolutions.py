"""Convolutions, where layer norm is not the best
==============================================

A small convolutional network in NumPy learns handwritten digits with four norms and with none.

J. L. Ba, J. R. Kiros, G. E. Hinton, `Layer Normalization <https://arxiv.org/abs/1607.06450>`_,
2016, found batch norm better than layer norm in convolutional networks: the units of a layer, they
say, do not have similar statistics there, as many near the border of the image are rarely active.
Here, too, batch norm does better than layer norm, and layer norm better than no norm. Group norm
and instance norm lie between: slightly better than layer norm, within the deviations.

:doc:`/norms/group` and :doc:`/norms/instance` say what they average over.

To run it, in the folder of the sources: ``pip install '.[demo]'``, then
``python docs/gallery/digits_convolutions.py``
"""

import itertools

import matplotlib.pyplot as plt
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.datasets import load_digits

import numnorm

CHANNELS = (1, 16, 16)  # of the image, and after each convolution
EPOCHS, SEEDS, SIZE, RATE = 8, 4, 64, 0.1  # batches of 64
IMAGES, CLASSES = load_digits(return_X_y=True)
IMAGES = (IMAGES / 16).astype("f4").reshape(-1, 1, 8, 8)
ORDER = np.random.default_rng(0).permutation(len(IMAGES))
HELD_OUT, TRAINING = ORDER[:797], ORDER[797:]

# %%
# The norms
# ---------
#
# Each is a forward function, which returns the output and what the backward function needs, and a
# backward function, which returns the gradients of x and of the gain.

NORMS = {
    "none": (lambda x, gain: (x,), lambda dy, x, gain: (dy, np.zeros_like(gain))),
    "batch": (numnorm.batch_norm_forward, numnorm.batch_norm_backward),
    "layer": (  # over channels and positions, with a gain of each channel: a single group
        lambda x, gain: numnorm.group_norm_forward(x, gain, groups=1),
        lambda *saved: numnorm.group_norm_backward(*saved, groups=1),
    ),
    "group": (  # four groups of four channels
        lambda x, gain: numnorm.group_norm_forward(x, gain, groups=4),
        lambda *saved: numnorm.group_norm_backward(*saved, groups=4),
    ),
    "instance": (numnorm.instance_norm_forward, numnorm.instance_norm_backward),
}

# %%
# The network
# -----------
#
# A convolution is a product of matrices: the weights times all windows of 3 × 3 pixels.


def windows(x):
    """Return the windows of images (N, C, H, W) as columns, (N, C * 9, positions)."""
    found = sliding_window_view(x, (3, 3), axis=(2, 3)).transpose(0, 1, 4, 5, 2, 3)
    return found.reshape(len(x), x.shape[1] * 9, -1)


def convolved(x, weight):
    """Return the convolution with a weight (O, C, 3, 3), without the border."""
    y = weight.reshape(len(weight), -1) @ windows(x)
    return y.reshape(len(x), len(weight), x.shape[2] - 2, x.shape[3] - 2)


def gradients(x, weight, dy):
    """Return the gradients of a convolution: of x and of the weight."""
    flat = dy.reshape(*dy.shape[:2], -1)
    dweight = (flat @ windows(x).swapaxes(1, 2)).sum(axis=0).reshape(weight.shape)
    padded = np.pad(dy, ((0, 0), (0, 0), (2, 2), (2, 2)))
    return convolved(padded, weight[:, :, ::-1, ::-1].swapaxes(0, 1)), dweight


class Network:
    """Convolutions, each with a norm, a bias and a ReLU; then a linear layer."""

    def __init__(self, norm, rng):
        self.norm, (self.forward, self.backward) = norm, NORMS[norm]
        self.p = {"last": rng.normal(0, 1 / 16, (CHANNELS[-1] * 16, 10))}
        self.p["last bias"] = np.zeros(10)
        for k, (n, m) in enumerate(itertools.pairwise(CHANNELS)):
            self.p["weight", k] = rng.normal(0, (2 / (9 * n)) ** 0.5, (m, n, 3, 3))
            self.p["gain", k], self.p["bias", k] = np.ones(m), np.zeros((m, 1, 1))
        self.p = {name: value.astype("f4") for name, value in self.p.items()}
        self.running = [
            {"running_mean": np.zeros(m), "running_var": np.ones(m)} for m in CHANNELS[1:]
        ]

    def scores(self, x, training=False):
        """Return the scores of the classes; batch norm takes the running statistics."""
        self.passed = []
        for k in range(len(CHANNELS) - 1):
            linear, gain = convolved(x, self.p["weight", k]), self.p["gain", k]
            if self.norm == "batch":
                y, *saved = self.forward(linear, gain, training=training, **self.running[k])
            else:
                y, *saved = self.forward(linear, gain)
            self.passed.append((x, linear, saved))
            x = np.maximum(y + self.p["bias", k], 0)
        self.last = x
        return x.reshape(len(x), -1) @ self.p["last"] + self.p["last bias"]

    def step(self, x, labels):
        """Take a step of gradient descent on the cross-entropy of a batch."""
        scores = self.scores(x, training=True)
        dy = np.exp(scores - scores.max(axis=1, keepdims=True))
        dy /= dy.sum(axis=1, keepdims=True)
        dy[np.arange(len(labels)), labels] -= 1
        dy /= np.float32(len(labels))
        x, d = self.last, {"last bias": dy.sum(axis=0)}
        d["last"] = x.reshape(len(x), -1).T @ dy
        dx = (dy @ self.p["last"].T).reshape(x.shape)
        for k in reversed(range(len(CHANNELS) - 1)):
            dy, (previous, linear, saved) = dx * (x > 0), self.passed[k]
            d["bias", k] = dy.sum(axis=(0, 2, 3))[:, None, None]
            dlinear, d["gain", k], *_ = self.backward(dy, linear, *saved, self.p["gain", k])
            dx, d["weight", k] = gradients(previous, self.p["weight", k], dlinear)
            x = previous
        for name, gradient in d.items():
            self.p[name] -= np.float32(RATE) * gradient


def learned(norm, seed):
    """Return the share of held-out digits that are wrong after each epoch, in %."""
    rng = np.random.default_rng(seed)
    network = Network(norm, rng)
    found = []
    for _ in range(EPOCHS):
        shuffled = rng.permutation(TRAINING)
        for start in range(0, len(shuffled) - SIZE + 1, SIZE):
            batch = shuffled[start : start + SIZE]
            network.step(IMAGES[batch], CLASSES[batch])
        wrong = network.scores(IMAGES[HELD_OUT]).argmax(axis=1) != CLASSES[HELD_OUT]
        found.append(100 * wrong.mean())
    return found


# %%
# What they learned
# -----------------
#
# The runs of one seed begin with the same weights and see the same batches. All norms have the same
# learning rate.

results = {norm: np.array([learned(norm, seed) for seed in range(SEEDS)]) for norm in NORMS}

figure, panel = plt.subplots(figsize=(5.6, 3.4))
for (norm, errors), dashes in zip(results.items(), (":", "-", "-", "--", "-."), strict=True):
    panel.plot(np.arange(1, EPOCHS + 1), errors.mean(axis=0), dashes, label=norm, linewidth=1.8)
panel.set(xlabel="epoch", ylabel="wrong digits, held out (%)", yscale="log")
panel.set_yticks([5, 10, 20, 30], ["5", "10", "20", "30"])
panel.minorticks_off()
figure.legend(loc="outside lower center", ncols=5)
plt.show()

print(f"wrong digits in %, mean and deviation of {SEEDS} runs")
print(f"{'':>8}  epoch 1     epoch {EPOCHS}")
for norm, errors in results.items():
    cells = (f"{e.mean():4.1f} ± {e.std(ddof=1):3.1f}" for e in errors[:, [0, -1]].T)
    print(f"{norm:>8}", *cells, sep="  ")
