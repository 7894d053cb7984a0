"""The part of the report about recurrent cells: times."""

from __future__ import annotations

from typing import Any

from peers.report import as_markdown, significant

from .contestants import OWN, YARDSTICK
from .sequences import SequenceCase

HOW_TO_READ = f"""\
The cases of recurrent cells are whole sequences without first states: steps × sequences × units,
with as many inputs as units. Each cell is the median time of the rounds in milliseconds, and in
brackets its ratio to that of {OWN}: above 1 means slower than {OWN}. `forward` saves nothing for a
gradient; `forward and backward` computes all gradients, including that of the input. **wrong** and
**failed** are as above.

The cell is the LSTM of Ba, Kiros and Hinton (2016), with its three layer norms; but `{YARDSTICK}`
is cuDNN's LSTM without norms. All compute in float32; `{YARDSTICK}, TF32` is the module with its
default, TF32 products. `torch` is a loop over the steps, `torch.compile` the same loop with a
compiled step, `jax` a scan, timed by the host's clock.

The last column is the median time from the call of {OWN} to its return, without waiting for the
device, in milliseconds.
"""


def case_of(record: dict[str, Any]) -> SequenceCase:
    """Return the case that a record is about."""
    return SequenceCase(*(record[name] for name in SequenceCase._fields))


def kind(record: dict[str, Any]) -> str:
    """Return the title of the table of a record."""
    return f"{record['cell']} {record['direction']}"


def table(records: list[dict[str, Any]], names: list[str]) -> str:
    """Return a table of the results of some contestants for cases of a kind."""
    rows = []
    for record in records:
        cells = [cell(record, name) for name in names]
        host = record["host_seconds"]
        host_cell = "" if host is None else significant(host * 1e3)
        rows.append([f"{record['dtype']} {case_of(record).shape}", *cells, host_cell])
    return as_markdown(["case", *names, f"{OWN}, host, ms"], rows)


def cell(record: dict[str, Any], name: str) -> str:
    """Return the cell of a contestant for a case."""
    if name in record["failures"]:
        return f"**{record['failures'][name]['status']}**"
    seconds, own = (record["seconds"].get(who) for who in (name, OWN))
    if seconds is None:
        return ""
    ratio = "" if name == OWN or own is None else f" ({seconds / own:.2f})"
    return f"{significant(seconds * 1e3)}{ratio}"
