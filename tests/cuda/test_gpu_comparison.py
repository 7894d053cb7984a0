"""The comparison on a GPU, run from end to end on a device in Python."""

import time
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = str(Path(__file__).parents[2] / "asv_benchmarks")


class SimulatedDevice:
    """Arrays of a made-up library, and the clock of the host."""

    def __init__(self, library):
        self.made_up = library

    def normal(self, shape, dtype):
        return self.made_up.take(np.random.default_rng(0).normal(3, 2, shape).astype(dtype))

    def seconds(self, call):
        begin = time.perf_counter()
        call()
        return time.perf_counter() - begin

    host_seconds = seconds

    def description(self):
        return {"device": "none: simulated"}


@pytest.fixture
def library(imported, monkeypatch):
    """One of the made-up libraries, beside the benchmarks."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return imported("cupy")


def test_every_case_is_measured_and_reported(library, tmp_path):
    from gpu.__main__ import measure, write
    from gpu.cases import Case, all_cases
    from gpu.contestants import CONTESTANTS

    kinds = dict.fromkeys((case.norm, case.direction) for case in all_cases(1 << 20, quick=False))
    cases = [Case(*kind, "float32", 5, 24) for kind in kinds]
    contestants = {
        "numnorm": CONTESTANTS["numnorm"],
        "copy": lambda case, arrays: lambda: np.copyto(arrays.out.host, arrays.x.host),
        "absent": lambda case, arrays: None,
    }
    result = measure(SimulatedDevice(library), cases, 2, contestants)
    assert [set(record["seconds"]) for record in result["records"]] == [{"numnorm", "copy"}] * 8
    write(result, tmp_path / "results")
    table = (tmp_path / "results" / "gpu.md").read_text("utf-8")
    assert table.count("float32 5×24") == len(cases) == 8
    assert "simulated" in table and "absent" not in table


def test_bytes_that_have_to_be_moved(library):
    from gpu.cases import Case

    assert Case("layer_norm", "forward", "float32", 10, 8).bytes_moved == 2 * 10 * 8 * 4
    assert Case("layer_norm", "backward", "bfloat16", 10, 8).bytes_moved == 3 * 10 * 8 * 2
