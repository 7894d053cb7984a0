"""The comparison as a picture: layer norm of float32 rows, as multiples of a copy."""

from __future__ import annotations

from typing import Any, BinaryIO

from .libraries import FLOOR
from .report import case_of, ratio
from .rounds import Record

# Okabe and Ito's colours, told apart with any colour vision; the markers serve where there is none.
_STYLES = {
    "numnorm": {"color": "#0072B2", "marker": "D", "linewidth": 2.5, "zorder": 3},
    "torch": {"color": "#D55E00", "marker": "s"},
    "onnxruntime": {"color": "#009E73", "marker": "^"},
    "jax": {"color": "#CC79A7", "marker": "v"},
    "numpy": {"color": "#000000", "marker": "o", "linestyle": ":"},
}
_TITLES = {
    "forward": "forward into a new array",
    "forward out=": "forward with out=",
    "backward": "backward",
}


def draw(records: list[Record], file: BinaryIO) -> None:
    """Draw a PNG, a row of panels for each number of threads and a column for each kind of call."""
    from matplotlib.figure import Figure

    chosen = [r for r in records if r["norm"] == "layer_norm" and r["dtype"] == "float32"]
    threads = sorted({record["threads"] for record in chosen}) or [1]
    # Without pyplot nothing global is touched and no window system is needed.
    figure = Figure(figsize=(15, 1.6 + 4 * len(threads)), layout="constrained")
    panels = figure.subplots(len(threads), len(_TITLES), sharex=True, sharey=True, squeeze=False)
    for row, count in zip(panels, threads, strict=True):
        for panel, kind in zip(row, _TITLES, strict=True):
            panel.set_title(f"{_TITLES[kind]}, {count} thread{'' if count == 1 else 's'}")
            same = [r for r in chosen if r["threads"] == count and case_of(r).kind == kind]
            _draw_panel(panel, same, _sizes(chosen))
        row[0].set_ylabel(f"time / time of {FLOOR} (less is better)")
    handles = {line.get_label(): line for panel in panels.flat for line in panel.get_lines()}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=6, frameon=False)
    figure.suptitle("Layer norm of float32 rows, as multiples of the time of a copy")
    figure.savefig(file, format="png", dpi=120)


def _sizes(records: list[Record]) -> dict[tuple[int, ...], int]:
    """Return the place of each shape on the axis: by size, and narrow rows before wide ones."""
    shapes = {tuple(record["shape"]): case_of(record).nbytes for record in records}
    return {s: n for n, s in enumerate(sorted(shapes, key=lambda shape: (shapes[shape], shape[1])))}


def _draw_panel(panel: Any, records: list[Record], places: dict[tuple[int, ...], int]) -> None:
    panel.axhline(1, color="#777777", linewidth=1, label=f"{FLOOR}: a copy, one thread")
    floor = {tuple(r["shape"]): r for r in records if r["library"] == FLOOR}
    for library in dict.fromkeys(r["library"] for r in records if r["library"] != FLOOR):
        points = []
        for record in (r for r in records if r["library"] == library):
            shape = tuple(record["shape"])
            value = ratio(record, floor.get(shape))
            if value is not None:
                points.append((places[shape], value))
        if points:
            style = _STYLES.get(library, {})
            panel.plot(*zip(*sorted(points), strict=True), label=library, **style)
    labels = [f"{s[0]:,}×{s[1]:,}\n{_bytes(4 * s[0] * s[1])}".replace(",", " ") for s in places]
    panel.set_xticks(list(places.values()), labels, fontsize="small")
    for label in panel.get_xticklabels():
        label.set(rotation=45, ha="right", rotation_mode="anchor")
    panel.set_yscale("log", base=2)
    panel.yaxis.set_major_formatter("{x:g}")
    panel.grid(alpha=0.3)


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024 or unit == "MiB":
            break
        count /= 1024
    return f"{count:.3g} {unit}"
