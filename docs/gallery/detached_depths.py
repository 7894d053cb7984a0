"""Networks with detached statistics
=================================

Plain networks of 2 and of 12 layers learn handwritten digits without a norm, with layer norms, and
with layer norms whose statistics are constants for the gradient.

J. Xu, X. Sun, Z. Zhang, G. Zhao, J. Lin, `Understanding and Improving Layer Normalization
<https://arxiv.org/abs/1911.07013>`_, 2019. They found that networks with DetachNorm mostly do worse
than without a norm, that gain and bias overfit, and that AdaNorm does better than layer norm on
seven of eight datasets. Does this come out on small images?

:doc:`/norms/detach` and :doc:`/norms/ada` have the formulas, :doc:`detach_gradients` shows the
gradients.

To run it, in the folder of the sources: ``pip install '.[demo]'``, then
``python docs/gallery/detached_depths.py``
"""

import functools
import itertools

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import numnorm


def no_norm(x, gain, bias):
    """Add the bias alone."""
    return x + bias, lambda dy: (dy, None, dy.sum(axis=0))


def layer_norm(x, gain, bias):
    """Return a layer norm with gain and bias, and its backward function."""
    y, mean, rstd = numnorm.layer_norm_forward(x, gain, bias)
    return y, lambda dy: numnorm.layer_norm_backward(dy, x, mean, rstd, gain)


def layer_norm_simple(x, gain, bias, detach=None):
    """Return a layer norm without gain and bias, and its backward function."""
    y, mean, rstd = numnorm.layer_norm_forward(x)
    return y, lambda dy: numnorm.layer_norm_backward(dy, x, mean, rstd, detach=detach)


def ada_norm(x, gain, bias):
    """Return AdaNorm and its backward function."""
    y, mean, rstd = numnorm.ada_norm_forward(x)
    return y, lambda dy: (numnorm.ada_norm_backward(dy, x, mean, rstd), None, None)


NORMS = {
    "none": no_norm,
    "layer norm": layer_norm,
    "LayerNorm-simple": layer_norm_simple,
    "AdaNorm": ada_norm,
    "mean detached": functools.partial(layer_norm_simple, detach="mean"),
    "scale detached": functools.partial(layer_norm_simple, detach="scale"),
    "both detached": functools.partial(layer_norm_simple, detach="both"),
}
WIDTH, BATCH = 64, 64
IMAGES, CLASSES = load_digits(return_X_y=True)
IMAGES = (IMAGES / 16).astype("f4")
ORDER = np.random.default_rng(0).permutation(len(IMAGES))
HELD_OUT, LEARNED = ORDER[:360], ORDER[360:]


def forward(x, layers, norm):
    """Return the scores of the classes, and what the backward pass needs of each hidden layer."""
    *hidden, (last, _, _) = layers
    saved = []
    for weights, gain, bias in hidden:
        y, backward = norm(x @ weights, gain, bias)
        saved.append((x, y > 0, backward))
        x = np.maximum(y, 0)
    return x @ last, (x, saved)


def step(layers, norm, chosen, rate):
    """Take a step of gradient descent on the cross-entropy of some images."""
    scores, (x, saved) = forward(IMAGES[chosen], layers, norm)
    *hidden, (last, _, _) = layers
    dy = np.exp(scores - scores.max(axis=1, keepdims=True))
    dy /= dy.sum(axis=1, keepdims=True)
    dy[np.arange(len(chosen)), CLASSES[chosen]] -= 1
    dy *= np.float32(rate / len(chosen))
    dx = dy @ last.T
    last -= x.T @ dy
    for (weights, gain, bias), (x, positive, backward) in zip(
        hidden[::-1], saved[::-1], strict=True
    ):
        dlinear, dgain, dbias = backward(dx * positive)
        dx = dlinear @ weights.T
        weights -= x.T @ dlinear
        if dgain is not None:
            gain -= dgain
        if dbias is not None:
            bias -= dbias


def loss_and_error(layers, norm, chosen):
    """Return the mean cross-entropy of some images, and the share that is wrong, in percent."""
    scores = forward(IMAGES[chosen], layers, norm)[0]
    scores -= scores.max(axis=1, keepdims=True)
    logarithms = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    loss = -logarithms[np.arange(len(chosen)), CLASSES[chosen]].mean()
    return loss, 100 * np.mean(scores.argmax(axis=1) != CLASSES[chosen])


def train(name, depth, seed, rate=0.02, epochs=15, learned=LEARNED):
    """Return loss and error on the learned digits, and the same on the held-out ones."""
    norm, rng = NORMS[name], np.random.default_rng(seed)
    layers = [
        (rng.normal(0, (2 / n) ** 0.5, (n, m)).astype("f4"), np.ones(m, "f4"), np.zeros(m, "f4"))
        for n, m in itertools.pairwise([64, *[WIDTH] * depth, 10])
    ]
    for _ in range(epochs):
        shuffled = rng.permutation(learned)
        for start in range(0, len(shuffled) - BATCH + 1, BATCH):
            step(layers, norm, shuffled[start : start + BATCH], rate)
    return [loss_and_error(layers, norm, part) for part in (learned, HELD_OUT)]


# %%
# Two layers and twelve
# ---------------------
#
# Each network learns for 15 epochs, at a learning rate of 0.02. Marks are means of four seeds,
# lines one standard deviation.

SEEDS, DEPTHS = 4, (2, 12)
errors = {
    (name, depth): np.array([train(name, depth, seed) for seed in range(SEEDS)])[:, :, 1]
    for depth in DEPTHS
    for name in NORMS
}

figure, axes = plt.subplots(1, 2, figsize=(5.6, 3.2), sharey=True)
for panel, depth in zip(axes, DEPTHS, strict=True):
    for part, (marker, label) in enumerate((("o", "learned digits"), ("s", "held-out digits"))):
        found = np.array([errors[name, depth][:, part] for name in NORMS])
        places = np.arange(len(NORMS)) + 0.24 * part - 0.12
        panel.errorbar(
            found.mean(axis=1),
            places,
            xerr=found.std(axis=1, ddof=1),
            fmt=marker,
            markersize=4,
            label=label,
        )
    panel.set(title=f"{depth} layers", xlabel="wrong digits (%)", xlim=(0, None))
    panel.set_yticks(range(len(NORMS)), NORMS)
axes[0].invert_yaxis()
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
plt.show()

print(f"wrong digits in %, mean and deviation of {SEEDS} networks")
print(" " * 16, *(f"{depth:>8} layers: learned    held out" for depth in DEPTHS))
for name in NORMS:
    cells = [
        f"{found.mean():.1f} ± {found.std(ddof=1):.1f}"
        for depth in DEPTHS
        for found in errors[name, depth].T
    ]
    print(
        f"{name:>16}",
        *(f"{cell:>{width}}" for cell, width in zip(cells, (24, 11) * 2, strict=True)),
    )

# %%
# With 2 layers, "scale detached" and "both detached" are about as bad as no norm at all. With 12
# layers they are far worse: this finding comes out. A detached mean alone does no harm.
#
# AdaNorm and LayerNorm-simple are not better than layer norm here.
#
# This depends on the learning rate. At 0.1, networks of 12 layers with a detached scale learn as
# well as those with nothing detached:

for name in ("LayerNorm-simple", "scale detached"):
    found = np.array([train(name, 12, seed, rate=0.1)[1][1] for seed in range(SEEDS)])
    print(f"{name:>16}: {found.mean():.1f} ± {found.std(ddof=1):.1f} % of held-out digits wrong")

# %%
# Gain and bias
# -------------
#
# 256 digits are few enough to learn them by heart. With and without gain and bias, two layers, from
# ten seeds; a line joins two networks of a seed.

few, PAIR = LEARNED[:256], ("layer norm", "LayerNorm-simple")
pairs = np.array(
    [
        [train(name, 2, seed, rate=0.1, epochs=60, learned=few) for name in PAIR]
        for seed in range(10)
    ]
)  # by seed, norm, part of the digits, and loss or error

figure, axes = plt.subplots(1, 3, figsize=(5.6, 2.9))
for panel, (part, measure), label in zip(
    axes,
    ((0, 0), (1, 0), (1, 1)),
    ("learned: loss", "held out: loss", "held out: % wrong"),
    strict=True,
):
    panel.plot(pairs[:, :, part, measure].T, color="C0", marker="o", markersize=4, linewidth=1)
    panel.set(xlim=(-0.4, 1.4))
    panel.set_title(label, fontsize="medium")
    panel.set_xticks((0, 1), ("with gain\nand bias", "without"))
    gain = pairs[:, 1, part, measure] - pairs[:, 0, part, measure]
    print(f"{label:>20}, without minus with: {gain.mean():+.3f} ± {gain.std(ddof=1):.3f}")
plt.show()

# %%
# The paper says that gain and bias lower the training loss and raise the held-out error. The first
# comes out: every network comes to a smaller loss on what it learns. The second does not: on
# average the held-out loss is smaller, too, and the difference in wrong digits is within its
# deviation.
