"""Runs every public function on arrays of all sizes, and prints a digest of its results.

The tests of threads and of processes import this module, and run it in processes of their own::

    python every_call.py [--variant serial|parallel] [--threads N ...]

prints the threading layer and, for each number of threads, the digest of every case. ``--variant``
runs only the serial or the parallel variant of each kernel.
"""

import argparse
import ctypes
import functools
import hashlib
import importlib
import json
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest

import numnorm

Array = np.ndarray[Any, Any]

LAYERS = {"workqueue": "workqueue", "omp": "omppool", "tbb": "tbbpool"}
TBB = Path(sys.prefix, "lib", "libtbb.so.12")
COMPILED = os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")


class Case(NamedTuple):
    """A norm, and an array to call its functions with."""

    norm: str
    dtype: str
    shape: tuple[int, ...]
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """The case in words."""
        options = "".join(f" {name}={value}" for name, value in self.options)
        return f"{self.norm} {self.dtype} {self.shape}{options}"

    @property
    def size(self) -> str:
        """Where `choose_by_size` has it run in parallel: medium not in workqueue, tiny nowhere."""
        elements = int(np.prod(self.shape))
        return "tiny" if elements < 1 << 15 else "medium" if elements < 1 << 18 else "large"


def _cases() -> Iterator[Case]:
    # Compiling is slow: each norm gets one dtype, and together they have all dtypes.
    for shape in ((3, 7), (131, 257), (523, 509)):
        yield Case("layer_norm", "float32", shape)
        yield Case("rms_norm", "bfloat16", shape)
        yield Case("ada_norm", "float64", shape, (("ddof", 1), ("eps_in", "std"), ("scale", 1.5)))
        yield Case("weight_norm", "float32", shape)
    yield Case("layer_norm", "float32", (83, 67, 53), (("axis", (0, 2)),))
    yield Case("layer_norm", "float32", (270001, 1))
    yield Case("rms_norm", "bfloat16", (3, 100003))
    yield Case("weight_norm", "float32", (509, 523), (("axis", 0),))
    for shape in ((2, 6, 5), (11, 6, 23, 23), (13, 6, 59, 61)):
        yield Case("group_norm", "float16", shape, (("groups", 3),))
        yield Case("instance_norm", "float32", shape)
    # Two kernels: across the channels, and along each of them.
    for shape in ((5, 3), (11231, 3), (523, 509), (89123, 3)):
        yield Case("batch_norm", "float32", shape)
    for shape in ((2, 3, 5), (7, 5, 967), (5, 3, 17761), (2, 1, 140001)):
        yield Case("batch_norm", "float16", shape)


CASES = {case.label: case for case in _cases()}


@functools.cache
def draw(case: Case) -> list[Array]:
    """Return three arrays of the case's shape and dtype, the same ones in every process."""
    if case.dtype == "bfloat16":
        importlib.import_module("ml_dtypes")  # NumPy knows the name from then on
    rng = np.random.default_rng(zlib.crc32(case.label.encode()))
    offsets = rng.normal(size=case.shape[-1])
    return [(rng.normal(size=case.shape) + offsets).astype(case.dtype) for _ in range(3)]


def results_of(case: Case) -> list[Array]:
    """Return the results of a norm's functions for a case, forward and backward."""
    x, dy, other = draw(case)
    if case.norm == "batch_norm":
        return list(_batch_results(x, dy, other))
    plain, forward, backward = (
        getattr(numnorm, case.norm + suffix) for suffix in ("", "_forward", "_backward")
    )
    options = dict(case.options)
    gamma, beta = _parameters(case, other)
    weights = {"ada_norm": (), "rms_norm": (gamma,), "weight_norm": (gamma,)}
    given = weights.get(case.norm, (gamma, beta))
    y, *saved = forward(x, *given, **options)
    results = [y, *saved, plain(x, *given, **options)]
    for detach in ({}, {"detach": "both"}) if case.norm == "layer_norm" else ({},):
        gradients = backward(dy, x, *saved, *given[:1], **options, **detach)
        results += [gradients] if isinstance(gradients, np.ndarray) else gradients
    return results


def _parameters(case: Case, values: Array) -> tuple[Array, Array]:
    """Return gamma and beta as parts of an array of the case's shape."""
    of_channels = case.norm in ("group_norm", "instance_norm")
    axes = 1 if of_channels else dict(case.options).get("axis", -1)
    own = {int(axis) % values.ndim for axis in np.atleast_1d(axes)}
    if case.norm == "weight_norm":
        own = set(range(values.ndim)) - own
    gamma = values[tuple(slice(None) if a in own else 0 for a in range(values.ndim))]
    return gamma, gamma[..., ::-1]


def _batch_results(x: Array, dy: Array, other: Array) -> Iterator[Array]:
    # A sum over many float16 values may be too large for float16.
    gamma = other[0].reshape(x.shape[1], -1)[:, 0].astype(np.float32)
    running: dict[str, Any] = {
        "running_mean": np.zeros(x.shape[1]),
        "running_var": np.ones(x.shape[1]),
    }
    y, *saved = numnorm.batch_norm_forward(x, gamma, gamma[::-1], **running)
    yield from (y, *saved, *running.values())
    yield from numnorm.batch_norm_backward(dy, x, *saved, gamma)
    yield numnorm.batch_norm(x, gamma, gamma[::-1], training=False, **running)
    yield from numnorm.batch_norm_backward(dy, x, *saved, gamma, training=False)
    moments = numnorm.batch_moments(x)
    yield from map(np.asarray, numnorm.batch_moments(dy, after=moments))
    yield from map(np.asarray, moments.merge(numnorm.batch_moments(other)))


def digest(case: Case) -> str:
    """Return a hash of every byte of a case's results."""
    hashed = hashlib.sha256()
    for array in results_of(case):
        hashed.update(f"{array.shape} {array.dtype}".encode() + array.tobytes())
    return hashed.hexdigest()


def in_compiler(module: str) -> Any:
    """Return a module of the CPU's compiler, imported."""
    return importlib.import_module(f"numnorm.backends.cpu.compiler.{module}")


def choose_by_size(medium: int = 1 << 17, large: int = 1 << 20) -> None:
    """Let the size alone decide what runs in parallel, and the environment with how many threads.

    The sizes in bytes are smaller than those that are worth a thread, and neither the processors
    nor the time that calls take have a say.
    """
    tuning = importlib.import_module("numnorm.backends.cpu.tuning")
    vars(tuning).update(PARALLEL_LEAST_WORK=medium, PARALLEL_WORKQUEUE_LEAST_WORK=large)
    vars(tuning).update(PARALLEL_TIMED_BELOW_WORK=0)
    vars(in_compiler("threads")).update(
        usable_processors=lambda: 1 << 20, _fixed_limit=lambda: 1 << 20
    )


def stay_with(variant: str) -> None:
    """Run every kernel serially or in parallel from now on, whatever the size."""
    choose_by_size(0, 0)
    vars(in_compiler("parallel")).update(_worth_it=lambda *_: variant == "parallel")
    vars(importlib.import_module("numnorm.backends.cpu.tuning")).update(PLACE_LEAST_ELEMENTS=0)


class Launches:
    """The parallel regions that compiled code enters, each as its number of threads.

    From the first object on, the size alone chooses them.
    """

    # Keeps the callbacks alive: compiled code refers to them until the process ends.
    _linked: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        choose_by_size()
        parallel = importlib.import_module("numba.np.ufunc.parallel")
        parallel._launch_threads()
        self.layer: str = parallel.threading_layer()
        self.threads: list[int] = []
        library = importlib.import_module(f"numba.np.ufunc.{LAYERS[self.layer]}")
        kind = ctypes.CFUNCTYPE(
            None, *[ctypes.c_void_p] * 5, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int
        )
        launch = kind(library.parallel_for)

        def counted(*arguments: Any) -> None:
            self.threads.append(arguments[-1])
            launch(*arguments)

        entry = kind(counted)
        self._linked.append(entry)
        address = ctypes.cast(entry, ctypes.c_void_p).value
        importlib.import_module("llvmlite.binding").add_symbol("numba_parallel_for", address)

    def take(self) -> list[int]:
        """Return the launches since the last call."""
        taken, self.threads[:] = list(self.threads), []
        return taken


def skip_where_missing(layer: str) -> None:
    """Skip the current test if this machine does not have a threading layer."""
    if layer == "tbb" and not TBB.exists():
        pytest.skip("needs the package tbb")
    if layer == "omp" and sys.platform == "darwin":
        pytest.skip("Numba's wheels have no OpenMP on macOS")


def load_tbb() -> None:
    """Load the library of the wheel `tbb`, which the dynamic loader does not find by itself."""
    if os.environ.get("NUMBA_THREADING_LAYER") == "tbb" and TBB.exists():
        ctypes.CDLL(str(TBB), mode=ctypes.RTLD_GLOBAL)


def environment(**changes: str | None) -> dict[str, str]:
    """Return this process's environment with some changes; None removes a variable.

    By default its Python finds this folder and this numnorm, and its Numba compiles.
    """
    paths = Path(__file__).parent, Path(numnorm.__file__).parents[1]
    changes = {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "NUMBA_DISABLE_JIT": None,
        "NUMBA_THREADING_LAYER": None,
        "NUMBA_NUM_THREADS": None,
        **changes,
    }
    merged = {**os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def start(*arguments: str, **changes: str | None) -> "subprocess.Popen[str]":
    """Start Python with arguments, and with changes of the environment as keywords."""
    return subprocess.Popen(
        [sys.executable, "-P", "-W", "error", *arguments],
        env=environment(**changes),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output_of(process: "subprocess.Popen[str]", timeout: float = 900) -> str:
    """Wait for a process to succeed, and return its output."""
    try:
        printed, complaints = process.communicate(timeout=timeout)
    finally:
        process.kill()
    status = process.returncode
    assert status == 0, f"exit status {status}\n{printed[-2000:]}\n{complaints[-4000:]}"
    return printed


def in_new_process(*arguments: str, **changes: str | None) -> str:
    """Return the output of Python for arguments, with changes of its environment."""
    return output_of(start(*arguments, **changes))


def main() -> None:
    """Print the digests of all cases as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("serial", "parallel"))
    parser.add_argument("--threads", type=int, nargs="+")
    arguments = parser.parse_args()
    load_tbb()
    numba = importlib.import_module("numba")
    launches = Launches()
    if arguments.variant:
        importlib.import_module("numnorm.backends.cpu")
        stay_with(arguments.variant)
    runs = []
    for threads in arguments.threads or [numba.get_num_threads()]:
        numba.set_num_threads(threads)
        run = {label: (digest(case), launches.take()) for label, case in CASES.items()}
        runs.append({"threads": threads, "cases": run})
    print(json.dumps({"layer": launches.layer, "runs": runs}))


if __name__ == "__main__":
    main()
