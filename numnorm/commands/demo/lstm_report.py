"""The output of ``numnorm demo lstm``: tables, conclusions in words, and a picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

import numnorm
from numnorm import rnn
from numnorm.commands.demo.layers import Array
from numnorm.commands.demo.lstm import NOISE, ROWS, SHORTEST, Reader, Walker
from numnorm.commands.demo.report import (
    TITLES,
    Errors,
    conclusion,
    curves,
    early,
    formatted,
    in_percent,
    joined,
    late,
    of_seeds,
    what_level_means,
)
from numnorm.commands.demo.training import Run, Task, one_thread
from numnorm.commands.terminal import require

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

Pair = tuple[Array, Array]
"""Values before a layer norm, and after it."""


def print_report(runs: list[Run]) -> None:
    """Print tables and conclusions on stdout.

    Parameters
    ----------
    runs : list
        The results of each seed.
    """
    results = joined(runs)
    console = require("rich.console").Console(highlight=False)
    console.print("\nValidation: digits, error (%); corners, mean squared error\n")
    console.print(_table("after the first quarter of the epochs", results, early), "")
    console.print(_table("over the last quarter of the epochs", results, late), "")
    turn = "another --seed" if len(runs) == 1 else "other seeds"
    console.print(
        COMPARED,
        *(
            f"{conclusion(f'{task.data.capitalize()}, {task.batches}', task, errors)}."
            for task, errors in results
        ),
        own_statistics(runs),
        f"{what_level_means(len(runs))} What is close may turn with {turn}, and with more "
        f"--epochs. No forecast of the corners is expected to be better than their noise, "
        f"{NOISE**2:.4f}.",
        sep="\n",
    )


def _table(title: str, results: list[tuple[Task, Errors]], when: Callable[[Array], Array]) -> Any:
    box = require("rich.box").SIMPLE_HEAD
    table = require("rich.table").Table(
        title=title, box=box, show_edge=False, padding=0, pad_edge=False
    )
    table.add_column("")
    for task, _ in results:
        heading = f"{task.data},\n{task.batches.replace(', ', chr(10))}"
        table.add_column(heading, justify="right", min_width=12)
    for name in results[0][1]:
        values = (formatted(task, when(errors[name])) for task, errors in results)
        table.add_row(TITLES[name], *values)
    return table


def own_statistics(runs: list[Run]) -> str:
    """Return the errors of batch norm without running statistics, in words.

    The running statistics of these networks change.
    """
    values = []
    with one_thread():  # as in training: only these kernels are compiled
        for same in zip(*runs, strict=True):
            errors = [
                cells["batch"].network.error(*task.validation, training=True)
                for task, cells in same
            ]
            task = same[0][0]
            values.append(f"{formatted(task, np.array(errors))} ({task.data}, {task.batches})")
    return (
        "Batch norm in the end, with the statistics of all validation samples instead of running "
        f"ones: {', '.join(values)}."
    )


def of_the_reader(reader: Reader, images: Array) -> dict[str, Pair]:
    """Return inputs and outputs of the layer norms of an LSTM over images of digits.

    Parameters
    ----------
    reader : Reader
        A network with layer-normalized cells.
    images : ndarray
        Images with all rows.

    Returns
    -------
    dict
        For each norm its inputs and its outputs, including gain and bias.
    """
    own = reader.cell.parameters
    x = images.reshape(-1, ROWS, ROWS).swapaxes(0, 1)
    h = c = None
    states = []
    cells = []
    for step in range(ROWS):
        _, h, c, _ = rnn.lstm_forward(x[step : step + 1], own, h, c)
        states.append(h)
        cells.append(c)
    # The state before the first step is 0.
    products_h = np.matmul(np.array(states[:-1]), own.weight_h.T)
    return {
        f"W_x x, steps 1 to {ROWS}": _normalized(
            np.matmul(x, own.weight_x.T), own.gamma_x, own.beta_x
        ),
        f"W_h h, steps 2 to {ROWS}": _normalized(products_h, own.gamma_h, own.beta_h),
        f"c, steps 1 to {ROWS}": _normalized(np.array(cells), own.gamma_c, own.beta_c),
    }


def of_the_walker(walker: Walker, walks: Array) -> Pair:
    """Return the projected points with their positions, before and after the layer norm.

    Parameters
    ----------
    walker : Walker
        The network.
    walks : ndarray (B, 4, 2)
        The walks; the last point is not read.

    Returns
    -------
    tuple of ndarray
        The values before and after.
    """
    encoded = walker.encoded(walks.swapaxes(0, 1)[:-1])
    return _normalized(encoded, walker.layer_norm.gain, walker.layer_norm.bias)


def _normalized(values: Array, gain: Array, bias: Array) -> Pair:
    return values, numnorm.layer_norm_forward(values, gain, bias).y


def draw(runs: list[Run], file: BinaryIO) -> None:
    """Draw a PNG: the errors of all seeds and, below, what the norms do in networks of the first.

    Parameters
    ----------
    runs : list
        The results of each seed.
    file : BinaryIO
        The file of the picture.
    """
    figure = require("matplotlib.figure").Figure(figsize=(16, 8.4), layout="constrained")
    above, below = figure.subfigures(2, 1)
    title = "LSTMs reading handwritten digits row by row, and walking around a square"
    above.suptitle(of_seeds(title, len(runs)))
    panels = above.subplots(1, len(runs[0]), squeeze=False)[0]
    for panel, (task, errors) in zip(panels, joined(runs), strict=True):
        curves(panel, errors)
        _labels(panel, task)
    above.axes[0].legend(frameon=False, loc="lower left")
    with one_thread():  # as in training: only these kernels are compiled
        values = _values(runs[0])
    title = "What the trained layer norms of the LSTM take and give, and that of its input"
    below.suptitle(f"{title} (first seed)" if len(runs) > 1 else title)
    panels = below.subplots(1, len(values), squeeze=False)[0]
    for panel, (title, pair) in zip(panels, values.items(), strict=True):
        _histograms(panel, title, *pair)
    below.axes[0].set_ylabel("density")
    figure.savefig(file, format="png", dpi=150)


def _values(run: Run) -> dict[str, Pair]:
    """Return the panels of values: of the first task with digits, and of the corners."""
    panels: dict[str, Pair] = {}
    seen: set[str] = set()
    for task, cells in run:
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


def _labels(panel: Any, task: Task) -> None:
    panel.set_title(f"{task.data}, {task.batches}")
    if task.data == "digits":
        in_percent(panel)
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
