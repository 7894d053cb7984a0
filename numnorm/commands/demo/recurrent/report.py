"""The text output of ``numnorm demo lstm``: tables, and conclusions in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.commands.demo.curves import TITLES
from numnorm.commands.demo.layers import Array
from numnorm.commands.demo.recurrent.comparison import Results, Task
from numnorm.commands.demo.recurrent.corners import NOISE
from numnorm.commands.demo.recurrent.digits import ROWS, SHORTEST
from numnorm.commands.errors import require

COMPARED = f"""\
No norm is rnn.lstm with norm=None, layer norm with norm="layer". Batch norm is \
rnn.RecurrentBatchNorm: statistics of each step apart, those of the batch in training and running \
ones in validation. It refuses to train with a single sequence, which has no variance: 1 at a \
time, norm="batch" stands in for it, which makes all that it normalizes 0, whatever the image, \
and the running statistics stay as they began. Weights begin alike (but for gains: 0.1 of batch \
norm, as its authors have them, and 1 of layer norm) and batches come alike; the points of the \
corners are layer-normalized for all. The digits that come 4 or 1 at a time are a sixth of all. \
Cut short: {SHORTEST} to {ROWS} rows are left of each image, in training and validation; in \
training, batch norm has 0 where one image of a batch is longer than all others, too."""

Errors = dict[str, Array]
"""For each cell the validation error of each sample after each epoch."""


def print_report(results: Results) -> None:
    """Print tables and conclusions on stdout.

    Parameters
    ----------
    results : list
        The result of `compare`.
    """
    tasks: list[tuple[Task, Errors]] = [
        (task, {name: result.errors for name, result in cells.items()}) for task, cells in results
    ]
    console = require("rich.console").Console(highlight=False)
    console.print("\nValidation: digits, error (%); corners, mean squared error\n")
    console.print(_table("after the first quarter of the epochs", tasks, early), "")
    console.print(_table("over the last quarter of the epochs", tasks, late), "")
    console.print(
        COMPARED,
        *(conclusion(*task) for task in tasks),
        own_statistics(results),
        "Level means: no further apart than two standard errors of the difference, sample by "
        "sample. What is close may turn with another --seed, and with more --epochs. No forecast "
        f"of the corners is expected to be better than their noise, {NOISE**2:.4f}.",
        sep="\n",
    )


def quarter(errors: Array) -> int:
    """Return a quarter of the number of epochs, rounded up."""
    return -(-len(errors) // 4)


def early(errors: Array) -> Array:
    """Return each sample's error after the first quarter of the epochs."""
    result: Array = errors[quarter(errors) - 1]
    return result


def late(errors: Array) -> Array:
    """Return each sample's error over the last quarter of the epochs."""
    result: Array = errors[-quarter(errors) :].mean(axis=0)
    return result


def _table(title: str, tasks: list[tuple[Task, Errors]], when: Callable[[Array], Array]) -> Any:
    box = require("rich.box").SIMPLE_HEAD
    table = require("rich.table").Table(
        title=title, box=box, show_edge=False, padding=0, pad_edge=False
    )
    table.add_column("")
    for task, _ in tasks:
        heading = f"{task.data},\n{task.samples.replace(', ', chr(10))}"
        table.add_column(heading, justify="right", min_width=12)
    for name in tasks[0][1]:
        values = (_formatted(task, when(errors[name])) for task, errors in tasks)
        table.add_row(TITLES[name], *values)
    return table


def _formatted(task: Task, errors: Array | float) -> str:
    return f"{np.mean(errors):.1f}" if task.data == "digits" else f"{np.mean(errors):.4f}"


def conclusion(task: Task, errors: Errors) -> str:
    """Return a comparison of layer norm with the others, in words.

    Parameters
    ----------
    task : Task
        The task.
    errors : dict
        For each cell the validation error of each sample after each epoch.

    Returns
    -------
    str
        Two sentences.
    """
    count = quarter(errors["layer"])
    epochs = "epoch" if count == 1 else f"{count} epochs"
    first = _standing(task, {name: early(values) for name, values in errors.items()})
    last = _standing(task, {name: late(values) for name, values in errors.items()})
    return (
        f"{task.data.capitalize()}, {task.samples}: after the first {epochs} {first}. "
        f"Over the last {epochs} {last}."
    )


def _standing(task: Task, errors: Errors) -> str:
    """Compare layer norm with all others."""
    unit = " %" if task.data == "digits" else ""
    own = errors["layer"]
    others: dict[str, list[str]] = {}
    for name, values in errors.items():
        if name != "layer":
            other = f"{TITLES[name]} ({_formatted(task, values)}{unit})"
            others.setdefault(_relation(own, values), []).append(other)
    standing = (f"{relation} {' and '.join(names)}" for relation, names in others.items())
    return f"layer norm ({_formatted(task, own)}{unit}) is {' and '.join(standing)}"


def _relation(own: Array, other: Array) -> str:
    differences = own - other
    mean = differences.mean()
    if abs(mean) <= 2 * differences.std() / np.sqrt(len(differences)):
        return "level with"
    return "ahead of" if mean < 0 else "behind"


def own_statistics(results: Results) -> str:
    """Return the errors of batch norm without running statistics, in words."""
    values = ", ".join(
        f"{_formatted(task, cells['batch'].own)} ({task.data}, {task.samples})"
        for task, cells in results
    )
    return (
        "Batch norm in the end, with the statistics of all validation samples instead of running "
        f"ones: {values}."
    )
