"""The picture of the comparison: a layer norm and a copy, an LSTM and PyTorch's."""

from __future__ import annotations

import math
from typing import Any, BinaryIO, NamedTuple

from .cases import Case
from .libraries import APART, YARDSTICKS
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


class _Part(NamedTuple):
    """The panels of a family of cases: a row for each number of threads."""

    family: str
    title: str
    yardstick: str
    drawn: dict[str, str]  # what a line is called, by the norm of its cases
    panels: dict[str, str]  # a panel's title, by the kind of its cases


_PARTS = (
    _Part(
        "norms",
        "Layer norm of float32 rows, as multiples of the time of a copy",
        "a copy, one thread",
        {"layer_norm": "{}"},
        {
            "forward": "forward into a new array",
            "forward out=": "forward with out=",
            "backward": "backward",
        },
    ),
    _Part(
        "cells",
        "LSTM of float32 sequences, steps × sequences × inputs × units, "
        "as multiples of the time of torch.nn.LSTM",
        "torch.nn.LSTM, without norm",
        {"ln_lstm": "{}, with layer norm", "lstm": "{}, without norm"},
        {"forward": "forward", "forward and backward": "forward and backward"},
    ),
)


def draw(records: list[Record], file: BinaryIO) -> None:
    """Draw a PNG of the families with timed cases."""
    from matplotlib.figure import Figure

    records = [record for record in records if record["library"] not in APART]
    chosen = [(part, [r for r in records if _is_of(part, case_of(r))]) for part in _PARTS]
    chosen = [(part, of_part) for part, of_part in chosen if of_part] or [(_PARTS[0], [])]
    heights = [1.6 + 4 * len(_threads(of_part)) for _, of_part in chosen]
    # Without pyplot there is no global state, and no window system is needed.
    figure = Figure(figsize=(15, sum(heights)), layout="constrained")
    subfigures = figure.subfigures(len(chosen), 1, height_ratios=heights, squeeze=False)
    for (part, of_part), [subfigure] in zip(chosen, subfigures, strict=True):
        _draw_part(subfigure, part, of_part)
    figure.savefig(file, format="png", dpi=120)


def _is_of(part: _Part, case: Case) -> bool:
    return case.family == part.family and case.norm in part.drawn and case.dtype == "float32"


def _threads(records: list[Record]) -> list[int]:
    return sorted({record["threads"] for record in records}) or [1]


def _draw_part(figure: Any, part: _Part, records: list[Record]) -> None:
    threads = _threads(records)
    panels = figure.subplots(
        len(threads), len(part.panels), sharex=True, sharey=True, squeeze=False
    )
    # By size, and narrow rows before wide ones.
    shapes = sorted({case_of(r).shape for r in records}, key=lambda s: (math.prod(s), s[1]))
    ticks = {shape: n for n, shape in enumerate(shapes)}
    for row, count in zip(panels, threads, strict=True):
        for panel, (kind, title) in zip(row, part.panels.items(), strict=True):
            panel.set_title(f"{title}, {count} thread{'' if count == 1 else 's'}")
            same = [r for r in records if r["threads"] == count and case_of(r).kind == kind]
            _draw_panel(panel, part, same, ticks)
        row[0].set_ylabel(f"time / time of {YARDSTICKS[part.family]} (less is better)")
    handles = {line.get_label(): line for panel in panels.flat for line in panel.get_lines()}
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=6, frameon=False)
    figure.suptitle(part.title)


def _draw_panel(
    panel: Any, part: _Part, records: list[Record], ticks: dict[tuple[int, ...], int]
) -> None:
    yardstick = YARDSTICKS[part.family]
    panel.axhline(1, color="#777777", linewidth=1, label=f"{yardstick}: {part.yardstick}")
    by = {case_of(r): r for r in records if r["library"] == yardstick}
    lines: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for record in (r for r in records if r["library"] != yardstick):
        case = case_of(record)
        value = ratio(record, by.get(case))
        if value is not None:
            line = record["library"], case.norm
            lines.setdefault(line, []).append((ticks[case.shape], value))
    for (library, norm), points in lines.items():
        style = _STYLES.get(library, {})
        if norm != next(iter(part.drawn)):
            style = style | {"linestyle": "--", "fillstyle": "none"}
        label = part.drawn[norm].format(library)
        panel.plot(*zip(*sorted(points), strict=True), label=label, **style)
    panel.set_xticks(list(ticks.values()), [*map(_tick, ticks)], fontsize="small")
    for label in panel.get_xticklabels():
        label.set(rotation=45, ha="right", rotation_mode="anchor")
    panel.set_yscale("log", base=2)
    panel.yaxis.set_major_formatter("{x:g}")
    panel.grid(alpha=0.3)


def _tick(shape: tuple[int, ...]) -> str:
    extent = "×".join(f"{n:,}" for n in shape).replace(",", " ")
    return f"{extent}\n{_bytes(4 * math.prod(shape))}" if len(shape) == 2 else extent


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024 or unit == "MiB":
            break
        count /= 1024
    return f"{count:.3g} {unit}"
