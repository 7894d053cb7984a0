"""The results as tables in Markdown."""

from __future__ import annotations

from typing import Any

from peers.report import as_markdown, significant

OWN, FLOOR = "numnorm", "copy"

HOW_TO_READ = f"""\
Each cell is what a library moved in a second, in GB: x and y of a forward pass, dy, x and dx of a
backward pass, divided by the median time of the rounds. In brackets is its part of what `{FLOOR}`,
a copy of x in the device's memory, moved in the same rounds. {OWN} writes into an output that is
there already. An empty cell: the library has no such function.
"""


def markdown(result: dict[str, Any]) -> str:
    """Return the whole report."""
    facts = "\n".join(f"- {name}: {value}" for name, value in result["device"].items())
    parts = ["# numnorm on a GPU", HOW_TO_READ, f"{facts}\n"]
    kinds = dict.fromkeys(f"{r['norm']} {r['direction']}" for r in result["records"])
    for kind in kinds:
        same = [r for r in result["records"] if f"{r['norm']} {r['direction']}" == kind]
        parts.append(f"## {kind.replace('_', ' ').capitalize()}\n\n{_table(same)}")
    return "\n".join(parts)


def _table(records: list[dict[str, Any]]) -> str:
    names = list(dict.fromkeys(name for record in records for name in record["seconds"]))
    rows = []
    for record in records:
        floor = _rate(record, FLOOR, 2)
        cells = [_cell(record, name, floor) for name in names]
        shape = f"{record['dtype']} {record['rows']}×{record['width']}"
        rows.append([shape, *cells, significant(record["host_seconds"] * 1e6)])
    return as_markdown(["case", *names, f"{OWN}, host, µs"], rows)


def _rate(record: dict[str, Any], name: str, arrays: int | None = None) -> float | None:
    """Return the bytes of a second; a copy moves two arrays whatever the case does."""
    seconds = record["seconds"].get(name)
    moved = record["bytes_moved"]
    if arrays is not None:
        moved = moved * arrays // (2 if record["direction"] == "forward" else 3)
    return None if seconds is None else moved / seconds


def _cell(record: dict[str, Any], name: str, floor: float | None) -> str:
    rate = _rate(record, name, 2 if name == FLOOR else None)
    if rate is None:
        return ""
    part = "" if name == FLOOR or floor is None else f" ({rate / floor:.2f})"
    return f"{significant(rate / 1e9)}{part}"
