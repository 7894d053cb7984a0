"""The averages that batch norm takes to inference
===============================================

In training, batch norm takes the mean and the variance of the batch. For inference it needs those
of all the data: either running averages, kept during training, or the exact mean and variance,
computed afterwards.

While a network in NumPy learns handwritten digits, three running averages are kept side by side.
The pictures show when each is right, and what a wrong one costs. :doc:`/norms/batch` has the
formulas.

To run it, in the folder of the sources: ``pip install '.[demo]'``, then
``python docs/gallery/batch_norm_averages.py``
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import numnorm

SEEDS, EPOCHS, SIZE, UNITS, RATE = 4, 8, 32, 64, 0.1
IMAGES, CLASSES = load_digits(return_X_y=True)
IMAGES = (IMAGES / 16).astype("f4")
ORDER = np.random.default_rng(0).permutation(len(IMAGES))

# %%
# Three averages
# --------------
#
# ``momentum`` is the share of the new batch; Keras calls one minus this share momentum, so that its
# 0.99 is 0.01 here. The statistics begin with the mean 0 and the variance 1, and at a momentum of
# 0.01 a third of that is left after a hundred batches. "cumulative" weights all batches alike: the
# starting values drop out, but early batches, seen with other weights, count as much as late ones.

AVERAGES = {
    "0.1": lambda batches: {"momentum": 0.1},
    "0.01": lambda batches: {"momentum": 0.01},
    "cumulative": lambda batches: {"momentum": "cumulative", "batches": batches},
}


class Network:
    """A hidden layer with batch norm and a ReLU, and a linear layer."""

    def __init__(self, rng):
        self.hidden = rng.normal(0, (2 / 64) ** 0.5, (64, UNITS)).astype("f4")
        self.last = rng.normal(0, UNITS**-0.5, (UNITS, 10)).astype("f4")
        self.gain, self.bias = np.ones(UNITS, "f4"), np.zeros(UNITS, "f4")
        self.running = {
            name: {"running_mean": np.zeros(UNITS), "running_var": np.ones(UNITS)}
            for name in AVERAGES
        }
        self.batches = 0

    def step(self, x, labels):
        """Take a step of gradient descent on the cross-entropy; update all averages."""
        linear = x @ self.hidden
        for name, options in AVERAGES.items():
            y, mean, rstd = numnorm.batch_norm_forward(
                linear, self.gain, self.bias, **self.running[name], **options(self.batches)
            )
        self.batches += 1
        h = np.maximum(y, 0)
        scores = h @ self.last
        dy = np.exp(scores - scores.max(axis=1, keepdims=True))
        dy /= dy.sum(axis=1, keepdims=True)
        dy[np.arange(len(labels)), labels] -= 1
        dy *= np.float32(RATE / len(labels))
        dh = dy @ self.last.T * (h > 0)
        self.last -= h.T @ dy
        dlinear, dgain, dbias = numnorm.batch_norm_backward(dh, linear, mean, rstd, self.gain)
        self.gain -= dgain
        self.bias -= dbias
        self.hidden -= x.T @ dlinear

    def moments(self, samples):
        """Return the statistics of the hidden layer, exactly, as arguments of batch norm."""
        moments = numnorm.batch_moments(IMAGES[samples] @ self.hidden)
        return {"running_mean": moments.mean, "running_var": moments.var()}

    def error(self, samples, **options):
        """Return the share of wrong digits, in %."""
        y = numnorm.batch_norm(IMAGES[samples] @ self.hidden, self.gain, self.bias, **options)
        wrong = (np.maximum(y, 0) @ self.last).argmax(axis=1) != CLASSES[samples]
        return 100 * wrong.mean()


def learned(seed, count):
    """Train on `count` digits: return a network, its errors and how far each average is off.

    The errors are those of the other digits after each epoch, in inference by each average and by
    the exact moments. An average of a variance is off by a factor; the median one is returned, for
    each batch of the first three epochs.
    """
    rng = np.random.default_rng(seed)
    network = Network(rng)
    training, held_out = ORDER[:count], ORDER[count:]
    errors = {name: [] for name in [*AVERAGES, "exact"]}
    factors = {name: [] for name in AVERAGES}
    for epoch in range(EPOCHS):
        shuffled = rng.permutation(training)
        for start in range(0, count, SIZE):
            batch = shuffled[start : start + SIZE]
            network.step(IMAGES[batch], CLASSES[batch])
            if epoch < 3:
                exact = network.moments(training)["running_var"]
                for name, found in factors.items():
                    off = np.log(network.running[name]["running_var"] / exact)
                    found.append(np.exp(np.median(np.abs(off))))
        for name, statistics in {**network.running, "exact": network.moments(training)}.items():
            errors[name].append(network.error(held_out, training=False, **statistics))
    return network, errors, factors


def table(runs):
    """Return the errors of some runs by the way of averaging, (runs, epochs)."""
    return {name: np.array([errors[name] for _, errors, _ in runs]) for name in runs[0][1]}


# %%
# What they cost
# --------------
#
# 1120 digits are 35 full batches. The exact moments come from one pass over the training data with
# the present weights; this needs no backward pass. Left, by which factor the running variance is
# too large or too small (the median over the units); right, what this costs.
#
# A momentum of 0.01 costs the first epochs. Later the cumulative average is the worst, as it still
# holds the first batches. A momentum of 0.1 is never far from the exact moments.

FULL = 35 * SIZE
runs = [learned(seed, FULL) for seed in range(SEEDS)]

figure, axes = plt.subplots(1, 2, figsize=(5.6, 3.2))
for name, dashes in zip([*AVERAGES, "exact"], ("-", "--", "-.", ":"), strict=True):
    if name in AVERAGES:
        mean = np.mean([factors[name] for *_, factors in runs], axis=0)
        axes[0].plot(np.arange(1, len(mean) + 1), mean, dashes)
    axes[1].plot(np.arange(1, EPOCHS + 1), table(runs)[name].mean(axis=0), dashes, label=name)
axes[0].set(title="running variance", xlabel="batch", ylabel="off by a factor of", yscale="log")
axes[0].set_yticks([1, 2, 5, 10], ["1", "2", "5", "10"])
axes[1].set(title="inference", xlabel="epoch", ylabel="wrong digits (%)", yscale="log")
axes[1].set_yticks([5, 10, 20], ["5", "10", "20"])
for panel in axes:
    panel.minorticks_off()
figure.legend(*axes[1].get_legend_handles_labels(), loc="outside lower center", ncols=4)
plt.show()

print(f"wrong digits in %, mean and deviation of {SEEDS} runs")
print(f"{'':>10}  epoch 1      epoch {EPOCHS}")
for name, errors in table(runs).items():
    cells = (f"{e.mean():4.1f} ± {e.std(ddof=1):<4.1f}" for e in errors[:, [0, -1]].T)
    print(f"{name:>10}", *cells, sep="  ")

# %%
# A small batch at the end
# ------------------------
#
# With 1122 digits the last batch of each epoch has two. Their variances are tiny where the two are
# alike, so that the gradient is large: this step may move the weights far, and then no average
# describes them. The exact mean and variance, computed anew, still do. Or leave such a batch out,
# as the demo does.

small = [learned(seed, FULL + 2) for seed in range(SEEDS)]
print("wrong digits in %, after the worst epoch from the third on; mean of the runs")
print(f"{'':>10}  35 full batches  and one of two")
for name in [*AVERAGES, "exact"]:
    worst = (table(found)[name][:, 2:].max(axis=1).mean() for found in (runs, small))
    print(f"{name:>10}", *(f"{value:<15.1f}" for value in worst), sep="  ")

# %%
# A last batch of one has no variance, and raises an error.

try:
    learned(0, FULL + 1)
except ValueError as error:
    print(f"ValueError: {error}")

# %%
# Training mode by mistake
# ------------------------
#
# Without ``training=False`` the answer for a digit depends on those that come with it; alone, every
# digit gets the same answer.

rest = ORDER[FULL:]
print("wrong digits in %, mean of the runs")
for size in (1, 2, 4, 16, 64):
    parts = [rest[start : start + size] for start in range(0, len(rest) - size + 1, size)]
    found = np.mean([[network.error(part) for part in parts] for network, *_ in runs])
    print(f"batches of {size:<4}{found:5.1f}")
inference = np.mean(
    [network.error(rest, training=False, **network.running["0.1"]) for network, *_ in runs]
)
print(f"inference      {inference:4.1f}")
