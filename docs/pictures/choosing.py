"""Pictures of the page on choosing a norm."""

import numpy as np

import numnorm
from pictures.norms import BLUE, RED, panels


def two_features():
    """Points of two features before and after layer norm."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)) * (2, 1) + (1, 0)
    first = x[:, 0] > x[:, 1]
    figure, axes = panels(2, height=3.0)
    for panel, points, title in zip(axes, (x, numnorm.layer_norm(x)), ("x", "layer_norm(x)"),
                                    strict=True):  # fmt: skip
        panel.scatter(*points[first].T, s=14, color=BLUE, label="first feature larger")
        panel.scatter(*points[~first].T, s=14, color=RED, marker="s", label="second larger")
        panel.set(title=title, xlabel="first feature", ylabel="second", aspect="equal")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    axes[1].set(xlim=(-3, 3), ylim=(-3, 3))
    return figure


def batch_of_4():
    """Draw what one and the same sample becomes in batches of 128 and of 4."""
    rng = np.random.default_rng(0)
    figure, axes = panels(2, sharex=True, height=2.6)
    for panel, size in zip(axes, (128, 4), strict=True):
        batches = rng.normal(size=(size, 4000))
        batches[0] = 1.0
        panel.hist(numnorm.batch_norm(batches)[0], np.linspace(-1, 2.5, 71), color=BLUE)
        panel.axvline(1, color=RED, linewidth=1.5)
        panel.set(title=f"batches of {size}", xlabel="what the sample becomes", yticks=[])
    return figure
