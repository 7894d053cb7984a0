"""In a compiled loop of your own
==============================

A norm inside ``@njit(parallel=True)``, with the steps before and after it: a spectrum goes through
all of them while it is in the cache.

:doc:`/njit` has the rules.

To run it, in the folder of the sources: ``pip install '.[demo]'``, then
``python docs/gallery/njit_pipeline.py``
"""

import time

import matplotlib.pyplot as plt
import numba
import numpy as np

import numnorm

# %%
# Spectra with a peak
# -------------------
#
# Where is the peak, how high is it over the noise, and how wide? Every spectrum has its own gain
# and offset.

rng = np.random.default_rng(0)
WIDTH = 1024
positions = rng.uniform(300, 700, 8_000)
heights = rng.uniform(0.5, 2, (len(positions), 1))
channels = np.arange(WIDTH)
spectra = heights * np.exp(-0.5 * ((channels - positions[:, None]) / 12) ** 2)
spectra += rng.uniform(1, 5, (len(positions), 1)) + rng.normal(0, 0.05, spectra.shape)
spectra = spectra.astype(np.float32)

# %%
# With whole arrays
# -----------------
#
# Each step goes over all spectra and makes an array of their size.


def with_numpy(spectra):
    """Return position, height and width of the peak of each spectrum."""
    centred = spectra - spectra.mean(axis=1, keepdims=True)
    z = centred / spectra.std(axis=1, keepdims=True)
    smooth = (z[:, :-4] + z[:, 1:-3] + z[:, 2:-2] + z[:, 3:-1] + z[:, 4:]) / np.float32(5)
    peaks = smooth.argmax(axis=1)
    highest = smooth.max(axis=1)
    widths = (smooth > highest[:, None] / 2).sum(axis=1)
    return np.column_stack((peaks + 2, highest, widths))


# %%
# In one loop
# -----------
#
# Numba finds numnorm by itself; the call stands in the loop as it would stand in Python.


@numba.njit(parallel=True)
def in_a_loop(spectra):
    """Return the same, spectrum by spectrum."""
    found = np.empty((len(spectra), 3), np.float64)
    for i in numba.prange(len(spectra)):
        z = numnorm.standard_normal_variate(spectra[i])
        smooth = np.empty(len(z) - 4, np.float32)
        peak = 0
        for j in range(len(smooth)):
            smooth[j] = (z[j] + z[j + 1] + z[j + 2] + z[j + 3] + z[j + 4]) / np.float32(5)
            if smooth[j] > smooth[peak]:
                peak = j
        width = 0
        for j in range(len(smooth)):
            width += smooth[j] > smooth[peak] / 2
        found[i, 0], found[i, 1], found[i, 2] = peak + 2, smooth[peak], width
    return found


expected, found = with_numpy(spectra), in_a_loop(spectra)
print(f"largest difference: {abs(found - expected).max():.0e}")
assert np.allclose(found, expected, rtol=1e-4, atol=1)  # a peak of noise may be one channel aside


def fastest(function, times=5):
    """Return the shortest of several times, in seconds."""
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        function(spectra)
        found.append(time.perf_counter() - begin)
    return min(found)


ratio = fastest(with_numpy) / fastest(in_a_loop)
print(f"the loop is {ratio:.1f} times as fast, on {numba.get_num_threads()} thread(s)")

# %%
# What it found
# -------------

figure, axes = plt.subplots(1, 2, figsize=(5.6, 3.0), width_ratios=(3, 2))
for k, row in enumerate(spectra[:4]):
    z = numnorm.standard_normal_variate(row) - 9 * k
    axes[0].plot(z, linewidth=0.8)
    axes[0].plot(found[k, 0], found[k, 1] - 9 * k, "v", color="C4", markersize=6)
axes[0].set(xlabel="channel", ylabel="normalized, 9 apart", title="four spectra")
axes[1].hist(found[:, 0] - positions, np.arange(-10.25, 10.5, 0.5))
axes[1].set(xlabel="found − true (channels)", ylabel="spectra", title="all spectra")
plt.show()
