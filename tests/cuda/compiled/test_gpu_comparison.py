"""The comparison on a GPU, run from end to end on a device in Python."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

BENCHMARKS = str(Path(__file__).parents[3] / "asv_benchmarks")
ABSENT = {
    "norms": ("torch", "torch.compile", "triton", "cupy", "jax", "liger", "quack"),
    "cells": ("torch.nn.LSTM", "torch.nn.LSTM, TF32", "torch", "torch.compile", "jax"),
}
OTHERS = ("torch", "triton", "cupy", "jax", "liger_kernel", "quack")


class SimulatedDevice:
    """Arrays of a made-up library, and the clock of the host; numnorm's own time is made up."""

    def __init__(self, library):
        self.made_up, self.generator = library, np.random.default_rng(0)

    def normal(self, shape, dtype):
        return self.made_up.take(self.generator.normal(3, 2, shape).astype(dtype))

    def wide(self, array):
        return array.host.astype(np.float64)

    def taken(self, array):
        return self.made_up.take(array)

    def seconds(self, call, launches):
        begin = time.perf_counter()
        result = call.run()
        if call.wait is not None:
            call.wait(result)
        return time.perf_counter() - begin

    def host_seconds(self, call, launches):
        call.run()
        return 12.5e-6

    def description(self):
        return {"device": "none: simulated"}


@pytest.fixture
def library(imported, monkeypatch):
    """One of the made-up libraries, beside the benchmarks."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return imported("torch")


@pytest.fixture
def loaded(library, monkeypatch):
    """The contestants of an installation that has none of the other libraries, and the missing."""
    from gpu.contestants import load

    with monkeypatch.context() as without:
        for name in OTHERS:
            without.setitem(sys.modules, name, None)
        families = {family: load(family) for family in ("norms", "cells")}
    found = {family: contestants for family, (contestants, _) in families.items()}
    return found, [sentence for _, missing in families.values() for sentence in missing.values()]


def made_up_contestants(library):
    """One that is right and waited for, three that are wrong, and one that raises."""
    from gpu.agreement import expected
    from gpu.contestants import Call

    waited = []

    def right(case, arrays, factor=1.0, count=None):
        def run():
            found = expected(SimulatedDevice(library), case, arrays)
            return tuple(SimpleNamespace(host=factor * array) for array in found[:count])

        return Call(run, waited.append)

    def fails(case, arrays):
        raise RuntimeError("no such\nkernel")

    contestants = {
        "right": right,
        "absent": lambda case, arrays: None,
        "inexact": lambda case, arrays: right(case, arrays, 1.01),
        "not a number": lambda case, arrays: right(case, arrays, np.nan),
        "short": lambda case, arrays: right(case, arrays, count=0),
        "broken": fails,
    }
    return contestants, waited


def last(results):
    """The results after the last case."""
    *_, found = results
    return found


def one_case_of_each_kind():
    from gpu.cases import Case, all_cases
    from gpu.sequences import SequenceCase, all_sequences

    kinds = dict.fromkeys(case[:2] for case in all_cases(1 << 20, quick=False))
    norms = [Case(*kind, "float32", 5, 24) for kind in kinds]
    kinds = dict.fromkeys(case[:2] for case in all_sequences(quick=False))
    return [*norms, *(SequenceCase(*kind, "float32", 3, 2, 8) for kind in kinds)]


def test_every_case_is_measured_and_reported(library, loaded, tmp_path):
    from gpu.__main__ import measure, write

    found, missing = loaded
    assert {family: set(those) for family, those in found.items()} == {
        "norms": {"numnorm", "copy"}, "cells": {"numnorm"},
    }  # fmt: skip
    others, waited = made_up_contestants(library)
    contestants = {family: those | others for family, those in found.items()}
    cases = one_case_of_each_kind()
    result = last(measure(SimulatedDevice(library), cases, 2, contestants, missing))
    assert len(result["records"]) == len(cases) == 8 + 2
    wrong = dict.fromkeys(("inexact", "not a number", "short"), "wrong")
    for record in result["records"]:
        family = "cells" if "cell" in record else "norms"
        assert set(record["seconds"]) == {*found[family], "right"}
        statuses = {name: fault["status"] for name, fault in record["failures"].items()}
        assert statuses == wrong | {"broken": "failed"}
    assert len(waited) > 3 * len(cases)
    write(result, tmp_path / "results")
    report = (tmp_path / "results" / "gpu.md").read_text("utf-8")
    tables, notes = report.split("## What was not timed")
    rows = rows_of(tables)
    assert len(rows) == len(cases) and sum("3×2×8" in row for row in rows) == 2
    assert "simulated" in tables and "absent" not in report
    for family, names in ABSENT.items():
        for name in names:
            assert f"- {family}: {name} is left out: ModuleNotFoundError: " in tables
    for status, count in (("**wrong**", 3), ("**failed**", 1)):
        assert all(row.count(status) == count for row in rows)
    assert notes.count("is off by 0.01 of the largest value") == len(cases)
    assert notes.count("failed, RuntimeError: no such kernel") == len(cases)


def rows_of(tables):
    return [row for row in tables.splitlines() if row.startswith("| float32 ")]


@pytest.mark.parametrize("seconds, cell", [(12.5e-6, "12.5"), (31e-6, "**31**")])
def test_time_of_the_host(library, loaded, seconds, cell):
    from gpu.__main__ import measure
    from gpu.report import markdown

    device = SimulatedDevice(library)
    device.host_seconds = lambda call, launches: seconds
    found, missing = loaded
    report = markdown(last(measure(device, one_case_of_each_kind()[:1], 1, found, missing)))
    [row] = rows_of(report)
    assert row.split("|")[-2].strip() == cell
    assert f"- time of the host for a norm of numnorm: {cell.strip('*')} µs, at most" in report
    assert "What was not timed" not in report


def test_a_norm_that_numnorm_does_not_have(library, loaded):
    from gpu.__main__ import measure
    from gpu.report import markdown

    def refuses(case, arrays):
        raise NotImplementedError("not there yet")

    found, missing = loaded
    contestants = {"norms": found["norms"] | {"numnorm": refuses}}
    cases = one_case_of_each_kind()[:1]
    result = last(measure(SimulatedDevice(library), cases, 1, contestants, missing))
    report = markdown(result)
    assert "**failed**" in report and "NotImplementedError: not there yet" in report
    assert "norm of numnorm: not known" in report


def test_bytes_that_have_to_be_moved(library):
    from gpu.cases import Case

    assert Case("layer_norm", "forward", "float32", 10, 8).bytes_moved == 2 * 10 * 8 * 4
    assert Case("layer_norm", "backward", "bfloat16", 10, 8).bytes_moved == 3 * 10 * 8 * 2


def test_times_of_a_cell_are_beside_those_of_the_yardstick(library, loaded):
    from gpu.__main__ import measure
    from gpu.contestants import YARDSTICK, Call
    from gpu.report import markdown

    def without_norms(case, arrays):
        return Call(lambda: arrays.x)  # which nobody compares with the definition

    device, times = SimulatedDevice(library), iter([1.0, 1.0, 3e-3, 2e-3])
    device.seconds = lambda call, launches: next(times)
    found, missing = loaded
    contestants = {"cells": found["cells"] | {YARDSTICK: without_norms}}
    cases = one_case_of_each_kind()[-2:-1]
    report = markdown(last(measure(device, cases, 1, contestants, missing)))
    [row] = rows_of(report)
    own, beside = (cell.strip() for cell in row.split("|")[2:4])
    assert (own, beside) == ("3", "2 (0.67)")


def test_sequences_are_those_of_the_definition(library):
    from gpu.sequences import all_sequences

    assert {case.as_peers_case.label for case in all_sequences(quick=False)} == {
        f"ln_lstm float32 {steps}×{batch}×{units}×{units}"
        for steps, batch, units in [(100, 32, 256), (60, 64, 512), (500, 8, 400), (256, 128, 1024)]
    }


def test_cases_are_wide_and_large(library):
    from gpu.cases import all_cases

    cases = all_cases(64 << 20, quick=False)
    assert {1 << k for k in range(8, 16)} < {case.width for case in cases}
    assert any(case.width % 2 for case in cases)
    assert all(case.bytes_moved >= 2 * 63 << 20 for case in cases)
