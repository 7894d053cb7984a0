"""Entries in a wrong unit
=======================

A few values in a wrong unit move the mean of a column and make its deviation so large that the
wrong values look normal. Median and MAD show them.

The data are the 13 measurements of 178 wines that scikit-learn ships.

To run it, in the folder of the sources: ``pip install '.[demo]'``, then
``python docs/gallery/robust_columns.py``
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine

import numnorm

# %%
# A table with wrong entries
# --------------------------
#
# In each column one entry of twenty is ten times too large.

wines = load_wine()
x = wines.data.copy()
rng = np.random.default_rng(0)
is_wrong = np.column_stack([rng.permutation(len(x)) % 20 == 0 for _ in range(x.shape[1])])
x[is_wrong] *= 10

# %%
# Two ways to scale columns
# -------------------------
#
# ``factor="normal"`` makes the MAD a standard deviation, so that both rules mean the same.

scaled = {
    "mean, deviation": numnorm.standard_normal_variate(x, axis=0),
    "median, MAD": numnorm.robust_norm(x, axis=0, factor="normal"),
}

# %%
# What lies more than 5 deviations away
# -------------------------------------

found = {}
for name, y in scaled.items():
    away = abs(y) > 5
    found[name] = away[is_wrong].mean()
    alarms = away[~is_wrong].mean()
    print(f"{name:>16}: {found[name]:.0%} of the wrong entries, {alarms:.1%} of the right ones")
assert found["median, MAD"] > 0.9 > 0.4 > found["mean, deviation"]

# %%
# One column
# ----------
#
# The alcohol of each wine. Divided by the deviation, right entries lie within a fraction of 1.

figure, axes = plt.subplots(1, 2, figsize=(5.6, 2.6))
for panel, (name, y) in zip(axes, scaled.items(), strict=True):
    for kind, color in ((False, "C0"), (True, "C1")):
        some = is_wrong[:, 0] == kind
        panel.plot(np.flatnonzero(some), y[some, 0], ".", color=color)
    panel.axhline(5, color="C4", linewidth=0.8)
    panel.set(title=name, xlabel="wine", yscale="symlog")
axes[0].set(ylabel="alcohol, scaled")
plt.show()
