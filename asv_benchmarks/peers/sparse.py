"""Sparse columns: numnorm beside scikit-learn and scanpy's formula, times and memory.

``python -m peers.sparse`` prints the table and writes ``results/sparse/peers.md``, on one thread.
scanpy itself is not needed: its formulas are those of `scanpy.pp.scale` with ``zero_center=False``,
in NumPy and SciPy. Before a call is timed, its result is compared with numnorm's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.preprocessing import StandardScaler
from sklearn.utils.sparsefuncs import mean_variance_axis

import numnorm

from . import machine
from .arrays import Array
from .report import as_markdown

# Rows, columns and the share of values that are stored.
MATRICES = [
    (1_000, 100, 0.1),
    (20_000, 2_000, 0.05),
    (50_000, 2_000, 0.1),
    (200_000, 300, 0.1),
    (2_000, 20_000, 0.02),
    (1_000_000, 30, 0.3),
    (100_000, 50, 0.9),
    (500_000, 10_000, 0.0005),
]
QUICK = MATRICES[:2]
MOST, BATCHES = 10.0, 8
# A case that takes longer has fewer rounds.
SECONDS, LEAST = 20.0, 3
RESULTS = Path(__file__).parent / "results" / "sparse" / "peers.md"

Call = Callable[[Any, Array], Any]


def _moments(x: Any, batches: Array) -> Any:
    found = numnorm.batch_moments(x)
    return found.mean, found.var()


def _moments_sklearn(x: Any, batches: Array) -> Any:
    return mean_variance_axis(x, 0)


def _moments_scanpy(x: Any, batches: Array) -> Any:
    mean = np.asarray(x.mean(axis=0, dtype=np.float64)).ravel()
    squares = np.asarray(x.multiply(x).mean(axis=0, dtype=np.float64)).ravel()
    return mean, squares - mean**2


def _scaled(x: Any, batches: Array) -> Any:
    return numnorm.batch_norm(x, with_mean=False, eps=0, clip=MOST)


def _scaled_sklearn(x: Any, batches: Array) -> Any:
    y = StandardScaler(with_mean=False).fit_transform(x)
    np.minimum(y.data, MOST, out=y.data)
    return y


def _scaled_scanpy(x: Any, batches: Array) -> Any:
    y = x.copy()
    std = np.sqrt(_moments_scanpy(y, batches)[1]).astype(y.dtype)
    std[std == 0] = 1
    if y.format == "csr":
        y.data /= std.take(y.indices, mode="clip")
    else:
        y.data /= std.repeat(np.diff(y.indptr))
    y.data[y.data > MOST] = MOST
    return y


def _by_batch(x: Any, batches: Array) -> Any:
    return numnorm.batch_norm(x, with_mean=False, eps=0, clip=MOST, labels=batches)


def _loop_of(function: Call) -> Call:
    """Return a loop over the batches, which puts their rows together again."""

    def loop(x: Any, batches: Array) -> Any:
        members = [np.flatnonzero(batches == batch) for batch in range(BATCHES)]
        parts = [function(x[rows], batches) for rows in members]
        order = np.argsort(np.concatenate(members))
        return sparse.vstack(parts, format="csr")[order].asformat(x.format)

    return loop


TASKS: dict[str, dict[str, Call]] = {
    "moments": {
        "numnorm": _moments,
        "scikit-learn": _moments_sklearn,
        "scanpy's formula": _moments_scanpy,
    },
    "scaled": {
        "numnorm": _scaled,
        "scikit-learn": _scaled_sklearn,
        "scanpy's formula": _scaled_scanpy,
    },
    "scaled by batch": {
        "numnorm": _by_batch,
        "scikit-learn": _loop_of(_scaled_sklearn),
        "scanpy's formula": _loop_of(_scaled_scanpy),
    },
}
LIBRARIES = list(TASKS["moments"])


def _check(found: Any, expected: Any) -> None:
    """Raise unless two results are equal up to rounding of float32."""
    if not isinstance(found, tuple):
        found, expected = (found.toarray(),), (expected.toarray(),)
    for array, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-3, atol=1e-5)


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _peak(call: Callable[[], Any]) -> float:
    """Return the most MiB of arrays that a call has at a time."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def _rows(shape: tuple[int, int, float], rounds: int) -> list[list[str]]:
    """Return the rows of the table for one matrix in both formats."""
    rows, columns, density = shape
    rng = np.random.default_rng(0)
    random = sparse.random_array(
        (rows, columns), density=density, rng=rng, format="csr", dtype=np.float32
    )
    batches, table = rng.integers(0, BATCHES, rows), []
    for x in (random, random.tocsc()):
        stored = (x.data.nbytes + x.indices.nbytes + x.indptr.nbytes) / 2**20
        for task, calls in TASKS.items():
            bound = {name: partial(call, x, batches) for name, call in calls.items()}
            expected = bound["numnorm"]()
            for name in LIBRARIES[1:]:
                if rows * columns <= 1e8:
                    _check(bound[name](), expected)
            times: dict[str, list[float]] = {name: [] for name in LIBRARIES}
            start = time.perf_counter()
            while len(times["numnorm"]) < rounds:
                for name in LIBRARIES:
                    times[name].append(_seconds(bound[name]))
                if len(times["numnorm"]) >= LEAST and time.perf_counter() - start > SECONDS:
                    break
            own = statistics.median(times["numnorm"])
            ratios = (f"{statistics.median(times[name]) / own:.2f}" for name in LIBRARIES[1:])
            peaks = (f"{_peak(bound[name]):.3g}" for name in LIBRARIES)
            what = f"{task} {x.format} {rows}×{columns}, {density:.2%}"
            table.append([what, f"{own * 1e3:.3g}", *ratios, f"{stored:.3g}", *peaks])
    return table


def main() -> None:
    """Print the table, and write it."""
    parser = argparse.ArgumentParser(prog="python -m peers.sparse", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two matrices and 3 rounds")
    parser.add_argument("--rounds", type=int, help="rounds for each case, at most (15)")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the file of the table")
    options = parser.parse_args()
    rounds = options.rounds or (3 if options.quick else 15)
    head = ["float32", "numnorm, ms", *(f"{name}, ratio" for name in LIBRARIES[1:])]
    head += ["matrix, MiB", *(f"{name}, peak MiB" for name in LIBRARIES)]
    with numnorm.num_threads(1):
        rows = []
        for shape in QUICK if options.quick else MATRICES:
            rows += _rows(shape, rounds)
            print(f"{len(rows)} rows, the last one: {' '.join(rows[-1])}", file=sys.stderr)
        table = as_markdown(head, rows)
    facts = "\n".join(f"- {name}: {value}" for name, value in machine.description().items())
    text = (
        "# Sparse columns\n\nTimes on one thread: a ratio above 1 means slower than numnorm. "
        f"The peak is what a call allocates, its result with it.\n\n{facts}\n\n{table}"
    )
    print(text)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
