"""The memory of calls, of numnorm and of its peers: ``python -m peers.memory``, on Linux.

A peak is the most that a process has during a call, less what it has before. Quantiles are those of
a file, which numnorm reads in chunks.
"""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import numnorm

from .arrays import Array, arrays_of
from .cases import ERROR, SPARSE, STORED, Case, Q
from .libraries import load
from .report import as_markdown

LIBRARIES = ("numnorm", "numpy", "sklearn", "scanpy")
SHAPES = ((50_000, 2000), (300_000, 30))
# The rows of the files, a small one to compile with; eight columns of float32.
ROWS, CHUNK = (1 << 10, 8 << 20), 1 << 17


def _chunks(path: str) -> Iterator[Array]:
    for start in range(0, len(np.load(path, mmap_mode="r")), CHUNK):
        # Mapped anew, so that only this chunk is in memory.
        yield np.array(np.load(path, mmap_mode="r")[start : start + CHUNK])


def _streamed(path: str, **options: Any) -> None:
    total = None
    for chunk in _chunks(path):
        total = numnorm.quantiles(chunk, after=total, **options)
    assert total is not None
    total.quantile(Q)


def _whole(path: str) -> None:
    np.quantile(np.load(path), Q, axis=0)


def _applied(path: str) -> None:
    from numnorm.commands.apply.command import main as apply

    words = ["robust_norm", path, f"{path}.out.npy", "--axis", "0", "1", "--scale", "iqr"]
    apply([*words, "--block-size", "16", "--force"])


OF_FILES: dict[str, dict[str, Callable[[str], None]]] = {
    "quantiles": {"numnorm": _streamed, "numpy": _whole},
    f"quantiles, error={ERROR}": {"numnorm": partial(_streamed, error=ERROR), "numpy": _whole},
    "numnorm apply robust_norm of one row, --block-size 16": {"numnorm": _applied},
}


def _written(path: Path, rows: int) -> str:
    """Write a file, and return its name."""
    np.save(path, np.random.default_rng(0).standard_normal((rows, 8), np.float32))
    return str(path)


def of_file(call: Callable[[str], None], paths: list[str]) -> float:
    """Return the peak of a call of the last file, after one of each other."""
    return [peak(partial(call, path)) for path in paths][-1]


def of_case(library: str, case: Case) -> float:
    """Return the peak of a library's call, after a small one."""
    adapter = load(library)
    adapter.start(1)
    both = replace(case, shape=(60, 8), density=0.3), case
    return [peak(adapter.call_of(one, arrays_of(one)).run) for one in both][-1]


def peak(call: Callable[[], Any]) -> float:
    """Return the most MiB that this process has during a call, less those before."""
    ctypes.CDLL(None).malloc_trim(0)  # what is free must not hide what the call needs
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # begins a new peak
    before = _most()
    call()
    return _most() - before


def _most() -> float:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) / 2**10 for line in lines if line.startswith("VmHWM"))


def _row(what: str, size: float, peaks: Mapping[str, Future[Any]]) -> list[str]:
    found = (f"{peaks[name].result():.0f}" if name in peaks else "" for name in LIBRARIES)
    return [what, f"{size:.0f}", *found]


def main() -> None:
    """Print a table; each number is that of a new process."""
    rows, alone = [], ProcessPoolExecutor(1, max_tasks_per_child=1)
    with tempfile.TemporaryDirectory() as folder, alone as pool:
        paths = [_written(Path(folder, f"{length}.npy"), length) for length in ROWS]
        size = Path(paths[-1]).stat().st_size / 2**20
        for what, calls in OF_FILES.items():
            of_calls = {name: pool.submit(of_file, call, paths) for name, call in calls.items()}
            rows.append(_row(what, size, of_calls))
        for case in (Case(n, "forward", s, density=STORED[s]) for s in SHAPES for n in SPARSE):
            x = arrays_of(case).x
            size = (x.data.nbytes + x.indices.nbytes + x.indptr.nbytes) / 2**20
            peaks = {n: pool.submit(of_case, n, case) for n in LIBRARIES if n != "numpy"}
            rows.append(_row(case.label, size, peaks))
    print(as_markdown(["MiB", "input", *LIBRARIES], rows))


if __name__ == "__main__":
    main()
