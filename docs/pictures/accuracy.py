"""The errors of norms at an offset, from the tables of `docs/numerics.md`.

In the folder `docs`, ``python -m pictures.accuracy`` writes the picture of the paper.
"""

import json
import math
from pathlib import Path

from matplotlib.figure import Figure

from pictures.tables import first_table

PICTURE = Path(__file__).with_name("accuracy.offsets.png")
# A panel's title, the heading above its table, how the first cells of the drawn rows begin and end,
# and the axis below the panel.
PANELS = [
    ("layer norm of float32 rows", "## Accuracy", "", ", 1", "mean"),
    ("moving norm, float64", "## Moving statistics", "float64, ", "", "offset"),
]
# Numnorm's first; the others have the colours and the markers in the order of their tables.
COLORS = ["C0", "C1", "C2", "C3", "#56B4E9", "#E69F00", "#999933"]
MARKERS = "Dso^vPX"
NAN = 1e3  # the height at which a NaN is drawn


def errors():
    """Return the errors of each panel by library and offset; NaN is None, as in JSON."""
    return {title: _errors(*where) for title, *where, _ in PANELS}


def _errors(heading, begin, end):
    names, *rows = first_table("numerics.md", heading)
    names[1] = "numnorm"
    drawn = [
        (row[0].removeprefix(begin).removesuffix(end), row[1:])
        for row in rows
        if row[0].startswith(begin) and row[0].endswith(end)
    ]
    return {
        # A row such as "after 1e12" has no offset of its own.
        name: {offset: _number(cells[place]) for offset, cells in drawn if "after" not in offset}
        for place, name in enumerate(names[1:])
    }


def _number(cell):
    number = float(cell.partition(",")[0])
    return None if math.isnan(number) else number


def offsets():
    """Draw the errors of each library; those that are NaN lie on a line of their own."""
    figure = Figure(figsize=(7.2, 5), layout="constrained")
    panels = figure.subplots(1, len(PANELS), sharey=True)
    drawn = errors()
    for panel, (title, *_, below) in zip(panels, PANELS, strict=True):
        styles = zip(COLORS, MARKERS, strict=True)
        for (name, values), (color, marker) in zip(drawn[title].items(), styles, strict=False):
            heights = [NAN if value is None else value for value in values.values()]
            width = 2.5 if name == "numnorm" else 1.2
            panel.plot(
                list(values), heights, color=color, marker=marker, linewidth=width, label=name
            )
        ticks = {10.0**power: f"$10^{{{power}}}$" for power in range(-15, 1, 3)} | {NAN: "NaN"}
        panel.set(title=title, xlabel=f"{below}, with a deviation of 1", yscale="log")
        panel.set_yticks(list(ticks), ticks.values())
        panel.minorticks_off()
        panel.grid(axis="y", alpha=0.3)
        panel.legend(loc="upper left", bbox_to_anchor=(0, -0.2), frameon=False, fontsize="small")
    panels[0].set_ylabel("largest absolute error")
    return figure


def main():
    """Write the picture, and into it the numbers that it shows."""
    numbers = json.dumps(errors())
    offsets().savefig(PICTURE, dpi=200, metadata={"Description": numbers})


if __name__ == "__main__":
    main()
