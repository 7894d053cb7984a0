"""The output of ``numnorm demo``: tables, a picture, and conclusions in words."""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np

from numnorm.commands.demo.classifier import Results
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


def print_tables(results: Results) -> None:
    """Print the validation errors on stdout, side by side if the terminal is wide enough.

    Parameters
    ----------
    results : dict
        The errors.
    """
    columns = require("rich.columns").Columns(
        [_table(batch_size, errors) for batch_size, errors in results.items()], padding=(0, 2)
    )
    require("rich.console").Console().print("\nValidation error (%)\n", columns)


def _table(batch_size: int, errors: dict[str, list[float]]) -> object:
    box = require("rich.box").SIMPLE_HEAD
    table = require("rich.table").Table(
        title=f"batch size {batch_size}", box=box, padding=0, pad_edge=False
    )
    for heading in ("epoch", *errors):
        table.add_column(heading, justify="right", min_width=5)
    for epoch, row in enumerate(zip(*errors.values(), strict=True), 1):
        table.add_row(str(epoch), *(f"{error:.1f}" for error in row))
    return table


def draw(results: Results, file: BinaryIO) -> None:
    """Draw the validation errors as a PNG, a panel for each batch size.

    Parameters
    ----------
    results : dict
        The errors.
    file : BinaryIO
        The file of the picture.
    """
    # Without pyplot there is no global state, and no window system is needed.
    figure = require("matplotlib.figure").Figure(figsize=(10, 4.6), layout="constrained")
    panels = figure.subplots(1, len(results), sharey=True, squeeze=False)[0]
    for panel, (batch_size, errors) in zip(panels, results.items(), strict=True):
        for name, values in errors.items():
            epochs = np.arange(1, len(values) + 1)
            panel.plot(epochs, values, label=TITLES[name], markersize=5, **STYLES[name])
        panel.set(title=f"batch size {batch_size}", xlabel="epoch")
        percent_over_epochs(panel)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("validation error (%), logarithmic above 1 %")
    panels[-1].legend(frameon=False)
    figure.suptitle("Handwritten digits, 64-256-256-10 network: what each norm does for learning")
    figure.savefig(file, format="png", dpi=150)


def percent_over_epochs(panel: Any) -> None:
    """Set the axes of a panel for errors in percent.

    Parameters
    ----------
    panel : matplotlib.axes.Axes
        The panel.
    """
    ticker = require("matplotlib.ticker")
    # Like a logarithmic axis, but it includes 0.
    panel.set_yscale("symlog", linthresh=1, linscale=0.5)
    panel.xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    panel.yaxis.set_major_locator(ticker.FixedLocator([0, 1, 2, 5, 10, 20, 50, 100]))
    panel.yaxis.set_major_formatter("{x:g}")
    panel.yaxis.set_minor_locator(ticker.NullLocator())


def print_conclusions(results: Results, images: int) -> None:
    """Print conclusions about layer norm, and the size of random differences.

    Parameters
    ----------
    results : dict
        The errors.
    images : int
        The number of validation images.
    """
    lines = [_conclusion(batch_size, errors, images) for batch_size, errors in results.items()]
    lines.append(
        f"Level means: no further apart than one standard deviation of such a difference on "
        f"{images} images. A single image is {100 / images:.1f} points."
    )
    require("rich.console").Console(highlight=False).print(*lines, sep="\n")


def _conclusion(batch_size: int, errors: dict[str, list[float]], images: int) -> str:
    count = -(-len(errors["layer"]) // 4)
    epochs = "epoch" if count == 1 else f"{count} epochs"
    early = {name: values[count - 1] for name, values in errors.items()}
    late = {name: float(np.mean(values[-count:])) for name, values in errors.items()}
    best = min(late, key=late.__getitem__)
    return (
        f"Batch size {batch_size}: after the first {epochs} {_standing(early, images)}. "
        f"Over the last {epochs} {_standing(late, images)}; "
        f"the lowest is {TITLES[best]} ({late[best]:.1f} %)."
    )


def _standing(errors: dict[str, float], images: int) -> str:
    """Compare layer norm with no norm and with batch norm."""
    own = errors["layer"]
    none, batch = (f"{TITLES[name]} ({errors[name]:.1f} %)" for name in ("none", "batch"))
    to_none, to_batch = (_relation(own, errors[name], images) for name in ("none", "batch"))
    again = "" if to_batch == to_none else f"{to_batch} "
    return f"layer norm ({own:.1f} %) is {to_none} {none} and {again}{batch}"


def _relation(own: float, other: float, images: int) -> str:
    rate = max((own + other) / 200, 1 / images)
    chance = 100 * np.sqrt(2 * rate * (1 - rate) / images)
    if abs(own - other) <= chance:
        return "level with"
    return "ahead of" if own < other else "behind"
