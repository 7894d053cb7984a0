"""The report: the results as tables in Markdown."""

from __future__ import annotations

import statistics
from typing import Any

from peers.report import significant

from . import cells_report, norms_report
from .contestants import OWN


def markdown(result: dict[str, Any]) -> str:
    """Return the whole report."""
    records = result["records"]
    facts = [f"- {name}: {value}" for name, value in result["device"].items()]
    facts += [f"- {sentence}" for sentence in result["missing"]]
    parts = ["# numnorm on a GPU", "\n".join([*facts, _host_fact(records), ""])]
    for family in (norms_report, cells_report):
        of_family = [record for record in records if _family(record) is family]
        if of_family:
            parts.append(family.HOW_TO_READ)
        kinds = dict.fromkeys(map(family.kind, of_family))
        for kind in kinds:
            same = [record for record in of_family if family.kind(record) == kind]
            table = family.table(same, _names(same))
            parts.append(f"## {kind.replace('_', ' ').capitalize()}\n\n{table}")
    notes = _notes(records)
    if notes:
        parts.append("## What was not timed\n\n" + "\n".join(f"- {note}" for note in notes) + "\n")
    return "\n".join(parts)


def line(record: dict[str, Any]) -> str:
    """Return the results of a case in a line for the terminal."""
    family = _family(record)
    cells = [f"{name} {family.cell(record, name).strip('*')}" for name in _names([record])]
    return f"{family.case_of(record).name}: {', '.join(cells)}"


def _family(record: dict[str, Any]) -> Any:
    return cells_report if "cell" in record else norms_report


def _host_fact(records: list[dict[str, Any]]) -> str:
    times = [
        record["host_seconds"] * 1e6
        for record in records
        if _family(record) is norms_report and record["host_seconds"] is not None
    ]
    if not times:
        return f"- time of the host for a norm of {OWN}: not known"
    middle, most = (significant(value) for value in (statistics.median(times), max(times)))
    return f"- time of the host for a norm of {OWN}: {middle} µs, at most {most} µs"


def _names(records: list[dict[str, Any]]) -> list[str]:
    """Return the names of the contestants in a table: all that have a time or a failure."""
    return list(dict.fromkeys(name for r in records for name in (*r["seconds"], *r["failures"])))


def _notes(records: list[dict[str, Any]]) -> list[str]:
    return [
        f"{name}, {_family(record).case_of(record).name}: {failure['status']}, {failure['detail']}"
        for record in records
        for name, failure in record["failures"].items()
    ]
