"""Pictures of the gallery's pages that do not run when the site is built, from recorded runs.

`tests/support/gallery_runs.py` writes the records in `docs/gallery/runs`.
"""

import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from pictures.norms import BLUE, GREEN, RED, panels

RUNS = Path(__file__).parents[1] / "gallery" / "runs"
NAMES = ["dask_cluster", "mpi_batch_norm", "fused_layer_norm", "torch_autograd"]
ZERO_AT = 1e-17  # where a difference of 0 stands on a logarithmic axis


def recorded(name):
    """Return what a run of a page gave."""
    return json.loads((RUNS / f"{name}.json").read_text("utf-8"))


def dask_cluster():
    """Draw how many chunks were written as time went on, with and without a killed process."""
    figure, axes = panels(2, height=2.6, sharey=True)
    runs = recorded("dask_cluster")
    for panel, norm in zip(axes, ("layer_norm", "batch_norm"), strict=True):
        for name, color in ((norm, BLUE), (f"{norm}, a process killed", RED)):
            label = "no process killed" if name == norm else "one killed at the dot"
            panel.step(*np.transpose(runs[name]["written"]), color=color, where="post", label=label)
            if runs[name]["killed"]:
                panel.plot(*runs[name]["killed"], "o", color=color)
        panel.set(title=norm, xlabel="seconds")
    axes[0].set_ylabel("chunks written")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def mpi_batch_norm():
    """Draw the differences of several ranks from one process."""
    return _differences({f"{n} ranks": run for n, run in recorded("mpi_batch_norm").items()})


def fused_layer_norm():
    """Draw the differences of the kernels from NumPy."""
    return _differences({"float32 kernels": recorded("fused_layer_norm")})


def torch_autograd():
    """Draw the losses of a network with numnorm's layer norm and with PyTorch's."""
    figure = Figure(figsize=(5.6, 2.6), layout="constrained")
    panel = figure.subplots()
    looks = (("-", 3, BLUE), ("--", 1.5, RED))
    for (name, losses), look in zip(recorded("torch_autograd").items(), looks, strict=True):
        style, width, color = look
        panel.plot(losses, style, color=color, linewidth=width, label=name)
    panel.set(xlabel="step", ylabel="loss")
    panel.legend()
    return figure


def _differences(runs):
    figure = Figure(figsize=(5.6, 2.6), layout="constrained")
    panel = figure.subplots()
    for n, (label, errors) in enumerate(runs.items()):
        places = np.arange(len(errors)) + 0.2 * (n - (len(runs) - 1) / 2)
        values = np.maximum(list(errors.values()), ZERO_AT)
        panel.plot(values, places, "os^"[n], color=(BLUE, RED, GREEN)[n], label=label)
    panel.axvline(2**-24, color="C4", linestyle="--", label="half a unit of float32")
    panel.set(xscale="log", xlim=(ZERO_AT / 3, 1e-5), ylim=(len(errors) - 0.5, -0.5))
    panel.set_xticks([ZERO_AT, 1e-15, 1e-13, 1e-11, 1e-9, 1e-7])
    panel.set_xticklabels(["0", "1e-15", "1e-13", "1e-11", "1e-9", "1e-7"])
    panel.set_yticks(range(len(errors)), errors)
    panel.set_xlabel("difference / largest value")
    figure.legend(loc="outside upper center", ncols=4, fontsize="small")
    return figure
