"""What a norm does not see
========================

Scale the weights, shift the data: some norms give the same output as before. The table of the paper
on layer normalization, measured.

J. L. Ba, J. R. Kiros, G. E. Hinton, `Layer Normalization <https://arxiv.org/abs/1607.06450>`_,
2016, table 1.

To run it, in the folder of the sources: ``pip install '.[demo]'``, then
``python docs/gallery/invariances.py``
"""

import matplotlib.pyplot as plt
import numpy as np

import numnorm

# %%
# One linear layer
# ----------------
#
# A layer has a weight vector for each unit. Batch norm takes the mean and the deviation of a unit
# over the batch, layer norm those of a sample over the units, and weight norm divides each weight
# vector by its length. RMS norm, which is younger than the paper, divides a sample by its root
# mean square.

rng = np.random.default_rng(0)
data, weights = rng.normal(0.5, 1, (64, 20)), rng.normal(0, 1, (30, 20))

NORMS = {
    "batch": lambda x, w: numnorm.batch_norm(x @ w.T, eps=0),
    "weight": lambda x, w: x @ numnorm.weight_norm(w, np.ones(len(w))).T,
    "layer": lambda x, w: numnorm.layer_norm(x @ w.T, eps=0),
    "RMS": lambda x, w: numnorm.rms_norm(x @ w.T, eps=0),
}

# %%
# Six changes
# -----------
#
# Re-centering adds one vector to all weight vectors, or to all samples.

vector = rng.normal(0, 1, 20)
one_unit, one_sample = np.ones((30, 1)), np.ones((64, 1))
one_unit[4], one_sample[7] = 3, 3
CHANGES = {
    "all weights scaled": (data, 3 * weights),
    "all weights re-centered": (data, weights + vector),
    "one weight vector scaled": (data, one_unit * weights),
    "all data scaled": (3 * data, weights),
    "all data re-centered": (data + vector, weights),
    "one sample scaled": (one_sample * data, weights),
}


def change(norm, x, w):
    """Return the largest change of an output, relative to the largest output."""
    before, after = norm(data, weights), norm(x, w)
    return abs(after - before).max() / abs(before).max()


measured = np.array([[change(norm, *changed) for changed in CHANGES.values()]
                     for norm in NORMS.values()])  # fmt: skip

# %%
# Measured and published
# ----------------------

PUBLISHED = {  # whether the output stays
    "batch": (True, False, True, True, True, False),
    "weight": (True, False, True, False, False, False),
    "layer": (True, True, False, True, False, True),
}

print(f"{'':26}", *(f"{name:>9}" for name in NORMS))
for name, row in zip(CHANGES, measured.T, strict=True):
    print(f"{name:>26}", *(f"{value:9.1e}" for value in row))
for name, expected in PUBLISHED.items():
    row = measured[list(NORMS).index(name)]
    print(f"{name} norm agrees with the paper:", np.array_equal(row < 1e-12, expected))
    assert np.array_equal(row < 1e-12, expected)

# %%
# What stays differs by rounding, and what changes by a large part of the output: there is no doubt
# about a cell.

figure, panel = plt.subplots(figsize=(5.6, 3.1), num="which norms stay the same under which change")
stays = measured.T < 1e-12
panel.imshow(np.where(stays, 0.72, 0.2), cmap="viridis", vmin=0, vmax=1, aspect="auto")
for (row, column), kept in np.ndenumerate(stays):
    panel.text(column, row, "stays" if kept else "changes", ha="center", va="center",
               color="black" if kept else "white")  # fmt: skip
panel.set_xticks(range(len(NORMS)), [f"{name} norm" for name in NORMS])
panel.set_yticks(range(len(CHANGES)), list(CHANGES))
panel.tick_params(length=0)
panel.xaxis.tick_top()
panel.spines[:].set_visible(False)
plt.show()
