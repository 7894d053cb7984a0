"""The picture of ``numnorm demo lstm``: learning curves, and inputs and outputs of norms."""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np

from numnorm.commands.demo.curves import STYLES, TITLES, percent_over_epochs
from numnorm.commands.demo.recurrent.before_after import Pair, of_the_reader, of_the_walker
from numnorm.commands.demo.recurrent.comparison import Results, Task
from numnorm.commands.demo.recurrent.corners import NOISE
from numnorm.commands.demo.training import one_thread
from numnorm.commands.errors import require

MOST_MARKERS = 15


def draw(results: Results, file: BinaryIO) -> None:
    """Draw the results as a PNG.

    Parameters
    ----------
    results : list
        The result of `compare`.
    file : BinaryIO
        The file of the picture.
    """
    figure = require("matplotlib.figure").Figure(figsize=(16, 8.4), layout="constrained")
    above, below = figure.subfigures(2, 1)
    above.suptitle("LSTMs reading handwritten digits row by row, and walking around a square")
    panels = above.subplots(1, len(results), squeeze=False)[0]
    for panel, (task, cells) in zip(panels, results, strict=True):
        _curves(panel, task, {name: result.errors.mean(axis=1) for name, result in cells.items()})
    above.axes[0].legend(frameon=False, loc="lower left")
    with one_thread():  # its kernels are compiled already
        values = _values(results)
    below.suptitle("What the trained layer norms of the LSTM take and give, and that of its input")
    panels = below.subplots(1, len(values), squeeze=False)[0]
    for panel, (title, pair) in zip(panels, values.items(), strict=True):
        _histograms(panel, title, *pair)
    below.axes[0].set_ylabel("density")
    figure.savefig(file, format="png", dpi=150)


def _values(results: Results) -> dict[str, Pair]:
    """Return the panels of values: of the first task with digits, and of the corners."""
    panels: dict[str, Pair] = {}
    seen: set[str] = set()
    for task, cells in results:
        if task.data in seen:
            continue
        seen.add(task.data)
        network = cells["layer"].network
        if task.data == "digits":
            pairs = of_the_reader(network, task.validation[0])
            panels |= {f"digits: {norm}": pair for norm, pair in pairs.items()}
        else:
            pair = of_the_walker(network, task.validation[0])
            panels["corners: projected points and positions"] = pair
    return panels


def _curves(panel: Any, task: Task, curves: dict[str, Any]) -> None:
    for name, values in curves.items():
        every = -(-len(values) // MOST_MARKERS)
        epochs = np.arange(1, len(values) + 1)
        style = {"markersize": 4, "markevery": every, **STYLES[name]}
        panel.plot(epochs, values, label=TITLES[name], **style)
    panel.set(title=f"{task.data}, {task.samples}", xlabel="epoch")
    panel.grid(alpha=0.3)
    if task.data == "digits":
        percent_over_epochs(panel)
        panel.set_ylim(0, 100)
        panel.set_ylabel("validation error (%)")
    else:
        panel.set(yscale="log", ylim=(NOISE**2 / 1.5, None))
        panel.set_ylabel("validation loss (mean squared error)")
        panel.axhline(NOISE**2, color="grey", linewidth=1, zorder=0)
        coords = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
        panel.annotate("the noise", (0.04, NOISE**2), (0, -12), **coords)


def _histograms(panel: Any, title: str, before: Any, after: Any) -> None:
    # Leaves out one value in a thousand, so that the rest stays wide.
    limit = max(float(np.quantile(np.abs(values), 0.999)) for values in (before, after))
    bins = np.linspace(-limit, limit, 61)
    styles: dict[str, dict[str, Any]] = {
        "before": {"color": "#000000", "alpha": 0.35, "histtype": "stepfilled"},
        "after": {"color": "#0072B2", "linewidth": 1.5, "histtype": "step"},
    }
    for (when, style), values in zip(styles.items(), (before, after), strict=True):
        label = f"{when}, standard deviation {values.std():.2f}"
        panel.hist(values.ravel(), bins, density=True, label=label, **style)
    panel.set(title=title, xlabel="value")
    panel.set_ylim(top=1.25 * panel.get_ylim()[1])  # space for the legend
    panel.legend(frameon=False, loc="upper left")
