"""The comparison with peers, run as a command on libraries that are always there."""

import importlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "asv_benchmarks"

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
    for kind in ("forward", "forward out=", "backward"):
        assert f"## Norms, {kind}, 1 thread\n" in report
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
    assert text.index(row) < text.index("## Norms, forward, 1 thread")


ROW_NORMS = ["layer_norm", "standardize", "rms_norm", "ada_norm"]
CHANNEL_NORMS = ["group_norm", "instance_norm", "batch_norm", "batch_norm_inference"]


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("norm", ROW_NORMS + CHANNEL_NORMS)
@pytest.mark.parametrize(
    "library",
    [
        *("numnorm", "numpy", "njit", "njit_loop"),
        *(pytest.param(name, marks=pytest.mark.jax) for name in ("jax", "numnorm_jax")),
    ],
)
def test_libraries_do_what_the_definition_says(library, norm, direction, monkeypatch):
    if (norm, direction) == ("standardize", "backward"):
        pytest.skip("neither zscore nor scale has a gradient")
    if "jax" in library:
        pytest.importorskip("jax", reason="JAX is not installed")
    monkeypatch.syspath_prepend(BENCHMARKS)
    arrays, cases, definition, libraries = (
        importlib.import_module(f"peers.{name}")
        for name in ("arrays", "cases", "definition", "libraries")
    )
    case = cases.Case(norm, direction, (3, 64) if norm in ROW_NORMS else (2, 64, 3, 3))
    call = libraries.load(library).call_of(case, arrays.arrays_of(case))
    if library.startswith("njit"):
        supported = norm in ("layer_norm", "batch_norm") and direction == "forward"
        assert (call is not None) == supported
        if not supported:
            return
    for error, allowed in definition.errors_of(case, call.arrays(call.run())):
        assert error <= allowed


ESTIMATORS = ["StandardNormalVariate", "RobustNormalVariate", "MultiplicativeScatterCorrection"]


@pytest.mark.parametrize(
    ("library", "estimator"),
    [
        *((library, name) for library in ("numnorm", "numpy") for name in ESTIMATORS),
        *((library, "BatchNormalizer") for library in ("numnorm", "numpy", "sklearn")),
        *(pytest.param("chemotools", name, marks=pytest.mark.chemotools) for name in ESTIMATORS),
    ],
)
def test_estimators_do_what_the_definition_says(library, estimator, monkeypatch):
    if library == "chemotools":
        pytest.importorskip("chemotools", reason="chemotools is not installed")
    monkeypatch.syspath_prepend(BENCHMARKS)
    arrays, cases, definition, libraries = (
        importlib.import_module(f"peers.{name}")
        for name in ("arrays", "cases", "definition", "libraries")
    )
    case = cases.Case(estimator, "forward", (20, 64), "float64")
    call = libraries.load(library).call_of(case, arrays.arrays_of(case))
    ((error, allowed),) = definition.errors_of(case, call.arrays(call.run()))
    assert error <= allowed


MOVING = ["moving_norm", "moving_norm_last", "exponential_norm", "exponential_norm_last"]
ORDER = ["moving_median", "moving_quartiles"]
MISSING = ["rows_nan", "columns_nan", "rows_where"]
TIMES = ["moving_norm_times", "exponential_norm_times"]


ROBUST = [f"{kind}_{lines}" for kind in ("mad", "iqr", "median") for lines in ("rows", "columns")]


@pytest.mark.parametrize("norm", ROBUST)
@pytest.mark.parametrize("library", ["numnorm", "numpy", "scipy", "sklearn", "bottleneck"])
def test_robust_norms_are_what_the_definition_says(library, norm, monkeypatch):
    pytest.importorskip(library, reason=f"{library} is not installed")
    monkeypatch.syspath_prepend(BENCHMARKS)
    arrays, cases, definition, libraries = (
        importlib.import_module(f"peers.{name}")
        for name in ("arrays", "cases", "definition", "libraries")
    )
    case = cases.Case(norm, "forward", (30, 21))
    call = libraries.load(library).call_of(case, arrays.arrays_of(case))
    if call is None:
        assert library in ("scipy", "sklearn", "bottleneck")
        return
    (y,) = call.arrays(call.run())
    ((error, allowed),) = definition.errors_of(case, [y])
    assert error <= allowed


@pytest.mark.parametrize("norm", MOVING + ORDER + MISSING + TIMES)
@pytest.mark.parametrize(
    "library",
    [
        *("numnorm", "numpy", "scipy", "sklearn", "pandas", "braindecode", "numpy_ma"),
        *("bottleneck", "numbagg"),
        pytest.param("torchaudio", marks=pytest.mark.torch),
    ],
)
def test_statistics_are_what_the_definition_says(library, norm, monkeypatch):
    needed = "torch" if library == "torchaudio" else library
    if library not in ("braindecode", "numpy_ma"):
        pytest.importorskip(needed, reason=f"{needed} is not installed")
    if library == "numbagg" and os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        pytest.skip("its functions are compiled ones")
    monkeypatch.syspath_prepend(BENCHMARKS)
    arrays, cases, definition, libraries = (
        importlib.import_module(f"peers.{name}")
        for name in ("arrays", "cases", "definition", "libraries")
    )
    shape = (3, 60) if norm.endswith("last") or norm in ORDER else (60, 3)
    window = 7 if "moving_norm" in norm or norm in ORDER else 0
    case = cases.Case(norm, "forward", shape, window=window)
    call = libraries.load(library).call_of(case, arrays.arrays_of(case))
    if call is None:
        assert library != "numnorm"
        return
    with np.errstate(invalid="ignore"):  # windows before the first full one may be constant
        (y,) = call.arrays(call.run())
    ((error, allowed),) = definition.errors_of(case, [y])
    assert error <= allowed
    # Not the variance with the divisor 6, nor a window that is late.
    for wrong in (y * (6 / 7) ** 0.5, np.roll(y, 1, axis=case.axis)):
        ((error, allowed),) = definition.errors_of(case, [wrong])
        assert not error <= allowed  # as the worker says it: NaN is wrong


@pytest.mark.parametrize("norm", ["labels_statistics", "labels_norm"])
@pytest.mark.parametrize("library", ["numnorm", "numpy", "pandas", "xarray", "flox", "scipy"])
def test_statistics_of_labels_are_what_the_definition_says(library, norm, monkeypatch):
    pytest.importorskip(library, reason=f"{library} is not installed")
    monkeypatch.syspath_prepend(BENCHMARKS)
    arrays, cases, definition, libraries = (
        importlib.import_module(f"peers.{name}")
        for name in ("arrays", "cases", "definition", "libraries")
    )
    case = cases.Case(norm, "forward", (400, 3))
    call = libraries.load(library).call_of(case, arrays.arrays_of(case))
    if call is None:
        assert library == "scipy"
        return
    ((error, allowed),) = definition.errors_of(case, call.arrays(call.run()))
    assert error <= allowed


COLUMNS = ["quantiles", "median_iqr", "quantiles_chunks", "quantiles_error", "quantiles_dask"]
COLUMNS += [f"{what}_{of}" for what in ("moments", "scaled", "batches") for of in ("csr", "csc")]


@pytest.mark.parametrize("norm", COLUMNS)
@pytest.mark.parametrize("library", ["numnorm", "numpy", "sklearn", "pandas", "dask", "scanpy"])
def test_quantiles_and_sparse_columns_are_what_the_definition_says(library, norm, monkeypatch):
    if library != "scanpy":
        pytest.importorskip(library, reason=f"{library} is not installed")
    monkeypatch.syspath_prepend(BENCHMARKS)
    arrays, cases, definition, libraries = (
        importlib.import_module(f"peers.{name}")
        for name in ("arrays", "cases", "definition", "libraries")
    )
    case = cases.Case(norm, "forward", (400, 12), density=0.3 if norm in cases.SPARSE else 1.0)
    call = libraries.load(library).call_of(case, arrays.arrays_of(case))
    if call is None:
        assert library != "numnorm"
        return
    (y,) = call.arrays(call.run())
    ((error, allowed),) = definition.errors_of(case, [y])
    assert error <= allowed
    ((error, allowed),) = definition.errors_of(case, [y * 2])
    assert error > allowed


@pytest.mark.skipif(sys.platform != "linux", reason="Linux counts the memory")
def test_the_memory_of_calls(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(BENCHMARKS)
    cases, memory = (importlib.import_module(f"peers.{name}") for name in ("cases", "memory"))
    assert 31 < memory.peak(lambda: np.ones(1 << 22)) < 40
    case = cases.Case("scaled_csr", "forward", (400, 12), density=0.3)
    assert 0 <= memory.of_case("numnorm", case) < 10
    path = memory._written(tmp_path / "x.npy", 100)
    for calls in memory.OF_FILES.values():
        assert memory.of_file(calls["numnorm"], [path]) >= 0


CELL_LIBRARIES = [
    ("numnorm", "lstm"),
    ("numnorm", "ln_lstm"),
    pytest.param("torch", "ln_lstm", marks=pytest.mark.torch),
    pytest.param("torch_nn", "lstm", marks=pytest.mark.torch),
]


@pytest.mark.parametrize("direction", ["forward", "forward and backward"])
@pytest.mark.parametrize(("library", "cell"), CELL_LIBRARIES)
def test_cells_do_what_the_definition_says(library, cell, direction, monkeypatch):
    if library.startswith("torch"):
        pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.syspath_prepend(BENCHMARKS)
    arrays, cases, definition, libraries = (
        importlib.import_module(f"peers.{name}")
        for name in ("arrays", "cases", "definition", "libraries")
    )
    case = cases.Case(cell, direction, (6, 3, 5, 8))
    call = libraries.load(library).call_of(case, arrays.arrays_of(case))
    results = call.arrays(call.run())
    norms = 0 if cell == "lstm" else 6
    assert len(results) == (1 if direction == "forward" else 4 + norms)
    for error, allowed in definition.errors_of(case, results):
        assert error <= allowed
    # Off by a thousandth is wrong, in any of them.
    for n, result in enumerate(results):
        wrong = [*results[:n], result * 1.001, *results[n + 1 :]]
        assert any(error > allowed for error, allowed in definition.errors_of(case, wrong))


@pytest.mark.parametrize("library", ["numpy", "scipy", "sklearn", "copyto"])
def test_libraries_without_cells_say_so(library, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    arrays, cases, libraries = (
        importlib.import_module(f"peers.{name}") for name in ("arrays", "cases", "libraries")
    )
    for cell in cases.CELLS:
        case = cases.Case(cell, "forward", (6, 3, 5, 8))
        assert libraries.load(library).call_of(case, arrays.arrays_of(case)) is None


@pytest.mark.parametrize("quick", [False, True])
def test_norms_and_cells_can_be_chosen(quick, monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    cases = importlib.import_module("peers.cases")
    every = cases.all_cases(quick)
    names = ("norms", "cells", "estimators", "moving", "order", "missing", "labels", "inverse")
    names += ("robust", "times", "quantiles", "sparse")
    families = [{c for c in every if c.name.startswith(f"{only},")} for only in names]
    assert all(families)
    assert sum(map(len, families)) == len(set(every)) == len(set().union(*families))
    assert families[1] == {case for case in every if case.norm in cases.CELLS}
    assert families[2] == {case for case in every if case.norm in cases.ESTIMATORS}
    assert all(case.family == name for name, of in zip(names, families, strict=True) for case in of)


def test_cells_stand_beside_the_module_of_torch(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    cases, report, picture = (
        importlib.import_module(f"peers.{name}") for name in ("cases", "report", "picture")
    )
    seconds = {
        ("numnorm", "lstm"): 3.0,
        ("torch_nn", "lstm"): 2.0,
        ("numnorm", "ln_lstm"): 5.0,
        ("torch", "ln_lstm"): 20.0,
        ("torch_nn", "ln_lstm"): 4.0,
    }
    records = [
        {**vars(cases.Case(cell, "forward", (6, 3, 5, 8))), "threads": 1, "library": library}
        | {"status": "ready", "seconds": time, "quartiles": [time, time]}
        for (library, cell), time in seconds.items()
    ]
    libraries = {name: {"status": "ready"} for name in ("numnorm", "torch", "torch_nn", "copyto")}
    text = report.markdown({"records": records, "libraries": libraries, "machine": {}, "rounds": 1})
    table = text[text.index("## Cells, forward, 1 thread") :].splitlines()[2:]
    header, _, plain, normed = (
        [cell.strip() for cell in row.split("|")[1:-1]] for row in table[:4]
    )
    assert header == ["case", "numnorm", "torch", "torch_nn", "numnorm / torch_nn"]
    assert [plain[0], plain[-1]] == ["lstm float32 6×3×5×8", "1.50×"]
    assert [normed[0], normed[-1]] == ["ln_lstm float32 6×3×5×8", "1.25×"]
    assert normed[2].endswith("(4.00×)")
    image = io.BytesIO()
    picture.draw(records, image)
    assert image.getvalue().startswith(b"\x89PNG")


def test_compiled_code_has_tables_of_its_own(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    cases, report, picture = (
        importlib.import_module(f"peers.{name}") for name in ("cases", "report", "picture")
    )
    seconds = {
        "forward": {"numnorm": 1.0, "jax": 8.0, "njit": 2.0, "njit_loop": 6.0, "numnorm_jax": 4.0},
        "backward": {"numnorm": 1.0, "jax": 8.0, "numnorm_jax": 4.0},
    }
    records = [
        {**vars(cases.Case("layer_norm", direction, (4, 8))), "threads": 1, "library": library}
        | {"status": "ready", "seconds": time, "quartiles": [time, time]}
        for direction, times in seconds.items()
        for library, time in times.items()
    ]
    libraries = {name: {"status": "ready"} for name in seconds["forward"]}
    text = report.markdown({"records": records, "libraries": libraries, "machine": {}, "rounds": 1})

    def rows(heading):
        lines = text[text.index(f"## {heading}\n") :].splitlines()[2:5:2]
        return [[cell.strip() for cell in line.split("|")[1:-2]] for line in lines]

    assert rows("Norms, forward, 1 thread")[0] == ["case", "numnorm", "jax"]
    header, row = rows("Norms, forward, 1 thread: njit")
    assert header == ["case", "njit", "njit_loop"]
    assert row[2].endswith("(3.00×)")
    header, row = rows("Norms, backward, 1 thread: numnorm_jax")
    assert header == ["case", "numnorm_jax", "jax"]
    assert row[2].endswith("(2.00×)")
    assert "Norms, backward, 1 thread: njit" not in text
    drawn = []
    monkeypatch.setattr(
        picture, "_draw_part", lambda _figure, _part, of_part: drawn.extend(of_part)
    )
    picture.draw(records, io.BytesIO())
    assert {record["library"] for record in drawn} == {"numnorm", "jax"}


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
        (["--only", "cells", "moving"], "partial"),
        (["--threads", "1"], "partial"),
        (["--libraries", "numpy"], "partial"),
    ],
)
def test_a_part_of_the_comparison_does_not_replace_all_of_it(monkeypatch, options, folder):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    program = importlib.import_module("peers.__main__")
    monkeypatch.setattr(sys, "argv", ["peers", *options])
    assert program._folder(program._options()) == folder
