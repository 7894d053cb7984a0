"""Cepstral mean and variance normalization (CMVN)
===============================================

.. index:: ! CMVN, ! cepstral mean and variance normalization

A microphone adds a constant to log spectra. Normalization takes it away: over a whole utterance, or
in a window.

A short utterance is synthesized: three vowels from formants, with noise. In the middle the speaker
changes from a good microphone to a telephone.

To run it, in the folder of the sources: ``pip install '.[demo]'``, then
``python docs/gallery/cmvn_utterance.py``
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy import signal

import numnorm

RATE, HOP, BANDS = 16_000, 160, 26  # samples per second and per frame; mel bands
VOWELS = {"a": (730, 1090, 2440), "i": (270, 2290, 3010), "u": (300, 870, 2240)}  # formants in Hz
LENGTH = 0.2  # seconds of a vowel

# %%
# The utterance
# -------------
#
# Pulses of the vocal cords go through one resonator for each formant.

rng = np.random.default_rng(0)


def vowel(name):
    """Return a vowel with a pitch of about 120 Hz."""
    count = int(LENGTH * RATE)
    phase = np.cumsum(np.linspace(125, 115, count) / RATE)
    sound = np.diff(np.floor(phase), prepend=0.0)
    for formant in VOWELS[name]:
        radius = np.exp(-np.pi * 80 / RATE)  # a bandwidth of 80 Hz
        poles = [1, -2 * radius * np.cos(2 * np.pi * formant / RATE), radius**2]
        sound = signal.lfilter([sum(poles)], poles, sound)
    return sound * signal.windows.tukey(count, 0.2) / sound.std()


spoken = "".join(rng.permutation(list("aiu") * 7)) + "aiu" * 3
speech = np.concatenate([vowel(name) for name in spoken])
speech += rng.normal(0, 0.05, speech.size)
# The telephone: little below 300 Hz or above 3400 Hz, and a third of the loudness.
half = speech.size // 2
telephone = signal.butter(2, [300, 3400], "bandpass", fs=RATE, output="sos")
heard = np.concatenate([speech[:half], signal.sosfilt(telephone, speech[half:]) / 3])
heard += rng.normal(0, 1e-3, heard.size)

# %%
# Log mel spectra
# ---------------


def mel_filters(bins):
    """Return triangles that are equally wide on the mel scale, one a row."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, BANDS + 2) / 2595) - 1)
    low, center, high = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    frequencies = np.linspace(0, RATE / 2, bins)
    rising, falling = (frequencies - low) / (center - low), (high - frequencies) / (high - center)
    return np.clip(np.minimum(rising, falling), 0, None)


_, _, spectrum = signal.stft(heard, RATE, nperseg=400, noverlap=400 - HOP, nfft=512)
power = np.abs(spectrum) ** 2
features = np.log(mel_filters(len(power)) @ power + 1e-12).T  # a frame a row
seconds = np.arange(len(features)) * HOP / RATE
print(f"{len(features)} frames of {BANDS} bands")

# %%
# Two normalizations
# ------------------
#
# Per utterance, each band gets the mean 0 and the deviation 1 over all frames: SNV along the axis
# of time. In a window that moves, as in Kaldi, each frame is compared with its neighbours only.

WINDOW = 151  # frames, 1.5 s
per_utterance = numnorm.standard_normal_variate(features, axis=0)
sliding = numnorm.moving_norm(features, WINDOW, axis=0, center=True)

# By the definition, for one frame:
frame = len(features) // 3
around = features[frame - WINDOW // 2 : frame + WINDOW // 2 + 1]
by_definition = (features[frame] - around.mean(axis=0)) / around.std(axis=0)
print(f"off the definition by {abs(sliding[frame] - by_definition).max():.0e}")

pictures = {
    "log mel spectrum": features,
    "normalized per utterance": per_utterance,
    f"in a window of {WINDOW * HOP / RATE:.1f} s": sliding,
}
figure, axes = plt.subplots(3, figsize=(5.6, 5.6), sharex=True, sharey=True)
for panel, (title, frames) in zip(axes, pictures.items(), strict=True):
    limits = np.percentile(frames, (2, 98))
    image = panel.imshow(
        frames.T, aspect="auto", origin="lower", cmap="magma", vmin=limits[0], vmax=limits[1],
        extent=(0, seconds[-1], 0.5, BANDS + 0.5),
    )  # fmt: skip
    figure.colorbar(image, ax=panel)
    panel.set(title=title)
axes[1].set(ylabel="mel band")
axes[-1].set(xlabel=f"time (s); the telephone begins at {half / RATE:.1f} s")
plt.show()

# %%
# Does a vowel look the same through both?
# ----------------------------------------
#
# For each vowel, the distance between its mean frames before and after the change, divided by the
# mean distance between different vowels: 0 is perfect, and from 1 on the microphone matters more
# than the vowel.

middles = np.arange(len(spoken)) * LENGTH + LENGTH / 2
frames_of = (middles * RATE / HOP).astype(int)
labels, before = np.array(list(spoken)), middles < half / RATE


def confusion(frames):
    """Return the distance by microphone, relative to the distance by vowel."""
    means = np.array([[frames[frames_of[(labels == v) & (before == b)]].mean(axis=0)
                       for v in VOWELS] for b in (True, False)])  # fmt: skip
    by_microphone = np.linalg.norm(means[0] - means[1], axis=-1).mean()
    pairs = [means[:, i] - means[:, j] for i in range(3) for j in range(i)]
    return by_microphone / np.linalg.norm(pairs, axis=-1).mean()


for title, frames in pictures.items():
    print(f"{title:>28}: {confusion(frames):.2f}")
