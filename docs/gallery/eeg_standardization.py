"""Standardizing an EEG
====================

Channels of an EEG differ in gain and drift. Standardize each trial, or each sample by what came
before it.

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
# Online there is no whole trial. Exponential statistics forget the past: a sample has the share g,
# and g falls from 1 to α.
#
# .. math::
#
#    m_t &= (1 - g_t) m_{t-1} + g_t x_t \\
#    v_t &= (1 - g_t) v_{t-1} + g_t (x_t - m_t)^2
#
# This is the definition, sample by sample:


def by_sample(x, alpha):
    """Return x standardized by statistics of the samples so far."""
    mean = var = 0.0
    y = np.empty_like(x)
    for t in range(x.shape[1]):
        share = alpha / (1 - (1 - alpha) ** (t + 1))
        mean = (1 - share) * mean + share * x[:, t]
        var = (1 - share) * var + share * (x[:, t] - mean) ** 2
        y[:, t] = (x[:, t] - mean) / np.maximum(np.sqrt(var), 1e-4)
    return y


ALPHA = 1 / (4 * RATE)
exponential = numnorm.exponential_norm(eeg, ALPHA)
print(f"off the definition by {abs(exponential - by_sample(eeg, ALPHA)).max():.0e}")

# %%
# While it is being recorded, the EEG comes in chunks. A state goes from one to the next, and the
# result is the same.

state, parts = None, []
for chunk in np.split(eeg, range(RATE // 5, count, RATE // 5), axis=1):
    y, state = numnorm.exponential_norm_step(chunk, ALPHA, state)
    parts.append(y)
same = np.array_equal(np.concatenate(parts, axis=1), exponential)
print(f"{len(parts)} chunks, the same bytes as in one call: {same}")

# %%
# The first samples are compared with few others. If two seconds of delay do no harm, they may have
# the statistics of their block, as in braindecode.

with_block = numnorm.exponential_norm(eeg, ALPHA, initial=2 * RATE)

figure, axes = plt.subplots(3, figsize=(5.6, 5.4), sharex=True)
for panel, (title, rows, step, unit) in zip(axes, [
    ("recorded", eeg, 400, "µV"),
    ("exponential", exponential, 8, "deviations"),
    ("exponential, the first 2 s as a block", with_block, 8, "deviations"),
], strict=True):  # fmt: skip
    for channel, row in enumerate(rows):
        panel.plot(time[::3], row[::3] - step * channel, linewidth=0.6)
    panel.set(title=title, yticks=[-step * k for k in range(CHANNELS)])
    panel.set_yticklabels([f"{k + 1}" for k in range(CHANNELS)])
    panel.set(ylabel=f"channel\n({step} {unit} apart)")
    panel.axvline(SECONDS / 2, color="C4", linewidth=0.8, linestyle="--")
axes[-1].set(xlabel="time (s)", xlim=(0, SECONDS))
plt.show()
