"""Spectra before and after SNV, RNV and MSC
=========================================

Powders scatter light, so spectra of one mixture differ in offset and gain. Three corrections.

The spectra are simulated, so the amount of the substance is known. For measured ones, with a
regression, see :doc:`spectra_pls`.

To run it, in the folder of the sources: ``pip install '.[demo]'``, then
``python docs/gallery/snv_spectra.py``
"""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.collections import LineCollection

from numnorm.sklearn import (
    MultiplicativeScatterCorrection,
    RobustNormalVariate,
    StandardNormalVariate,
)

# %%
# A mixture of two substances
# ---------------------------
#
# The substance of interest has a band at 1450 nm, the other one at 1200 nm and at 1700 nm. Every
# spectrum gets an offset and a gain of its own.

rng = np.random.default_rng(0)
wavelengths = np.linspace(1000, 1900, 300)


def band(center, width):
    """Return a Gaussian band with a height of 1."""
    return np.exp(-0.5 * ((wavelengths - center) / width) ** 2)


amounts = rng.uniform(0, 1, 40)
pure = 0.15 * amounts[:, None] * band(1450, 40) + band(1200, 60) + 0.8 * band(1700, 70)
gains, offsets = rng.uniform(0.6, 1.6, (40, 1)), rng.uniform(0, 0.8, (40, 1))
spectra = gains * pure + offsets + rng.normal(0, 0.002, pure.shape)

# %%
# Four pictures
# -------------
#
# The standard normal variate (SNV) takes mean and deviation of each spectrum. The robust one (RNV)
# takes a percentile and the deviation of what lies below it: here the 60th, as the usual 25th
# leaves only the flat foot of these spectra. MSC fits each spectrum to the mean spectrum.

corrections = {
    "measured": None,
    "SNV": StandardNormalVariate(),
    "RNV": RobustNormalVariate(percentile=60),
    "MSC": MultiplicativeScatterCorrection(),
}
corrected = {
    name: spectra if correction is None else correction.fit_transform(spectra)
    for name, correction in corrections.items()
}
colors = plt.colormaps["viridis"](0.25 + 0.6 * amounts)

figure, axes = plt.subplots(2, 2, figsize=(5.6, 4.4), sharex=True)
for panel, (name, rows) in zip(axes.flat, corrected.items(), strict=True):
    lines = [np.column_stack((wavelengths, row)) for row in rows]
    panel.add_collection(LineCollection(lines, colors=colors, linewidths=1))
    panel.autoscale()
    panel.set(title=name)
axes[0, 0].set(ylabel="absorbance")
axes[1, 0].set(ylabel="corrected")
figure.supxlabel("wavelength (nm), brighter with more of the substance", fontsize="medium")
plt.show()

# %%
# What the correction is worth
# ----------------------------
#
# How well does a single wavelength tell the amount? The picture shows the squared correlation over
# all spectra. It is high far from the band of the substance, too: a correction takes its
# statistics from the whole spectrum, so it spreads the amount over all wavelengths. Read bands off
# the measured spectra.


def explained(rows):
    """Return the squared correlation of each wavelength with the amounts."""
    deviations, amount = rows - rows.mean(axis=0), amounts - amounts.mean()
    return (amount @ deviations) ** 2 / (amount @ amount * (deviations**2).sum(axis=0))


figure, panel = plt.subplots(figsize=(5.6, 2.8))
for (name, rows), dashes in zip(corrected.items(), ("-", "-", "--", ":"), strict=True):
    squared = explained(rows)
    panel.plot(wavelengths, squared, label=name, linestyle=dashes, linewidth=1.8)
    print(f"{name:>8}: r² = {squared.max():.3f} at {wavelengths[squared.argmax()]:.0f} nm")
panel.set(xlabel="wavelength (nm)", ylabel="r² with the amount", ylim=(0, 1.02))
figure.legend(loc="outside upper center", ncols=4)
plt.show()
