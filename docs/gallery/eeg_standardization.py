"""Standardizing an EEG
====================

Channels of an EEG differ in gain and drift. Standardize each trial, or go on with running
statistics.

The recording is simulated: noise with a 1/f spectrum, alpha waves, drift of the electrodes, and an
amplifier whose gain is different for each channel.

To run it, in the folder of the sources: ``pip install '.[demo]'``, then
``python docs/gallery/eeg_standardization.py``
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import signal

import numnorm

RATE, SECONDS, CHANNELS = 250, 60, 4

# %%
# The recording
# -------------

rng = np.random.default_rng(3)
count = RATE * SECONDS
time = np.arange(count) / RATE
# White noise through this filter has a spectrum of about 1/f.
pink = signal.lfilter([1], [1, -0.96], rng.normal(size=(CHANNELS, count)))
alpha = np.sin(2 * np.pi * 10 * time) * (np.sin(2 * np.pi * 0.11 * time) > 0.3)
drift = 40 * np.cumsum(rng.normal(size=(CHANNELS, count)), axis=1) / np.sqrt(count)
gains = np.array([[0.4], [1.0], [2.0], [5.0]])
eeg = gains * (3 * pink + 12 * alpha + drift) + rng.normal(0, 30, (CHANNELS, 1))
# From the middle on, the last electrode is loose.
eeg[-1, count // 2 :] *= 2.5
print("deviation of the channels in µV:", *eeg.std(axis=1).round(1))

# %%
# Trial by trial
# --------------
#
# A trial is an array of channels and times; instance norm takes each channel of each trial by
# itself. With ``eps=0`` it is the standard normal variate along time.

trials = np.ascontiguousarray(eeg.reshape(CHANNELS, -1, 2 * RATE).swapaxes(0, 1))
by_trial = numnorm.instance_norm(trials, eps=0)
same = np.array_equal(by_trial, numnorm.standard_normal_variate(trials))
print(f"{len(trials)} trials of {trials.shape[1:]}, the same bytes as SNV: {same}")

# %%
# Exponential standardization
# ---------------------------
#
# Online there is no whole trial. Running statistics forget the past: with a share α of each new
# sample,
#
# .. math::
#
#    m_t &= (1 - α) m_{t-1} + α x_t \\
#    v_t &= (1 - α) v_{t-1} + α (x_t - m_t)^2
#
# This is the definition, sample by sample:


def by_sample(x, share, first):
    """Return x standardized by statistics that begin with the mean and variance of `first`."""
    mean, var = first.mean(axis=1), first.var(axis=1)
    y = np.empty_like(x)
    for t in range(x.shape[1]):
        mean = (1 - share) * mean + share * x[:, t]
        var = (1 - share) * var + share * (x[:, t] - mean) ** 2
        y[:, t] = (x[:, t] - mean) / np.sqrt(var + 1e-5)
    return y


# %%
# Batch norm keeps running statistics, too, and updates them once for each block of samples. A
# block of B samples gets the share that they would get one by one: 1 − (1 − α)\ :sup:`B`.
# ``unbiased=False`` keeps the variance as above.


def by_blocks(x, share, first, block):
    """Return x standardized block by block, with running statistics of batch norm."""
    running = {"running_mean": first.mean(axis=1), "running_var": first.var(axis=1)}
    y = np.empty_like(x)
    for start in range(0, x.shape[1], block):
        part = np.ascontiguousarray(x[None, :, start : start + block])
        weight = 1 - (1 - share) ** part.shape[2]
        numnorm.batch_norm(part, momentum=weight, unbiased=False, **running)
        y[:, start : start + block] = numnorm.batch_norm(part, training=False, **running)[0]
    return y


SHARE, BLOCK = 1 / (4 * RATE), RATE // 5
beginning = eeg[:, : 2 * RATE]
expected = by_sample(eeg, SHARE, beginning)
online = by_blocks(eeg, SHARE, beginning, BLOCK)
for channel, (one, two) in enumerate(zip(expected, online, strict=True), 1):
    print(f"channel {channel}: correlation with the definition {np.corrcoef(one, two)[0, 1]:.4f}")

# %%
# The variance of a block is around the mean of the block, so slow changes within the memory count
# a little less. The shorter the block, the nearer the mean is to the definition.

figure, axes = plt.subplots(3, figsize=(5.6, 5.4), sharex=True)
for panel, (title, rows, step, unit) in zip(axes, [
    ("recorded", eeg, 400, "µV"),
    ("exponential, by definition", expected, 8, "deviations"),
    (f"by running statistics, in blocks of {BLOCK / RATE:.1f} s", online, 8, "deviations"),
], strict=True):  # fmt: skip
    for channel, row in enumerate(rows):
        panel.plot(time[::3], row[::3] - step * channel, linewidth=0.6)
    panel.set(title=title, yticks=[-step * k for k in range(CHANNELS)])
    panel.set_yticklabels([f"{k + 1}" for k in range(CHANNELS)])
    panel.set(ylabel=f"channel\n({step} {unit} apart)")
    panel.axvline(SECONDS / 2, color="C4", linewidth=0.8, linestyle="--")
axes[-1].set(xlabel="time (s)", xlim=(0, SECONDS))
plt.show()
