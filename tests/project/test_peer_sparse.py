"""The comparison of sparse columns: its calls give the same results."""

import importlib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_rows_of_the_table(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "asv_benchmarks")
    peers = importlib.import_module("peers.sparse")
    rows = peers._rows((60, 12, 0.3), rounds=1)
    assert len(rows) == 2 * len(peers.TASKS)
    assert {len(row) for row in rows} == {2 + 2 * len(peers.LIBRARIES)}
