"""An LSTM reads the manual of Python, character by character
==========================================================

Three LSTMs learn to predict the next letter of a text: with layer norm, with batch norm in the
recurrence, and without a norm; in batches of 128 and of 4.

J. L. Ba, J. R. Kiros, G. E. Hinton, `Layer Normalization <https://arxiv.org/abs/1607.06450>`_,
2016, found that recurrent networks gain most from it, above all with long sequences and small
batches. Here, at a learning rate of 0.01, it does best in batches of 128 and of 4. In batches of 4
batch norm does worse than the LSTM without a norm. At three times the rate layer norm beats the
LSTM without a norm only in batches of 128.

:doc:`/recurrent` has the cells and their norms; :doc:`lstm_ragged_online` and :doc:`square_corners`
are smaller tasks.

To run it, in the folder of the sources: ``pip install '.[demo]'``, then
``python docs/gallery/lstm_characters.py``
"""

import re
from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import numpy as np

from numnorm import rnn

UPDATES, SEEDS, RATE = {128: 120, 4: 240}, 3, 0.01  # updates by the size of a batch
STEPS, HIDDEN, SYMBOLS, POINTS = 12, 32, 27, 6  # a run is measured before, and at 6 points
NORMS = {"none": None, "batch": "batch", "layer": "layer"}

# %%
# The text
# --------
#
# What ``help()`` of Python says about its topics, as 26 letters and spaces; the last tenth is held
# out. Other versions of Python have other texts, and numbers a little different from these.

TEXT = re.sub("[^a-z]+", " ", " ".join(topics[name] for name in sorted(topics)).lower())
CODES = np.array([" abcdefghijklmnopqrstuvwxyz".index(letter) for letter in TEXT])
TRAINING, HELD_OUT = np.split(CODES, [len(CODES) * 9 // 10])
ONE_HOT = np.eye(SYMBOLS, dtype="f4")

# %%
# The network
# -----------
#
# An LSTM begins with states of 0 and reads 12 letters; a linear layer of its states predicts the
# letter after each. ``rnn.lstm_backward`` takes the gradient back through all steps.


def excerpts(codes, starts):
    """Return the letters from each start on, (STEPS + 1, batch)."""
    return codes[starts + np.arange(STEPS + 1)[:, None]]


class Model:
    """An LSTM and a linear layer, with Adam."""

    def __init__(self, norm, rng):
        self.norm = NORMS[norm]
        first = rnn.lstm_init(SYMBOLS, HIDDEN, rng=rng, norm=self.norm)
        self.cell = {name: value for name, value in first._asdict().items() if value is not None}
        self.linear = {
            "weight": rng.normal(0, HIDDEN**-0.5, (HIDDEN, SYMBOLS)).astype("f4"),
            "offset": np.zeros(SYMBOLS, "f4"),
        }
        self.statistics = rnn.lstm_statistics_init(STEPS, HIDDEN)  # of batch norm, by step
        self.moments, self.updates = {}, 0

    def probabilities(self, letters, training):
        """Return the states, what the backward function needs, and the predictions."""
        norm = self.norm
        if norm == "batch":
            norm = rnn.RecurrentBatchNorm(self.statistics, training=training)
        parameters = rnn.LSTMParameters(**self.cell)
        y, _, _, saved = rnn.lstm_forward(ONE_HOT[letters], parameters, norm=norm)
        scores = y @ self.linear["weight"] + self.linear["offset"]
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return y, saved, p / p.sum(axis=-1, keepdims=True)

    def bits(self, letters):
        """Return the bits per character, in inference mode."""
        *_, p = self.probabilities(letters[:-1], training=False)
        return -np.log2(np.take_along_axis(p, letters[1:, :, None], axis=-1)).mean()

    def step(self, letters, rate):
        """Take a step of Adam on the cross-entropy of a batch."""
        y, saved, p = self.probabilities(letters[:-1], training=True)
        dscores = (p - ONE_HOT[letters[1:]]) / np.float32(letters[1:].size)
        gradients = rnn.lstm_backward(dscores @ self.linear["weight"].T, saved).parameters._asdict()
        gradients["weight"] = np.tensordot(y, dscores, axes=((0, 1), (0, 1)))
        gradients["offset"] = dscores.sum(axis=(0, 1))
        self.updates += 1
        rate *= (1 - 0.999**self.updates) ** 0.5 / (1 - 0.9**self.updates)
        for values in (self.cell, self.linear):
            for name, value in values.items():
                mean, square = self.moments.get(name, (0, 0))
                mean = 0.9 * mean + 0.1 * gradients[name]
                square = 0.999 * square + 0.001 * gradients[name] ** 2
                self.moments[name] = mean, square
                value -= np.float32(rate) * mean / (np.sqrt(square) + 1e-8)


def learned(norm, size, seed, rate=RATE):
    """Return the bits per character of the held-out text, before and during the training."""
    rng = np.random.default_rng(seed)
    model = Model(norm, rng)
    held_out = excerpts(HELD_OUT, np.linspace(0, len(HELD_OUT) - STEPS - 1, 1000).astype(int))
    found = [model.bits(held_out)]
    for update in range(1, UPDATES[size] + 1):
        starts = rng.integers(len(TRAINING) - STEPS, size=size)
        model.step(excerpts(TRAINING, starts), rate)
        if update % (UPDATES[size] // POINTS) == 0:
            found.append(model.bits(held_out))
    return found


# %%
# What they learned
# -----------------
#
# Runs of one seed read the same letters. In batches of 128 they take 120 updates, in batches of 4
# 240, which is a sixteenth of the letters: compare norms within a panel, not the panels.

results = {
    (norm, size): np.array([learned(norm, size, seed) for seed in range(SEEDS)])
    for size in UPDATES
    for norm in NORMS
}

figure, axes = plt.subplots(1, 2, figsize=(5.6, 3.2), sharey=True)
for panel, size in zip(axes, UPDATES, strict=True):
    updates = np.linspace(0, UPDATES[size], POINTS + 1)
    for norm, dashes in zip(NORMS, (":", "--", "-"), strict=True):
        mean, deviation = results[norm, size].mean(axis=0), results[norm, size].std(axis=0, ddof=1)
        panel.errorbar(updates, mean, deviation, linestyle=dashes, linewidth=1.8, label=norm)
    panel.set(title=f"batches of {size}", xlabel="updates")
axes[0].set(ylabel="bits per character, held out")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
plt.show()

shares = np.bincount(TRAINING, minlength=SYMBOLS) / len(TRAINING)
print(f"bits per character in the end, mean and deviation of {SEEDS} runs")
print(f"{'':>6}", *(f"batches of {size:<6}" for size in UPDATES))
for norm in NORMS:
    ends = (results[norm, size][:, -1] for size in UPDATES)
    print(f"{norm:>6}", *(f"{end.mean():.2f} ± {end.std(ddof=1):<10.2f}" for end in ends))
print(f"from the frequencies of the letters alone: {-(np.log2(shares[HELD_OUT])).mean():.2f}")

# %%
# At three times the rate
# -----------------------
#
# At a rate of 0.03 the LSTM without a norm does better, so layer norm gains less: in batches of 128
# about a third of what it gained above, in batches of 4 nothing. Layer norm depends less on the
# rate. (Batch norm was left out, as its LSTM takes most of the time of this page.)

print(f"bits per character in the end, mean and deviation of {SEEDS} runs")
print(f"{'':>6}", *(f"batches of {size:<6}" for size in UPDATES))
for norm in ("none", "layer"):
    ends = {
        size: np.array([learned(norm, size, seed, 3 * RATE)[-1] for seed in range(SEEDS)])
        for size in UPDATES
    }
    print(f"{norm:>6}", *(f"{e.mean():.2f} ± {e.std(ddof=1):<10.2f}" for e in ends.values()))
