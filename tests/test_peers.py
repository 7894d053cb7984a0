"""The comparison with peers, run as a command on libraries that are always there."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "asv_benchmarks"

# Wrong by a constant; it ends its process where `out=` is asked for, and has no backward pass.
BROKEN = """
import os
from peers.libraries import Call

PACKAGES = ("numpy",)

def start(threads):
    print("a library that talks")

def call_of(case, arrays):
    if case.out:
        os._exit(3)
    if case.direction == "backward":
        return None
    return Call(lambda: arrays.x + 1, lambda y: [y])
"""


def compare(folder, *options):
    """Run the comparison for one thread, and return what it wrote."""
    paths = [str(folder), os.environ.get("PYTHONPATH", "")]
    subprocess.run(
        [sys.executable, "-m", "peers", "--threads", "1", "--output", folder / "out", *options],
        cwd=BENCHMARKS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        check=True,
    )
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        "peers.json",
        "peers.md",
        "peers.png",
    ]
    return json.loads((folder / "out" / "peers.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peers")
    (folder / "broken.py").write_text(BROKEN)
    chosen = ["--quick", "--rounds", "2", "--only", "layer_norm float32 1×256"]
    return folder / "out", compare(
        folder, *chosen, "--libraries", "numnorm", "numpy", "broken", "nowhere", "copyto"
    )


def statuses(result, library):
    records = [record for record in result["records"] if record["library"] == library]
    return [record["status"] for record in records]


def test_right_results_are_timed(compared):
    _, result = compared
    for library in ("numnorm", "numpy", "copyto"):
        assert statuses(result, library) == ["ready"] * 3  # forward, out=, backward
    for record in result["records"]:
        if record["status"] == "ready":
            low, high = record["quartiles"]
            assert 0 < low <= record["seconds"] <= high
            assert len(record["samples"]) == result["rounds"] == 2
            assert record["calls"] >= 1


def test_wrong_result_is_marked_and_not_timed(compared):
    folder, result = compared
    assert statuses(result, "broken") == ["wrong", "failed", "missing"]
    assert not any("seconds" in r for r in result["records"] if r["library"] == "broken")
    report = (folder / "peers.md").read_text("utf-8")
    assert "**wrong**" in report
    assert "its process ended with 3" in report


def test_library_that_is_not_installed_is_named(compared):
    folder, result = compared
    assert statuses(result, "nowhere") == []
    assert "nowhere: ModuleNotFoundError" in (folder / "peers.md").read_text("utf-8")


def test_tables_and_picture(compared):
    folder, result = compared
    report = (folder / "peers.md").read_text("utf-8")
    for kind in ("Forward", "Forward out=", "Backward"):
        assert f"## {kind}, 1 thread\n" in report
    assert report.count("| layer_norm float32 1×256 |") == 3
    assert f"numpy {result['libraries']['numpy']['versions']['numpy']}" in report
    assert (folder / "peers.png").read_bytes().startswith(b"\x89PNG")


def test_the_geometric_mean_of_the_ratios_comes_first(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    cases, report = (importlib.import_module(f"peers.{name}") for name in ("cases", "report"))
    records = [
        {**vars(cases.Case("rms_norm", "forward", shape)), "threads": 1, "library": library}
        | {"status": "ready", "seconds": seconds, "quartiles": [seconds, seconds]}
        for library, times in {"numnorm": (1.0, 3.0), "numpy": (2.0, 24.0)}.items()
        for shape, seconds in zip([(2, 4), (8, 16)], times, strict=True)
    ]
    libraries = {name: {"status": "ready", "versions": {}} for name in ("numnorm", "numpy")}
    text = report.markdown({"records": records, "libraries": libraries, "machine": {}, "rounds": 1})
    row = next(line for line in text.splitlines() if "rms_norm float32 forward, 1 thread" in line)
    # 2 and 8 times as long; nothing is said of how long numnorm takes beside itself.
    assert [cell.strip() for cell in row.split("|")[2:-1]] == ["4.00× (2.00 to 8.00)"]
    assert text.index(row) < text.index("## Forward, 1 thread")


ROW_NORMS = ["layer_norm", "standardize", "rms_norm", "ada_norm"]
CHANNEL_NORMS = ["group_norm", "instance_norm", "batch_norm", "batch_norm_inference"]


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("norm", ROW_NORMS + CHANNEL_NORMS)
@pytest.mark.parametrize("library", ["numnorm", "numpy"])
def test_libraries_do_what_the_definition_says(library, norm, direction, monkeypatch):
    if (norm, direction) == ("standardize", "backward"):
        pytest.skip("neither zscore nor scale has a gradient")
    monkeypatch.syspath_prepend(BENCHMARKS)
    arrays, cases, definition, libraries = (
        importlib.import_module(f"peers.{name}")
        for name in ("arrays", "cases", "definition", "libraries")
    )
    case = cases.Case(norm, direction, (3, 64) if norm in ROW_NORMS else (2, 64, 3, 3))
    call = libraries.load(library).call_of(case, arrays.arrays_of(case))
    for error, allowed in definition.errors_of(case, call.arrays(call.run())):
        assert error <= allowed


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_timed(tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("a file, where the folder should be")
    chosen = ["--quick", "--only", "layer_norm float32 1×256", "--output", str(taken)]
    ended = subprocess.run(
        [sys.executable, "-m", "peers", *chosen],
        cwd=BENCHMARKS,
        capture_output=True,
        check=False,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("--output: ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "folder"),
    [
        ([], ""),
        (["--rounds", "3"], ""),
        (["--quick"], "quick"),
        (["--only", "rms"], "partial"),
        (["--threads", "1"], "partial"),
        (["--libraries", "numpy"], "partial"),
    ],
)
def test_a_part_of_the_comparison_does_not_replace_all_of_it(monkeypatch, options, folder):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    program = importlib.import_module("peers.__main__")
    monkeypatch.setattr(sys, "argv", ["peers", *options])
    assert program._folder(program._options()) == folder
