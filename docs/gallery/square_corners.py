"""The corners of a square, before and after layer norm
====================================================

A point has two coordinates, and :doc:`a layer norm of two numbers </choosing>` only says which is
larger. So project first.

Sequences visit the corners of a square. Their points are projected to more dimensions, the encoding
of their positions is added, and the sum is normalized.

``python -m numnorm demo lstm`` trains networks on these sequences.

To run it, in the folder of the sources: ``pip install '.[demo]'``, then
``python docs/gallery/square_corners.py``
"""

import matplotlib.pyplot as plt
import numpy as np

import numnorm

# %%
# The sequences
# -------------
#
# Each begins at any corner and goes round in either direction, with noise.

rng = np.random.default_rng(0)
CORNERS = np.array([[-1, -1], [-1, 1], [1, 1], [1, -1]])


def walks(count):
    """Return walks of four points, (count, 4, 2)."""
    starts, directions = rng.integers(4, size=(count, 1)), rng.choice([-1, 1], size=(count, 1))
    points = CORNERS[(starts + directions * np.arange(4)) % 4]
    return points + rng.normal(0, 0.1, points.shape)


points = walks(256)

# %%
# The trap
# --------
#
# Of two numbers, one is as far above their mean as the other is below: after a layer norm there
# are two points left.

trapped = numnorm.layer_norm(points, eps=0)
print("points after a layer norm:", np.unique(trapped.round(6).reshape(-1, 2), axis=0).tolist())

figure, axes = plt.subplots(1, 2, figsize=(5.6, 3.0), sharex=True, sharey=True)
first_larger = points[..., 0] > points[..., 1]
for panel, where, title in ((axes[0], points, "points"), (axes[1], trapped, "after layer norm")):
    panel.plot(*where[first_larger].T, "o", markersize=3, label="first coordinate larger")
    panel.plot(*where[~first_larger].T, "s", markersize=3, label="second larger")
    panel.set(title=title, xlabel="first coordinate", aspect="equal")
axes[0].plot(*points[0].T, color="C4", linewidth=1.5, label="one walk")
axes[0].set(ylabel="second coordinate")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
plt.show()

# %%
# Projection and positions
# ------------------------
#
# Now in 32 dimensions: projected, multiplied by the root of the width as in the paper on
# attention, with sines and cosines that tell the positions apart. The encoding goes in *before*
# the norm, so that the norm scales both together.

WIDTH = 32
projection = rng.uniform(-0.7, 0.7, (2, WIDTH))
positions = numnorm.positional_encoding(4, WIDTH, dtype=np.float64)
projected = points @ projection * WIDTH**0.5
before = projected + positions
after = numnorm.layer_norm(before)

figure, axes = plt.subplots(4, 2, figsize=(5.6, 5.0), sharex="col", sharey="col")
for column, (values, title) in enumerate(((before, "before"), (after, "after"))):
    bins = np.linspace(*np.percentile(values, (0, 100)), 50)
    for position in range(4):
        panel, chosen = axes[position, column], values[:, position]
        panel.hist(chosen.ravel(), bins, color=f"C{column}", density=True)
        panel.set(yticks=[])
        panel.spines["left"].set_visible(False)
        if not column:
            panel.set_ylabel(f"point {position + 1}", rotation=0, ha="right", va="center")
    axes[0, column].set(title=f"{title} the norm")
    axes[-1, column].set(xlabel="value")
plt.show()

# %%
# A row before the norm has the scale of its point; after it, every row has the mean 0 and the
# variance 1.

for name, values in (("before", before), ("after", after)):
    means, variances = values.mean(axis=-1), values.var(axis=-1)
    print(
        f"{name:>6}: mean of a row {means.min():6.2f} to {means.max():5.2f}, "
        f"variance {variances.min():5.2f} to {variances.max():5.2f}"
    )

# %%
# Nothing is lost now: from the normalized rows a linear map finds the corner again.

corner = np.sign(points).reshape(-1, 2)
for name, rows in (("layer norm of 2", trapped), (f"layer norm of {WIDTH}", after)):
    flat = rows.reshape(len(corner), -1)
    flat = np.column_stack((flat, np.ones(len(flat))))
    half = len(flat) // 2
    solution = np.linalg.lstsq(flat[:half], corner[:half], rcond=None)[0]
    right = (np.sign(flat[half:] @ solution) == corner[half:]).all(axis=1).mean()
    print(f"{name:>16}: {right:.0%} of the corners found")
