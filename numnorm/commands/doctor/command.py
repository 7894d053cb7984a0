"""``numnorm doctor``: what numnorm runs on, and whether it computes correctly here."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import platform
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numnorm
from numnorm.commands.doctor import selftest
from numnorm.commands.terminal import CommandParser, one_line
from numnorm.operating_system import WINDOWS

_DESCRIPTION = """\
Show the versions, the processor, threads, BLAS, cache and GPU that numnorm meets here, one
`key: value` a line, and test every norm, forward and backward: the result against a plain float64
definition, the gradients against numerical differentiation of that definition. The exit status is
1 if a test fails. The first run compiles every norm, which may take a minute."""

_KEY_WIDTH = 25


def main(argv: Sequence[str]) -> int:
    """Run the command.

    Parameters
    ----------
    argv : sequence of str
        The words after ``numnorm doctor``.

    Returns
    -------
    int
        The exit status: 1 if a norm is wrong, else 0.
    """
    parser = CommandParser(prog="numnorm doctor", description=_DESCRIPTION)
    choices = tuple(selftest.TOLERANCES)
    parser.add_argument("--dtype", choices=choices, default=choices[0], help="dtype of the tests")
    arguments = parser.parse_args(argv)
    for report in (versions, processor, cache, blas, gpu):
        for key, value in report():
            _show(key, value)
    outcomes = []
    for outcome in selftest.run(arguments.dtype):
        verdict = "ok" if outcome.passed else "FAILED"
        _show(f"test {outcome.name}", f"{verdict} ({outcome.details})")
        outcomes.append(outcome.passed)
    # After the tests, because it starts all threads.
    for key, value in threads():
        _show(key, value)
    failures = outcomes.count(False)
    _show("result", f"{failures} of {len(outcomes)} tests FAILED" if failures else "all is well")
    return 1 if failures else 0


def _show(key: str, value: str) -> None:
    print(f"{key + ':':<{_KEY_WIDTH}}{value}", flush=True)


Fact = tuple[str, str]

_SIMD = (
    *("sse4.2", "avx", "avx2", "fma", "f16c"),
    *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni", "avx512bf16", "avx512fp16"),
    *("amx-tile", "neon", "fullfp16", "bf16", "sve", "sve2"),
)
_LAYERS = {"omp": "omppool", "tbb": "tbbpool", "workqueue": "workqueue"}
_SKYLAKE_X = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_AVX512_KERNELS = {"SkylakeX", "Cooperlake", "SapphireRapids"}


def versions() -> Iterator[Fact]:
    """Yield the versions of numnorm, its dependencies, and the system."""
    yield "numnorm", numnorm.__version__
    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    for package in ("numpy", "numba", "llvmlite", "scipy", "ml_dtypes"):
        try:
            yield package, version(package)
        except PackageNotFoundError:
            yield package, "not installed"
    yield "platform", platform.platform()


def processor() -> Iterator[Fact]:
    """Yield the processor that LLVM compiles for."""
    yield "cpu", f"{_llvm().get_host_cpu_name()}, {os.cpu_count()} logical"
    yield "simd", " ".join(name for name in _SIMD if name in _features()) or "none reported"


def _llvm() -> Any:
    return importlib.import_module("llvmlite.binding")


def _features() -> set[str]:
    return {name for name, present in _llvm().get_host_cpu_features().items() if present}


def threads() -> Iterator[Fact]:
    """Yield the number of threads of parallel kernels, and Numba's threading layers."""
    numba = importlib.import_module("numba")
    try:
        # This starts the threads, and raises if no threading layer can be loaded.
        count = numba.get_num_threads()
        layer = numba.threading_layer()
        yield "threads", f"{count} of {numba.config.NUMBA_NUM_THREADS} (NUMBA_NUM_THREADS)"
        yield "threading layer", layer
    except ValueError as error:
        yield "threads", f"none: {one_line(error)}"
    for name, module in _LAYERS.items():
        try:
            importlib.import_module(f"numba.np.ufunc.{module}")
            yield f"threading by {name}", "available"
        except ImportError as error:
            yield f"threading by {name}", f"not available ({one_line(error)})"


def blas() -> Iterator[Fact]:
    """Yield the libraries behind NumPy's and SciPy's linear algebra, and how to speed them up."""
    try:
        threadpoolctl: Any = importlib.import_module("threadpoolctl")
    except ImportError:
        yield "blas", 'not known: threadpoolctl is not installed (pip install "numnorm[cli]")'
        return
    # Loads SciPy's library, which Numba calls for np.dot and np.linalg in functions of the user.
    importlib.import_module("scipy.linalg.cython_blas")
    libraries = [lib for lib in threadpoolctl.threadpool_info() if lib["user_api"] == "blas"]
    for library in libraries:
        kernels = library.get("architecture", "unknown")
        yield (
            "blas",
            f"{library['internal_api']} {library['version']}, {kernels} kernels, "
            f"{library['num_threads']} threads ({Path(library['filepath']).parent.name})",
        )
    if any(map(_without_avx512, libraries)) and _features() >= _SKYLAKE_X:
        yield (
            "blas advice",
            "OpenBLAS does not use the AVX-512 of this CPU: set OPENBLAS_CORETYPE=SkylakeX in "
            "the environment before Python starts",
        )


def _without_avx512(library: dict[str, Any]) -> bool:
    architecture = library.get("architecture")
    return library["internal_api"] == "openblas" and architecture not in _AVX512_KERNELS


def cache() -> Iterator[Fact]:
    """Yield the folders of the compiled kernels."""
    from numnorm.backends.cpu.compiler.cache import directory, folders

    kept = directory()
    for folder in folders():
        if folder == kept:
            yield "cache", f"{folder} (writable)"
        elif folder.is_dir():
            yield "cache", f"{folder} (only read)"
    if kept is None:
        yield (
            "cache",
            "none: no place can be written to, so every process compiles anew what is not there; "
            "set NUMBA_CACHE_DIR",
        )


def gpu() -> Iterator[Fact]:
    """Yield the NVIDIA GPUs, and the versions of the compilers of kernels for them."""
    yield "gpu", _devices()
    for compiler in ("numba-cuda", "numba-cuda-mlir"):
        try:
            yield compiler, version(compiler)
        except PackageNotFoundError:
            yield compiler, "not installed"


def _devices() -> str:
    """Return the names of the GPUs from the driver, which every GPU has and which loads fast."""
    name = "nvcuda.dll" if WINDOWS else "libcuda.so.1"
    try:
        driver = ctypes.CDLL(name)
    except OSError:
        return f"none: no NVIDIA driver ({name} cannot be loaded)"
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status:
        return f"none: the NVIDIA driver answers with error {status}"
    names = []
    for number in range(count.value):
        text = ctypes.create_string_buffer(256)
        driver.cuDeviceGetName(text, len(text), number)
        names.append(text.value.decode())
    return ", ".join(names) or "none: the NVIDIA driver finds no device"
