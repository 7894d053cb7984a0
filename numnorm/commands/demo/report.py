"""What both reports of ``numnorm demo`` share: means, deviations, conclusions in words, curves."""

from __future__ import annotations

from typing import Any

import numpy as np

from numnorm.commands.demo.layers import Array
from numnorm.commands.demo.training import Run, Task
from numnorm.commands.terminal import require

TITLES = {
    "none": "no norm",
    "batch": "batch norm",
    "layer": "layer norm",
    "RMS": "RMS norm",
    "Ada": "AdaNorm",
}

# Okabe and Ito's colours, told apart with any colour vision; the markers serve where there is none.
STYLES = {
    "none": {"color": "#000000", "marker": "o", "linestyle": ":"},
    "batch": {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    "layer": {"color": "#0072B2", "marker": "D", "linestyle": "-"},
    "RMS": {"color": "#009E73", "marker": "^", "linestyle": "-"},
    "Ada": {"color": "#CC79A7", "marker": "v", "linestyle": "-"},
}

MOST_MARKERS = 15  # of a curve

CHANCE = 0.05
"""The share of comparisons of equals in which the t test finds a difference."""

Errors = dict[str, Array]
"""For each norm the validation errors: an axis for seeds, one for epochs, one for samples."""


def joined(runs: list[Run]) -> list[tuple[Task, Errors]]:
    """Return each task of the first run with the errors of all runs."""
    return [
        (
            same[0][0],
            {name: np.stack([found[name].errors for _, found in same]) for name in same[0][1]},
        )
        for same in zip(*runs, strict=True)
    ]


def quarter(errors: Array) -> int:
    """Return a quarter of the number of epochs, rounded up."""
    return -(-len(errors[0]) // 4)


def early(errors: Array) -> Array:
    """Return each sample's error after the first quarter of the epochs, a row for each seed."""
    result: Array = errors[:, quarter(errors) - 1]
    return result


def late(errors: Array) -> Array:
    """Return each sample's error over the last quarter of the epochs, a row for each seed."""
    result: Array = errors[:, -quarter(errors) :].mean(axis=1)
    return result


def formatted(task: Task, errors: Array) -> str:
    """Return the mean of errors and, if there are several seeds, the deviation over them.

    Parameters
    ----------
    task : Task
        Their task.
    errors : ndarray (seeds, samples)
        The errors.

    Returns
    -------
    str
        Such as ``7.5``, or ``7.5 ± 0.4``.
    """
    digits = 1 if task.data == "digits" else 4
    means = errors.mean(axis=1)
    deviation = f" ± {means.std(ddof=1):.{digits}f}" if len(means) > 1 else ""
    return f"{means.mean():.{digits}f}{deviation}"


def conclusion(title: str, task: Task, errors: Errors) -> str:
    """Return a comparison of layer norm with the others, in words.

    Parameters
    ----------
    title : str
        What the sentences begin with.
    task : Task
        The task.
    errors : dict
        The validation errors.

    Returns
    -------
    str
        Two sentences, without the point of the second.
    """
    count = quarter(errors["layer"])
    epochs = "epoch" if count == 1 else f"{count} epochs"
    first = _standing(task, {name: early(values) for name, values in errors.items()})
    last = _standing(task, {name: late(values) for name, values in errors.items()})
    return f"{title}: after the first {epochs} {first}. Over the last {epochs} {last}"


def named(name: str, task: Task, errors: Array) -> str:
    """Return the name of a norm, and in brackets its mean error; see `formatted`."""
    unit = " %" if task.data == "digits" else ""
    return f"{TITLES[name]} ({formatted(task, errors)}{unit})"


def _standing(task: Task, errors: Errors) -> str:
    """Compare layer norm with all others."""
    own = errors["layer"]
    others: dict[str, list[str]] = {}
    for name, values in errors.items():
        if name != "layer":
            others.setdefault(_relation(own, values), []).append(named(name, task, values))
    standing = (f"{relation} {' and '.join(names)}" for relation, names in others.items())
    return f"{named('layer', task, own)} is {' and '.join(standing)}"


def _relation(own: Array, other: Array) -> str:
    """Compare by a paired t test: seed by seed, or the samples of a single seed."""
    differences = (own - other)[0] if len(own) == 1 else (own - other).mean(axis=1)
    mean, count = differences.mean(), len(differences)
    if not np.isfinite(mean):
        return "not comparable with"
    limit = require("scipy.special").stdtrit(count - 1, 1 - CHANCE / 2)
    if abs(mean) <= limit * differences.std(ddof=1) / np.sqrt(count):
        return "level with"
    return "ahead of" if mean < 0 else "behind"


def what_level_means(seeds: int) -> str:
    """Return what the words of the conclusions, and the numbers of the tables, mean."""
    errs = f"It finds one in {100 * CHANCE:.0f} % of comparisons of equals"
    if seeds == 1:
        return f"Level means: a paired t test, sample by sample, finds no difference. {errs}."
    return (
        f"The numbers are means over {seeds} seeds ± the standard deviation. Level means: a paired "
        f"t test, seed by seed, finds no difference. {errs}, and of few seeds only a large one."
    )


def curves(panel: Any, errors: Errors) -> None:
    """Draw the mean error over the epochs and, if there are several seeds, their deviation.

    Parameters
    ----------
    panel : matplotlib.axes.Axes
        The panel.
    errors : dict
        The validation errors.
    """
    for name, values in errors.items():
        means = values.mean(axis=2)
        mean, epochs = means.mean(axis=0), np.arange(1, means.shape[1] + 1)
        style = {"markersize": 4, "markevery": -(-len(epochs) // MOST_MARKERS), **STYLES[name]}
        panel.plot(epochs, mean, label=TITLES[name], **style)
        if len(means) > 1:
            deviation = means.std(axis=0, ddof=1)
            band = {"color": STYLES[name]["color"], "alpha": 0.15, "linewidth": 0}
            panel.fill_between(epochs, (mean - deviation).clip(0), mean + deviation, **band)
    panel.set_xlabel("epoch")
    whole = require("matplotlib.ticker").MaxNLocator(integer=True, min_n_ticks=1)
    panel.xaxis.set_major_locator(whole)
    panel.grid(alpha=0.3)


def of_seeds(title: str, seeds: int) -> str:
    """Return the title of a picture; of several seeds, with what the curves and bands are."""
    return f"{title}\nmean and standard deviation over {seeds} seeds" if seeds > 1 else title


def in_percent(panel: Any) -> None:
    """Set the vertical axis of a panel for errors in percent.

    Parameters
    ----------
    panel : matplotlib.axes.Axes
        The panel.
    """
    ticker = require("matplotlib.ticker")
    # Like a logarithmic axis, but it includes 0.
    panel.set_yscale("symlog", linthresh=1, linscale=0.5)
    panel.yaxis.set_major_locator(ticker.FixedLocator([0, 1, 2, 5, 10, 20, 50, 100]))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_locator(ticker.NullLocator())
