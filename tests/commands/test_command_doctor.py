"""``numnorm doctor``: what it tells, and that it notices a norm that is wrong."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import kernels
import numpy as np
import pytest

import numnorm
from numnorm.__main__ import _run, main
from numnorm.backends.cpu.compiler import cache
from numnorm.commands.doctor import command, selftest

NORMS = ["layer", "rms", "ada", "batch", "group", "instance", "weight", "moving", "exponential"]
NORMS += ["robust", "moving_robust"]


def doctor(capsys, *arguments):
    """Run the command; return its status and its lines as a list of values for each key."""
    status = main(["doctor", *arguments])
    out, err = capsys.readouterr()
    assert err == ""
    told = {}
    for line in out.splitlines():
        key, value = line.split(":", 1)
        # All values begin in one column.
        assert line[:25].rstrip().endswith(":")
        assert line[24] == " " != line[25]
        told.setdefault(key, []).append(value.strip())
    return status, told


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=kernels.full)])
def test_doctor(capsys, dtype):
    status, told = doctor(capsys, "--dtype", dtype)
    assert status == 0
    assert told["numnorm"] == [numnorm.__version__]
    assert told["numpy"] == [np.__version__]
    for key in ("python", "numba", "llvmlite", "scipy", "ml_dtypes", "platform", "cpu", "simd"):
        assert told[key] != [""]
    for key in ("threads", "threading layer", "threading by workqueue", "blas", "cache", "gpu"):
        assert told[key] != [""]
    for norm in NORMS:
        (line,) = told[f"test {norm}_norm"]
        assert line.startswith("ok (largest error forward ")
    assert told["test threads"] == ["ok (as one thread, to the bit)"]
    assert told["result"] == ["all is well"]


def python(code, **changes):
    path = os.pathsep.join([str(Path(numnorm.__file__).parents[1]), *sys.path])
    env = {**os.environ, "PYTHONPATH": path, **changes}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)


def broken(name, wrong):
    """Return a function of numnorm whose first result is passed through `wrong`."""
    function = getattr(numnorm, name)

    def replaced(*args, **kwargs):
        result = function(*args, **kwargs)
        if isinstance(result, tuple):
            return type(result)(wrong(result[0]), *result[1:])
        return wrong(result)

    return replaced


def raising(value):
    raise RuntimeError("no such instruction\nin this processor")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("layer_norm", lambda y: y + 1e-3),
        ("layer_norm_forward", lambda y: y + 1e-3),
        ("layer_norm_backward", lambda dx: dx * 1.001),
        ("rms_norm_backward", lambda dx: dx - dx.mean(axis=1, keepdims=True)),
        ("ada_norm_backward", lambda dx: dx * np.nan),
        ("batch_norm_forward", lambda y: y * np.nan),
        ("group_norm_backward", np.zeros_like),
        ("weight_norm", raising),
    ],
)
def test_a_wrong_norm_is_noticed(capsys, monkeypatch, name, wrong):
    monkeypatch.setattr(numnorm, name, broken(name, wrong))
    norm = name.partition("_")[0]
    status, told = doctor(capsys)
    assert status == 1
    assert told["result"] == ["1 of 12 tests FAILED"]
    verdicts = {n: told[f"test {n}_norm"][0].partition(" ")[0] for n in NORMS}
    assert verdicts == {n: "FAILED" if n == norm else "ok" for n in NORMS}
    if wrong is raising:
        message = "FAILED (RuntimeError: no such instruction in this processor)"
        assert told["test weight_norm"] == [message]


def test_threads_that_interfere_are_noticed(monkeypatch):
    layer_norm = numnorm.layer_norm
    monkeypatch.setattr(
        numnorm, "layer_norm", lambda x, *rest, **kw: layer_norm(x, *rest, **kw) + (len(x) == 64)
    )
    *_, last = selftest.run("float32")
    assert last == ("threads", False, "not the bits of one thread")


def test_self_test_covers_every_norm():
    public = {name for name in dir(numnorm) if name.endswith("_norm")}
    public -= {"add_layer_norm", "add_rms_norm"}  # loops of two norms that are tested
    assert {case.name for case in selftest.cases()} == public


def test_differentiate():
    x, weights = np.array([0.5, 2.0]), np.array([1.0, 3.0])
    (gradient, other) = selftest.differentiate(
        lambda a, b, c: c * a**3 * b, [x, np.array([2.0])], [np.array(10.0)], weights
    )
    np.testing.assert_allclose(gradient, 10 * weights * 3 * x**2 * 2, rtol=1e-11)
    np.testing.assert_allclose(other, [10 * np.sum(weights * x**3)], rtol=1e-11)


def test_without_extras_and_without_loading_them():
    """It needs the core dependencies only, and loads nothing else that is heavy."""
    code = """
import sys
compilers = ["numba_cuda", "numba_cuda_mlir"]
for name in ["threadpoolctl", "rich", "matplotlib", "sklearn", "ml_dtypes", *compilers]:
    sys.modules[name] = None
from numnorm.__main__ import main
status = main(["doctor"])
assert not {"torch", "numba.cuda", "numba_cuda_mlir.cuda", "argcomplete"} & sys.modules.keys()
sys.exit(status)
"""
    run = python(code, NUMBA_DISABLE_JIT="1")  # what is imported does not depend on it
    assert (run.returncode, run.stderr) == (0, "")
    assert "threadpoolctl is not installed" in run.stdout
    assert "all is well" in run.stdout


def library(architecture, api="openblas"):
    return {
        "user_api": "blas",
        "internal_api": api,
        "version": "0.3",
        "architecture": architecture,
        "num_threads": 2,
        "filepath": "/lib/numpy.libs/libopenblas.so",
    }


AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}


@pytest.mark.parametrize(
    ("libraries", "features", "advised"),
    [
        ([library("Haswell")], AVX512, True),
        ([library("Zen"), library("SkylakeX")], AVX512, True),
        ([library("Haswell")], AVX512 - {"avx512bw"}, False),
        ([library("SkylakeX")], AVX512, False),
        ([library("Haswell", api="mkl")], AVX512, False),
        ([], AVX512, False),
    ],
)
def test_advice_on_blas(monkeypatch, libraries, features, advised):
    threadpoolctl = pytest.importorskip("threadpoolctl")
    openmp = {"user_api": "openmp"}
    monkeypatch.setattr(threadpoolctl, "threadpool_info", lambda: [*libraries, openmp])
    monkeypatch.setattr(command, "_features", lambda: features)
    told = list(command.blas())
    assert len(told) == len(libraries) + advised
    if advised:
        assert told[0][1].endswith(" kernels, 2 threads (numpy.libs)")
        assert "OPENBLAS_CORETYPE=SkylakeX" in told[-1][1]


def test_no_place_for_the_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "directory", lambda: None)
    monkeypatch.setattr(cache, "folders", lambda: (tmp_path, tmp_path / "none"))
    (_, read), (key, value) = command.cache()
    assert read == f"{tmp_path} (only read)"
    assert (key, value.startswith("none: no place can be written to")) == ("cache", True)


def test_no_threading_layer(monkeypatch):
    import numba

    def missing():
        raise ValueError("No threading layer could be loaded.\nHINT:\nask")

    monkeypatch.setattr(numba, "get_num_threads", missing)
    told = dict(command.threads())
    assert told["threads"] == "none: No threading layer could be loaded. HINT: ask"
    assert "threading layer" not in told


class Driver:
    """A CUDA driver of which the test knows the answers."""

    def __init__(self, status, names):
        self.status, self.names = status, names

    def cuInit(self, flags):
        return self.status

    def cuDeviceGetCount(self, count):
        count._obj.value = len(self.names)
        return 0

    def cuDeviceGetName(self, text, length, number):
        text.value = self.names[number]
        return 0


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        (None, "none: no NVIDIA driver ("),
        (Driver(100, []), "none: the NVIDIA driver answers with error 100"),
        (Driver(0, []), "none: the NVIDIA driver finds no device"),
        (Driver(0, [b"NVIDIA H200", b"NVIDIA L4"]), "NVIDIA H200, NVIDIA L4"),
    ],
)
def test_gpu(monkeypatch, driver, expected):
    def load(name):
        if driver is None:
            raise OSError("not there")
        return driver

    monkeypatch.setattr(ctypes, "CDLL", load)
    told = dict(command.gpu())
    assert told["gpu"].startswith(expected)
    assert told["numba-cuda"] and told["numba-cuda-mlir"]


def test_command_line_as_a_whole(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    told = capsys.readouterr().out
    assert all(f"\n  {name} " in told for name in ("demo", "apply", "compile", "doctor"))
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"numnorm {numnorm.__version__}\n"
    with pytest.raises(SystemExit, match="2"):
        main([])
    with pytest.raises(SystemExit, match="2"):
        main(["cure"])
    err = capsys.readouterr().err.splitlines()
    assert err[0] == "numnorm: error: the following arguments are required: command"
    assert err[1].startswith("numnorm: error: argument command: invalid choice: 'cure'")
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", "--now"])
    assert capsys.readouterr().err == ("numnorm doctor: error: unrecognized arguments: --now\n")


def test_help_is_quick():
    """Neither Numba nor what one of the commands needs is loaded for it."""
    code = """
import sys
from numnorm.__main__ import main
try:
    main(["--help"])
finally:
    assert not {"numba", "rich", "matplotlib", "sklearn"} & sys.modules.keys()
"""
    assert python(code).stderr == ""


def test_a_reader_that_leaves():
    """As `head` does: no traceback."""
    code = """
import os, sys
from numnorm.__main__ import _run
reader, writer = os.pipe()
os.dup2(writer, 1)
os.close(reader)
os.close(writer)
status = _run("numnorm test", lambda arguments: print("a line") or 0, [])
sys.exit(status)
"""
    run = python(code)
    assert (run.returncode, run.stderr) == (1, "")


@pytest.mark.parametrize("status", [0, 1])
def test_nobody_to_print_for(monkeypatch, status):
    """As after `>&-`: the status is that of the command."""
    monkeypatch.setattr(sys, "stdout", None)
    assert _run("numnorm test", lambda arguments: print("a line") or status, []) == status


@pytest.mark.parametrize("command", ["demo", "apply", "compile", "doctor"])
def test_help(capsys, command):
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: numnorm {command} ")
