"""The pictures and the numbers of the start page, from what other pages and results have."""

import statistics

import numpy as np
from matplotlib.figure import Figure

import numnorm
from pictures.norms import BLUE, RED
from pictures.peers import ratios
from pictures.tables import first_table

SIZE = (4.4, 2.2)  # half the width of the page, and legible on a phone


def before_and_after():
    """Draw rows with offsets and gains of their own, and their layer norm."""
    rng = np.random.default_rng(2)
    at = np.linspace(0, 1, 120)
    row = np.exp(-(((at - 0.3) / 0.1) ** 2)) + 0.6 * np.exp(-(((at - 0.7) / 0.07) ** 2))
    rows = rng.uniform(0.4, 2.5, (7, 1)) * row + rng.uniform(-2, 2, (7, 1))
    figure = Figure(figsize=SIZE, layout="constrained")
    before, after = figure.subplots(1, 2, sharex=True)
    before.plot(at, rows.T, color=BLUE, linewidth=1.5)
    after.plot(at, numnorm.layer_norm(rows, eps=0).T, color=BLUE, linewidth=1.5)
    before.set(title="7 rows before", xticks=[])
    after.set(title="and after: one curve", xticks=[])
    return figure


def accuracy():
    """Draw the errors of a layer norm at a mean of 1e7, of numnorm and of other libraries."""
    errors = recorded_errors()
    figure = Figure(figsize=SIZE, layout="constrained")
    panel = figure.subplots()
    for place, (library, text) in enumerate(errors.items()):
        color = BLUE if library == "numnorm" else RED
        error = float(text)
        if np.isnan(error):
            panel.text(1.5e-8, place, "NaN", color=color, va="center")
            continue
        panel.barh(place, error, left=1e-8, height=0.6, color=color)
        panel.text(1.3 * error, place, text, va="center")
    panel.set(xscale="log", xlim=(1e-8, 100), yticks=range(len(errors)), ylim=(3.6, -0.6),
              title="float32 layer norm, mean 1e7",
              xlabel="largest error, deviation 1")  # fmt: skip
    panel.set_yticklabels(errors)
    return figure


def recorded_errors():
    """Return the error of each library at a mean of 1e7, from the table of the page on numerics."""
    header, *rows = first_table("numerics.md", "## Accuracy")
    (row,) = (row for row in rows if row[0].startswith("1e7,"))
    return dict(zip(header[1:], (text.removesuffix(", warns") for text in row[1:]), strict=True))


def numbers():
    """Return the numbers that the page names, as texts."""
    of_torch = ratios(".", "norms")
    plain, into = (of_torch[f"layer norm, {kind}"]["torch"] for kind in ("forward", "into out"))
    errors = recorded_errors()
    header, *norms = first_table("places.md", "## Places")
    # Where calls are marked; the others raise an error.
    marked = {place: sum("✓" in row[n] for row in norms) for n, place in enumerate(header) if n}
    return {
        "times": f"{statistics.geometric_mean(plain):.1f}",
        "least": f"{min(plain):.1f}",
        "most": f"{max(plain):.1f}",
        "times_into_out": f"{statistics.geometric_mean(into):.1f}",
        "error": errors["numnorm"],
        "error_of_torch": next(error for name, error in errors.items() if "PyTorch" in name),
        "norms": len(norms),
        "places": sum(count == len(norms) for count in marked.values()),
        "norms_on_gpu": marked["CUDA"],
    }
