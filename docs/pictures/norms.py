"""Pictures of what the norms do."""

import numpy as np
from matplotlib.figure import Figure
from scipy import sparse

import numnorm

BLUE, RED, GREEN = "C0", "C1", "C2"


def panels(count, height=2.4, **options):
    """Return a figure with panels beside each other."""
    figure = Figure(figsize=(5.6, height), layout="constrained")
    return figure, figure.subplots(1, count, **options)


def layer():
    """Rows with their own offset and gain, and one of another shape, before and after."""
    rng = np.random.default_rng(2)
    shape = np.cumsum(rng.normal(size=24))
    rows = rng.uniform(0.4, 2.5, (6, 1)) * shape + rng.uniform(-12, 12, (6, 1))
    other = np.cumsum(rng.normal(size=24))
    figure, (before, after) = panels(2, sharex=True)
    for panel, change, title in ((before, np.asarray, "x"), (after, numnorm.layer_norm, "x̂")):
        panel.plot(change(rows).T, color=BLUE, linewidth=1.5)
        panel.plot(change(other), color=RED, linewidth=1.5, linestyle="--")
        panel.set(title=title, xlabel="element of the row")
    return figure


def rows_of_256():
    """Histograms of four rows of 256 values, before and after."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(4, 256))
    x = points * 256**0.5 + numnorm.positional_encoding(1, 256)
    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    axes = figure.subplots(2, 4, sharex="row", sharey="row")
    for panels_of_row, values, limit, color in (
        (axes[0], x, 60, BLUE),
        (axes[1], numnorm.layer_norm(x), 3.75, GREEN),
    ):
        for panel, row in zip(panels_of_row, values, strict=True):
            panel.hist(row, np.linspace(-limit, limit, 25), color=color)
            mean = row.mean().round(2) + 0.0  # not -0
            panel.set_title(f"mean {mean:.2f}\nvariance {row.var():.2f}", fontsize="small")
    axes[0, 0].set_ylabel("x: values in a bin")
    axes[1, 0].set_ylabel("x̂: values in a bin")
    for number, panel in enumerate(axes[1], 1):
        panel.set_xlabel(f"row {number}")
    return figure


def detached():
    """Histograms of dx for what may be detached."""
    rng = np.random.default_rng(0)
    x = 1.5 * rng.normal(size=(2000, 64))
    g = 0.5 + rng.normal(size=x.shape) + x
    _, mean, rstd = numnorm.layer_norm_forward(x, eps=0)
    figure, axes = panels(4, height=2.2, sharex=True, sharey=True)
    for panel, detach in zip(axes, (None, "mean", "scale", "both"), strict=True):
        dx = numnorm.layer_norm_backward(g, x, mean, rstd, detach=detach).dx.ravel()
        panel.hist(dx, np.linspace(-3.5, 4.5, 60), color=BLUE, density=True)
        panel.axvline(dx.mean(), color=RED, linewidth=1.5)
        found = f"mean {dx.mean().round(2) + 0.0:.2f}\nvariance {dx.var():.2f}"
        panel.set(yticks=[])
        panel.set_title(f"{detach!r}\n{found}", fontsize="small")
    figure.supxlabel("dx, for each value of detach")
    return figure


def rms():
    """Layer norm and RMS norm of a row and of the same row moved up."""
    rng = np.random.default_rng(5)
    row = np.cumsum(rng.normal(size=24)) / 2
    rows = np.stack([row - row.mean(), row - row.mean() + 2])
    figure, axes = panels(3, sharex=True, sharey=True)
    changes = {"x": np.asarray, "layer norm": numnorm.layer_norm, "RMS norm": numnorm.rms_norm}
    for panel, (title, change) in zip(axes, changes.items(), strict=True):
        one, two = change(rows)
        panel.plot(one, color=BLUE, linewidth=2.5)
        panel.plot(two, color=RED, linestyle="--")
        panel.axhline(0, color="C4", linewidth=0.8)
        panel.set(title=title, xlabel="element")
    return figure


def ada():
    """Draw the map of AdaNorm, and its factor."""
    y = np.linspace(-12, 12, 200)
    figure, (values, factor) = panels(2, sharex=True)
    values.plot(y, y, color="C4", linestyle=":", label="layer norm")
    values.plot(y, (1 - 0.1 * y) * y, color=BLUE, label="z")
    values.set(xlabel="y", ylabel="z", ylim=(-24, 12))
    values.legend(loc="lower right")
    factor.plot(y, 1 - 0.1 * y, color=BLUE)
    factor.axhline(0, color="C4", linewidth=0.8)
    factor.axvspan(-3, 3, color=GREEN, alpha=0.2, linewidth=0)
    factor.text(0, -0.15, "nearly all values", ha="center", va="top", fontsize="small")
    factor.set(xlabel="y", ylabel="φ")
    return figure


def spectra():
    """Synthesized spectra before and after the standard normal variate."""
    rng = np.random.default_rng(0)
    at = np.linspace(0, 1, 300)
    amount = np.linspace(0, 1, 40)[:, None]
    spectra = np.exp(-(((at - 0.35) / 0.12) ** 2)) + 0.6 * np.exp(-(((at - 0.85) / 0.1) ** 2))
    spectra = spectra + 0.5 * amount * np.exp(-(((at - 0.65) / 0.05) ** 2))
    spectra = rng.uniform(0.5, 2, (40, 1)) * spectra + rng.uniform(-0.5, 1.5, (40, 1))
    figure, axes = panels(2, sharex=True)
    corrected = numnorm.standard_normal_variate(spectra)
    for panel, rows, title in zip(axes, (spectra, corrected), ("x", "y"), strict=True):
        for row, share in zip(rows, amount.ravel(), strict=True):
            panel.plot(at, row, color=(0.1 + 0.75 * share, 0.45, 0.75 - 0.65 * share), linewidth=1)
        panel.set(title=title, xlabel="wavelength")
    return figure


def robust():
    """Rows of one noise, some with a spike, by two norms."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(5, 60))
    rows[1, 20], rows[3, 45] = 40, 25
    figure, axes = panels(3, height=2.6, sharex=True)
    changes = {
        "x": np.asarray,
        "mean, deviation": numnorm.standard_normal_variate,
        "median, MAD": lambda x: numnorm.robust_norm(x, factor="normal"),
    }
    for panel, (title, change) in zip(axes, changes.items(), strict=True):
        for number, row in enumerate(change(rows)):
            color = RED if rows[number].max() > 9 else BLUE
            panel.plot(8 * number + row, color=color, linewidth=1)
        panel.set(title=title, yticks=[], ylim=(-5, 50), xlabel="element of the row")
    return figure


def moving_robust():
    """Outliers in a recording, and what moving norms make of them."""
    rng = np.random.default_rng(3)
    x = 2 * np.sin(np.arange(300) / 40) + 0.4 * rng.normal(size=300)
    outliers = rng.choice(300, 9, replace=False)
    x[outliers] += rng.choice([-8, 8], 9)
    figure, axes = panels(3, sharex=True)
    norms = {
        "x": x,
        "moving norm": numnorm.moving_norm(x, 31, center=True),
        "robust": numnorm.moving_robust_norm(x, 31, center=True, factor="normal"),
    }
    for panel, (title, y) in zip(axes, norms.items(), strict=True):
        panel.plot(y, color=BLUE, linewidth=0.8)
        panel.plot(outliers, y[outliers], ".", color=RED)
        panel.set(title=title, xlabel="step")
    for panel in axes[1:]:
        panel.axhspan(-3, 3, color=GREEN, alpha=0.15)
    return figure


def shared(norm):
    """Mark which elements of an array (4 samples, 6 channels, 3 × 3 positions) share statistics."""
    chosen = {
        "batch": (range(4), [2]),
        "group": ([1], [2, 3]),
        "instance": ([1], [2]),
    }[norm]
    figure = Figure(figsize=(5.4, 2.9), layout="constrained")
    axes = figure.subplots(4, 6)
    for sample in range(4):
        for channel in range(6):
            panel = axes[sample, channel]
            marked = sample in chosen[0] and channel in chosen[1]
            for row in range(3):
                for column in range(3):
                    color, strength = (RED, 0.9) if marked else ("C4", 0.35)
                    panel.fill(*_square(row, column), color=color, alpha=strength, linewidth=0)
            panel.set(aspect="equal", xticks=[], yticks=[])
            panel.spines[:].set_visible(False)
            if sample == 0:
                panel.set_title(f"channel {channel}", fontsize="small")
        axes[sample, 0].set_ylabel(f"sample {sample}", rotation=0, ha="right", va="center",
                                   fontsize="small")  # fmt: skip
    return figure


def times():
    """Draw irregular measurements, and two windows of a step."""
    rng = np.random.default_rng(7)
    gaps = np.where((np.arange(140) // 35) % 2, 0.25, 2.0) * rng.uniform(0.5, 1.5, 140)
    hours = np.cumsum(gaps)
    x = 0.05 * hours + np.where(gaps < 0.5, 2.0, 0.0) + 0.4 * rng.normal(size=len(hours))
    figure, axes = panels(2, sharey=True)
    step = 138
    windows = {
        "window=30, steps": (np.arange(140) > step - 30) & (np.arange(140) <= step),
        "window=30, hours": (hours > hours[step] - 30) & (hours <= hours[step]),
    }
    for panel, (title, inside) in zip(axes, windows.items(), strict=True):
        panel.axvspan(hours[inside][0], hours[step], color=GREEN, alpha=0.15, linewidth=0)
        panel.plot(hours[~inside], x[~inside], ".", color=BLUE, markersize=3)
        panel.plot(hours[inside], x[inside], ".", color=GREEN, markersize=4)
        panel.plot(hours[step], x[step], "o", color=RED, markersize=5)
        panel.set(title=title, xlabel="time (h)")
    return figure


def _square(row, column, size=0.9):
    x = [column, column + size, column + size, column]
    return x, [row, row, row + size, row + size]


def weight():
    """Vectors of one direction, their weight vector, and the gradient."""
    figure = Figure(figsize=(4.6, 3.4), layout="constrained")
    panel = figure.subplots()
    direction = np.array([0.8, 0.6])
    for length in (1.0, 2.2, 4.0):
        x = length * direction
        panel.plot(*x, "o", color=BLUE)
        panel.annotate("x", x, xytext=(5, -12), textcoords="offset points", color=BLUE)
    g, x = 3.0, 2.2 * direction
    y, norm = numnorm.weight_norm_forward(x[None], np.array([g]))
    angle = np.linspace(0.2, 1.1, 50)
    panel.plot(g * np.cos(angle), g * np.sin(angle), color="C4", linestyle=":", label="length g")
    panel.plot([0, 4.4 * 0.8], [0, 4.4 * 0.6], color="C4", linewidth=0.8)
    panel.annotate("", y[0], (0, 0), arrowprops={"arrowstyle": "->", "color": RED, "lw": 2})
    panel.annotate("y", y[0], xytext=(4, 6), textcoords="offset points", color=RED)
    dx = numnorm.weight_norm_backward(np.array([[-0.2, 0.9]]), x[None], norm, np.array([g])).dx[0]
    panel.annotate("", x + dx, x, arrowprops={"arrowstyle": "->", "color": GREEN, "lw": 2})
    panel.annotate("dx", x + dx, xytext=(4, 4), textcoords="offset points", color=GREEN)
    panel.set(aspect="equal", xlim=(0, 4.2), ylim=(0, 3))
    panel.legend(loc="lower right")
    return figure


def quantiles():
    """Quantiles of episodes, averaged and merged, and errors of rank of a sketch."""
    rng = np.random.default_rng(3)
    episodes = [start + rng.normal(size=(400, 1)) for start in (0, 1, 2, 14, 18)]
    figure, (left, right) = panels(2)
    for episode in episodes:
        left.hist(episode, np.linspace(-3, 22, 80), color=BLUE, alpha=0.5)
    total = None
    for episode in episodes:
        total = numnorm.quantiles(episode, after=total)
    averaged = np.mean([np.quantile(episode, 0.9) for episode in episodes])
    left.axvline(total.quantile(0.9)[0], color=GREEN, label="merged")
    left.axvline(averaged, color=RED, linestyle="--", label="averaged")
    left.legend(title="quantile 0.9", loc="upper center", fontsize="small", title_fontsize="small")
    left.set(xlabel="value", yticks=[], ylim=(0, 2 * left.get_ylim()[1]))  # below the legend
    x = rng.exponential(size=(200_000, 8))
    sketch = numnorm.quantiles(x, error=0.01)
    q = np.linspace(0.01, 0.99, 99)
    ordered, found = np.sort(x, axis=0), sketch.quantile(q)
    for channel in range(x.shape[1]):
        rank = np.searchsorted(ordered[:, channel], found[:, channel]) / len(x)
        right.plot(q, 100 * (rank - q), color=BLUE, linewidth=0.8)
    for sign in (-1, 1):
        right.axhline(100 * sign * sketch.rank_error, color=RED, linestyle="--")
    right.set(xlabel="q", ylabel="error of rank, %", ylim=(-1.5, 1.5))
    return figure


def reversible():
    """Windows of a series with a drift, before and after instance norm."""
    rng = np.random.default_rng(1)
    t = np.arange(480)
    amplitude = np.exp(0.004 * t)
    series = 5 + 0.05 * t + amplitude * np.sin(2 * np.pi * t / 24) + rng.normal(0, 0.15, t.size)
    windows = np.stack([series[start : start + 72] for start in (0, 192, 408)])
    figure, (before, after) = panels(2)
    before.plot(t, series, color="C4", linewidth=1)
    for start, window, color in zip((0, 192, 408), windows, (BLUE, RED, GREEN), strict=True):
        before.plot(np.arange(start, start + 72), window, color=color)
        after.plot(numnorm.layer_norm(window), color=color, linewidth=1.2)
    before.set(title="x", xlabel="step")
    after.set(title="y", xlabel="step of the window")
    return figure


def groups():
    """Draw samples of three groups before and after, and later ones by the same statistics."""
    rng = np.random.default_rng(4)
    means, deviations = np.array([2, 9, 5]), np.array([0.5, 1.5, 3])
    labels, later = np.repeat(np.arange(3), 60), np.repeat(np.arange(3), 8)
    x, new = (
        (means[own] + deviations[own] * rng.normal(size=len(own)))[:, None]
        for own in (labels, later)
    )
    statistics = numnorm.batch_moments(x, labels=labels)
    y, new_y = (
        numnorm.batch_norm(values, labels=own, statistics=statistics, eps=0)
        for values, own in ((x, labels), (new, later))
    )
    figure, axes = panels(2)
    for panel, known, others, title in zip(axes, (x, y), (new, new_y), "xy", strict=True):
        for group, color in enumerate((BLUE, RED, GREEN)):
            for values, own, marker in ((known, labels, "."), (others, later, "x")):
                values = values[own == group]
                at = group + np.linspace(-0.3, 0.3, len(values))
                panel.plot(at, values, marker, color=color, alpha=0.8)
        panel.set(title=title, xticks=range(3), xticklabels="abc", xlabel="group")
    return figure


def sparse_columns():
    """Draw a matrix of counts before and after its columns are divided by their deviations."""
    rng = np.random.default_rng(4)
    means = 10.0 ** rng.uniform(-0.5, 1.5, 24)
    counts = rng.poisson(means, (14, 24)) * (rng.random((14, 24)) < 0.25)
    x = sparse.csr_array(counts)
    figure, axes = panels(2, sharex=True, sharey=True)
    for panel, matrix, title in (
        (axes[0], x, "counts"),
        (axes[1], numnorm.batch_norm(x, with_mean=False, eps=0), "divided by the deviation"),
    ):
        rows, columns = matrix.nonzero()
        values = matrix[rows, columns]
        points = panel.scatter(columns, rows, c=values, marker="s", s=22, cmap="viridis", vmin=0)
        figure.colorbar(points, ax=panel, shrink=0.8)
        panel.set(title=title, xlabel="column", xticks=[], yticks=[], aspect="equal")
    axes[0].set_ylabel("row")
    return figure
