"""Quantiles of columns: numnorm beside NumPy, scikit-learn, pandas, Dask, and memory of chunks.

``python -m peers.quantiles`` prints the tables and writes ``results/quantiles/peers.md``, on one
thread. Before a call is timed, its result is compared with NumPy's. Memory is the peak of a process
that reads a file in chunks, less what it has before.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import numnorm

from . import machine
from .arrays import Array
from .report import as_markdown

SHAPES = [
    (1_000, 1),
    (1_000, 100),
    (1_000, 1_000),
    (100_000, 1),
    (100_000, 30),
    (100_000, 100),
    (1_000_000, 1),
    (1_000_000, 10),
    (10_000_000, 1),
]
QUICK = SHAPES[:2]
Q = [0.25, 0.5, 0.75]
CHUNKS = 10
ERROR = 0.01
RESULTS = Path(__file__).parent / "results" / "quantiles" / "peers.md"
# The file whose quantiles are taken in bounded memory: columns of float32.
ROWS, COLUMNS = 8 << 20, 8
CHUNK_ROWS = 1 << 17


def _numnorm(x: Array) -> Array:
    found: Array = numnorm.quantiles(x).quantile(Q)
    return found


def _numpy(x: Array) -> Array:
    found: Array = np.quantile(x, Q, axis=0)
    return found


def _pandas(x: Array) -> Array:
    import pandas as pd

    found: Array = pd.DataFrame(x, copy=False).quantile(Q).to_numpy()
    return found


def _robust_scaler(x: Array) -> Array:
    from sklearn.preprocessing import RobustScaler

    fitted = RobustScaler().fit(x)
    return np.stack([fitted.center_, fitted.scale_])


def _quantile_transformer(x: Array) -> Array:
    from sklearn.preprocessing import QuantileTransformer

    fitted = QuantileTransformer(n_quantiles=5, subsample=None).fit(x)
    found: Array = fitted.quantiles_[1:4]
    return found


def _chunked(x: Array, **options: Any) -> Array:
    total = None
    for chunk in np.array_split(x, CHUNKS):
        total = numnorm.quantiles(chunk, after=total, **options)
    assert total is not None
    found: Array = total.quantile(Q)
    return found


def _in_dask(function: Callable[[Any], Any], x: Array) -> Array:
    import dask
    import dask.array as da

    lazy = da.from_array(x, chunks=(-(-len(x) // CHUNKS), -1))
    with dask.config.set(scheduler="synchronous"):
        found: Array = function(lazy).compute()
    return found


def _dask_percentile(lazy: Any) -> Any:
    import dask.array as da

    columns = [da.percentile(lazy[:, i], [100 * q for q in Q]) for i in range(lazy.shape[1])]
    return da.stack(columns, axis=1)


def _dask_whole(lazy: Any) -> Any:
    import dask.array as da

    return da.quantile(lazy.rechunk((-1, "auto")), Q, axis=0)


TASKS: dict[str, dict[str, Callable[[Array], Array]]] = {
    "at once": {
        "numnorm": _numnorm,
        "NumPy": _numpy,
        "pandas": _pandas,
        "RobustScaler": _robust_scaler,
        "QuantileTransformer": _quantile_transformer,
    },
    f"{CHUNKS} chunks": {"numnorm": _chunked, "NumPy": _numpy, "pandas": _pandas},
    f"{CHUNKS} chunks, error={ERROR}": {
        "numnorm": partial(_chunked, error=ERROR),
        "NumPy": _numpy,
    },
    f"{CHUNKS} chunks of Dask": {
        "numnorm": partial(_in_dask, lambda lazy: numnorm.quantiles(lazy).quantile(Q)),
        "da.quantile": partial(_in_dask, _dask_whole),
        "da.percentile": partial(_in_dask, _dask_percentile),
    },
}
PEERS = list(dict.fromkeys(name for calls in TASKS.values() for name in calls if name != "numnorm"))
# They give no quantiles of the whole: sketches, and merged quantiles of chunks.
APPROXIMATE = ("da.percentile",)


def _check(name: str, found: Array, x: Array) -> None:
    """Raise unless a result is that of NumPy up to rounding of float32."""
    expected = _numpy(x)
    if name == "RobustScaler":
        expected = np.stack([expected[1], expected[2] - expected[0]])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _rows(shape: tuple[int, int], rounds: int) -> Iterator[list[str]]:
    """Yield the rows of the table for one array."""
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    for task, calls in TASKS.items():
        if "Dask" in task and shape[1] > 10:  # a graph for each column
            calls = {name: call for name, call in calls.items() if name != "da.percentile"}
        bound = {name: partial(call, x) for name, call in calls.items()}
        for name, call in bound.items():
            found = call()
            if name not in APPROXIMATE and "error" not in task:
                _check(name, found, x)
        times: dict[str, list[float]] = {name: [] for name in bound}
        for _ in range(rounds):
            for name, call in bound.items():
                times[name].append(_seconds(call))
        own = statistics.median(times["numnorm"])
        ratios = [
            f"{statistics.median(times[name]) / own:.2f}" if name in times else "" for name in PEERS
        ]
        yield [f"{shape[0]}×{shape[1]}, {task}", f"{own * 1e3:.3g}", *ratios]


# Memory


def _chunks_of(path: str) -> Iterator[Array]:
    with open(path, "rb") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        for _ in range(ROWS // CHUNK_ROWS):
            yield np.fromfile(file, np.float32, CHUNK_ROWS * COLUMNS).reshape(-1, COLUMNS)


def _streamed(path: str, **options: Any) -> None:
    total = None
    for chunk in _chunks_of(path):
        total = numnorm.quantiles(chunk, after=total, **options)
    assert total is not None
    total.quantile(Q)


def _applied(path: str) -> None:
    from numnorm.commands.apply.command import main as apply

    words = ["robust_norm", path, f"{path}.out.npy", "--axis", "0", "1", "--scale", "iqr"]
    apply([*words, "--block-size", "16", "--force"])


IN_MEMORY: dict[str, Callable[[str], Any]] = {
    "NumPy: quantile of the whole array": lambda path: np.quantile(np.load(path), Q, axis=0),
    "numnorm: chunks, exact": _streamed,
    f"numnorm: chunks, error={ERROR}": partial(_streamed, error=ERROR),
    "numnorm apply robust_norm of one row, --block-size 16": _applied,
}


def _peak() -> int:
    """Return the most bytes that this process has had, on Linux."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def _measure(name: str, path: str) -> None:
    """Print the bytes that a call needs beyond those before it."""
    few = np.ones((4, 2), np.float32)
    numnorm.quantiles(few, error=ERROR).median()
    before = _peak()
    IN_MEMORY[name](path)
    print(_peak() - before)


def _memory() -> list[list[str]]:
    """Return the rows of the table of memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "x.npy")
        rng = np.random.default_rng(0)
        target = np.lib.format.open_memmap(path, "w+", np.float32, (ROWS, COLUMNS))
        for start in range(0, ROWS, CHUNK_ROWS):
            target[start : start + CHUNK_ROWS] = rng.normal(size=(CHUNK_ROWS, COLUMNS))
        size = target.nbytes / 2**20
        del target
        rows = []
        for name in IN_MEMORY:
            words = [sys.executable, "-m", "peers.quantiles", "--measure", name, str(path)]
            start = time.perf_counter()
            said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
            seconds = time.perf_counter() - start
            rows.append([name, f"{size:.0f}", f"{int(said) / 2**20:.0f}", f"{seconds:.1f}"])
    return rows


def main() -> None:
    """Print the tables, and write them."""
    parser = argparse.ArgumentParser(prog="python -m peers.quantiles", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two arrays and 3 rounds, no memory")
    parser.add_argument("--rounds", type=int, help="rounds for each case (5)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the file of the tables")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        _measure(*options.measure)
        return
    rounds = options.rounds or (3 if options.quick else 5)
    head = ["float32, quantiles 0.25, 0.5, 0.75", "numnorm, ms", *(f"{n}, ratio" for n in PEERS)]
    shapes = QUICK if options.quick else SHAPES
    with numnorm.num_threads(1):
        table = as_markdown(head, [row for shape in shapes for row in _rows(shape, rounds)])
    facts = "\n".join(f"- {name}: {value}" for name, value in machine.description().items())
    text = (
        "# Quantiles\n\nTimes on one thread: a ratio above 1 means slower than numnorm. NumPy and "
        "pandas have the whole array where numnorm has chunks; `da.percentile` merges quantiles of "
        f"chunks, which is no quantile of the whole.\n\n{facts}\n\n{table}"
    )
    if not options.quick:
        memory = as_markdown(["memory", "file, MiB", "peak, MiB", "seconds"], _memory())
        text += f"\nThe peak of a process, less what it has after its imports:\n\n{memory}"
    print(text)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
