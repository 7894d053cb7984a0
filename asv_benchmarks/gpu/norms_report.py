"""The part of the report about norms: bytes per second."""

from __future__ import annotations

from typing import Any

from peers.report import as_markdown, significant

from .cases import Case
from .contestants import FLOOR, OWN

_HOST_TARGET = 20  # µs

HOW_TO_READ = f"""\
Each cell is the rate of a library in GB per second: the bytes of x and y of a forward pass, or of
dy, x and dx of a backward pass, divided by the median time of the rounds. In brackets is its ratio
to the rate of `{FLOOR}`, a copy of x in the device's memory, in the same rounds. {OWN} writes into
an existing output. An empty cell: the library has no such function. **wrong**: its result differs
from the definition in float64 on the same numbers. **failed**: it raised an error.

`torch.compile` compiles PyTorch's own functions, `jax` the definitions. `triton` is a kernel of
this comparison, a row a program. `cupy` is means and variances, and an elementwise kernel. The
gradients of `liger`, of `quack` and of `torch`, except that of its layer norm, are autograd's.
`jax` has a stream of its own, and is timed by the host's clock.

The last column is the median time from the call of {OWN} to its return, without waiting for the
device; more than {_HOST_TARGET} µs is bold.
"""


def case_of(record: dict[str, Any]) -> Case:
    """Return the case that a record is about."""
    return Case(*(record[name] for name in Case._fields))


def kind(record: dict[str, Any]) -> str:
    """Return the title of the table of a record."""
    return f"{record['norm']} {record['direction']}"


def table(records: list[dict[str, Any]], names: list[str]) -> str:
    """Return a table of the results of some contestants for cases of a kind."""
    rows = []
    for record in records:
        shape = f"{record['dtype']} {record['rows']}×{record['width']}"
        cells = [cell(record, name) for name in names]
        rows.append([shape, *cells, _host_cell(record["host_seconds"])])
    return as_markdown(["case", *names, f"{OWN}, host, µs"], rows)


def cell(record: dict[str, Any], name: str) -> str:
    """Return the cell of a contestant for a case."""
    if name in record["failures"]:
        return f"**{record['failures'][name]['status']}**"
    rate, floor = _rate(record, name), _rate(record, FLOOR)
    if rate is None:
        return ""
    fraction = "" if name == FLOOR or floor is None else f" ({rate / floor:.2f})"
    return f"{significant(rate / 1e9)}{fraction}"


def _rate(record: dict[str, Any], name: str) -> float | None:
    """Return the bytes per second; a copy moves two arrays in every case."""
    seconds, case = record["seconds"].get(name), case_of(record)
    if name == FLOOR:
        case = case._replace(direction="forward")
    return None if seconds is None else case.bytes_moved / seconds


def _host_cell(seconds: float | None) -> str:
    if seconds is None:
        return ""
    time = significant(seconds * 1e6)
    return f"**{time}**" if seconds * 1e6 > _HOST_TARGET else time
