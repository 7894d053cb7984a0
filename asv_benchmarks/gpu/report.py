"""The results as tables in Markdown."""

from __future__ import annotations

import statistics
from typing import Any

from peers.report import as_markdown, significant

from .cases import Case
from .contestants import FLOOR, OWN

_HOST_TARGET = 20  # µs

HOW_TO_READ = f"""\
Each cell is what a library moved in a second, in GB: x and y of a forward pass, dy, x and dx of a
backward pass, divided by the median time of the rounds. In brackets is its part of what `{FLOOR}`,
a copy of x in the device's memory, moved in the same rounds. {OWN} writes into an output that is
there already. An empty cell: the library has no such function. **wrong**: its result is not that
of the definition in float64 on the same numbers, so that its time would say nothing. **failed**: it
raised an error.

`torch.compile` compiles PyTorch's own functions, `jax` the definitions. `triton` is a kernel of
this comparison, a row a program. `cupy` is means and variances, and a kernel for all that is done
to an element. The gradients of `liger`, of `quack` and of `torch`, but that of its layer norm, are
autograd's. The stream of `jax` is out of sight: it is timed by the host's clock.

The last column is the median time from the call of {OWN} to its return, without waiting for the
device; more than {_HOST_TARGET} µs is bold.
"""


def markdown(result: dict[str, Any]) -> str:
    """Return the whole report."""
    records = result["records"]
    facts = [f"- {name}: {value}" for name, value in result["device"].items()]
    facts += [f"- {sentence}" for sentence in result["missing"].values()]
    parts = ["# numnorm on a GPU", HOW_TO_READ, "\n".join([*facts, _host_fact(records), ""])]
    kinds = dict.fromkeys(_kind(record) for record in records)
    for kind in kinds:
        same = [record for record in records if _kind(record) == kind]
        parts.append(f"## {kind.replace('_', ' ').capitalize()}\n\n{_table(same)}")
    notes = _notes(records)
    if notes:
        parts.append("## What was not timed\n\n" + "\n".join(f"- {note}" for note in notes) + "\n")
    return "\n".join(parts)


def line(record: dict[str, Any]) -> str:
    """Return what was found out about a case, for the terminal."""
    cells = [
        f"{name} {_cell(record, name, _floor(record)).strip('*')}" for name in _names([record])
    ]
    return f"{_case(record).name}: {', '.join(cells)}"


def _kind(record: dict[str, Any]) -> str:
    return f"{record['norm']} {record['direction']}"


def _case(record: dict[str, Any]) -> Case:
    return Case(*(record[name] for name in Case._fields))


def _host_fact(records: list[dict[str, Any]]) -> str:
    times = [r["host_seconds"] * 1e6 for r in records if r["host_seconds"] is not None]
    if not times:
        return f"- time of the host for a call of {OWN}: not known"
    middle, most = (significant(value) for value in (statistics.median(times), max(times)))
    return f"- time of the host for a call of {OWN}: {middle} µs, at most {most} µs"


def _names(records: list[dict[str, Any]]) -> list[str]:
    """Return who is in a table: those with times, and those that were wrong or failed."""
    return list(dict.fromkeys(name for r in records for name in (*r["seconds"], *r["failures"])))


def _table(records: list[dict[str, Any]]) -> str:
    names, rows = _names(records), []
    for record in records:
        cells = [_cell(record, name, _floor(record)) for name in names]
        shape = f"{record['dtype']} {record['rows']}×{record['width']}"
        rows.append([shape, *cells, _host_cell(record["host_seconds"])])
    return as_markdown(["case", *names, f"{OWN}, host, µs"], rows)


def _floor(record: dict[str, Any]) -> float | None:
    return _rate(record, FLOOR)


def _rate(record: dict[str, Any], name: str) -> float | None:
    """Return the bytes of a second; a copy moves two arrays whatever the case does."""
    seconds = record["seconds"].get(name)
    moved = record["bytes_moved"]
    if name == FLOOR:
        moved = moved * 2 // (2 if record["direction"] == "forward" else 3)
    return None if seconds is None else moved / seconds


def _cell(record: dict[str, Any], name: str, floor: float | None) -> str:
    if name in record["failures"]:
        return f"**{record['failures'][name]['status']}**"
    rate = _rate(record, name)
    if rate is None:
        return ""
    part = "" if name == FLOOR or floor is None else f" ({rate / floor:.2f})"
    return f"{significant(rate / 1e9)}{part}"


def _host_cell(seconds: float | None) -> str:
    if seconds is None:
        return ""
    time = significant(seconds * 1e6)
    return f"**{time}**" if seconds * 1e6 > _HOST_TARGET else time


def _notes(records: list[dict[str, Any]]) -> list[str]:
    return [
        f"{name}, {_case(record).name}: {failure['status']}, {failure['detail']}"
        for record in records
        for name, failure in record["failures"].items()
    ]
