"""The output of ``numnorm demo``: tables, a picture, and conclusions in words."""

from __future__ import annotations

from typing import BinaryIO

from numnorm.commands.demo.report import (
    Errors,
    conclusion,
    curves,
    formatted,
    in_percent,
    joined,
    late,
    named,
    of_seeds,
    what_level_means,
)
from numnorm.commands.demo.training import Run, Task
from numnorm.commands.terminal import require


def print_report(runs: list[Run]) -> None:
    """Print tables, side by side if the terminal is wide enough, and conclusions on stdout.

    Parameters
    ----------
    runs : list
        The results of each seed.
    """
    results = joined(runs)
    tables = require("rich.columns").Columns(
        [_table(*result) for result in results], padding=(0, 2)
    )
    console = require("rich.console").Console(highlight=False)
    console.print("\nValidation error (%)\n", tables)
    images = len(results[0][0].validation[1])
    console.print(
        *(_conclusion(*result) for result in results),
        f"{what_level_means(len(runs))} A single image is {100 / images:.1f} points.",
        sep="\n",
    )


def _table(task: Task, errors: Errors) -> object:
    box = require("rich.box").SIMPLE_HEAD
    table = require("rich.table").Table(title=task.batches, box=box, padding=0, pad_edge=False)
    for heading in ("epoch", *errors):
        table.add_column(heading, justify="right", min_width=5)
    for epoch in range(task.epochs):
        cells = (formatted(task, values[:, epoch]) for values in errors.values())
        table.add_row(str(epoch + 1), *cells)
    return table


def _conclusion(task: Task, errors: Errors) -> str:
    """Compare layer norm with no norm and with batch norm, and name the best norm."""
    three = {name: errors[name] for name in ("none", "batch", "layer")}
    best = min(errors, key=lambda name: float(late(errors[name]).mean()))
    lowest = named(best, task, late(errors[best]))
    return f"{conclusion(task.batches.capitalize(), task, three)}; the lowest is {lowest}."


def draw(runs: list[Run], file: BinaryIO) -> None:
    """Draw the validation errors as a PNG, a panel for each batch size.

    Parameters
    ----------
    runs : list
        The results of each seed.
    file : BinaryIO
        The file of the picture.
    """
    # Without pyplot there is no global state, and no window system is needed.
    figure = require("matplotlib.figure").Figure(figsize=(10, 4.6), layout="constrained")
    panels = figure.subplots(1, len(runs[0]), sharey=True, squeeze=False)[0]
    for panel, (task, errors) in zip(panels, joined(runs), strict=True):
        curves(panel, errors)
        in_percent(panel)
        panel.set_title(task.batches)
    panels[0].set_ylabel("validation error (%), logarithmic above 1 %")
    panels[-1].legend(frameon=False)
    title = "Handwritten digits, 64-256-256-10 network: what each norm does for learning"
    figure.suptitle(of_seeds(title, len(runs)))
    figure.savefig(file, format="png", dpi=150)
