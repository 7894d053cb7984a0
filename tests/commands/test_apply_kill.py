"""``numnorm apply`` to Zarr and HDF5, ended at random moments: a whole output or none."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from array_files import bits, load, save, snapshot

import numnorm

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs signals")

X = np.random.default_rng(0).normal(size=(1200, 4, 10)).astype(np.float32)
OLD = np.arange(12, dtype=np.float32).reshape(3, 4)
ZARR = ("apply", "batch_norm", "x.npy", "y.zarr", "--block-size", "0.002", "--resume")
STREAM = ("apply", "exponential_norm", *ZARR[2:], "--alpha", "0.01", "--axis", "0")
HDF5 = ("apply", "batch_norm", "x.npy", "y.h5::/y", "--block-size", "0.002", "--chunks", "10 4 5")
FOREVER = 120


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)


def started(*arguments):
    """Start the command, and return it when it has begun to write."""
    words = " ".join(map(str, arguments)).split()
    path = os.pathsep.join([str(Path(numnorm.__file__).parents[1]), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-m", "numnorm", *words],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "NUMBA_DISABLE_JIT": "1"},
    )
    deadline = time.monotonic() + FOREVER
    left = set(Path().glob("y.*.numnorm-*.tmp/*"))
    while time.monotonic() < deadline and process.poll() is None:
        files = set(Path().glob("y.*.numnorm-*.tmp")), set(Path().glob("y.*.numnorm-*.tmp/new"))
        if (files[1] or any(file.is_file() for file in files[0])) or left:
            return process
        time.sleep(0.001)
    assert process.poll() is None, process.communicate()
    raise AssertionError("not begun")


def duration(*arguments):
    """Run the command; return how long it writes."""
    process = started(*arguments)
    begin = time.monotonic()
    said = process.communicate(timeout=FOREVER)[1]
    assert process.returncode == 0, said
    assert said == "" or said.endswith("which a killed process left\n")
    return time.monotonic() - begin


def ended(moment, number, *arguments):
    """Start the command and send it a signal after a while; return its status."""
    process = started(*arguments)
    time.sleep(moment)
    process.send_signal(number)
    said = process.communicate(timeout=FOREVER)[1]
    assert said == "" or (number == signal.SIGINT and said == "numnorm apply: interrupted\n")
    return process.returncode


def moments(count, most):
    """Random moments, spread over the whole run and a little longer."""
    rng = random.Random(count)
    return [1.1 * most * (number + rng.random()) / count for number in range(count)]


@pytest.mark.parametrize("words", [ZARR, STREAM], ids=["batch_norm", "exponential_norm"])
@pytest.mark.parametrize("count", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_zarr_after_kills_at_random_moments(count, words):
    most = duration(*words)
    undisturbed = bits(load("y.zarr"))
    whole, seen = list(snapshot("y.zarr").values()), []
    rng = random.Random(0)
    for moment in moments(count, most):
        save("y.zarr", OLD)
        status = ended(moment, signal.SIGKILL, *words, "--force")
        new = load("y.zarr")
        assert bits(new) in (bits(OLD), undisturbed)
        if rng.random() < 0.5:  # and once more, in the rest
            ended(moment / 3, signal.SIGKILL, *words, "--force")
        seen.append((status, new.shape == X.shape))
        duration(*words, "--force")
        assert list(snapshot("y.zarr").values()) == whole
        assert sorted(os.listdir()) == ["x.npy", "y.zarr"]
    killed, finished = sum(s != 0 for s, _ in seen), sum(f for _, f in seen)
    print(f"{count} runs, {killed} killed, {finished} with a whole output by then")
    assert any(status == -signal.SIGKILL for status, _ in seen)


@pytest.mark.parametrize("count", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_hdf5_after_kills_at_random_moments(count):
    save("y.h5::/old", OLD)
    most = duration(*HDF5)
    undisturbed, seen = bits(load("y.h5::/y")), []
    for moment in moments(count, most):
        Path("y.h5").unlink()
        save("y.h5::/old", OLD)
        before = Path("y.h5").read_bytes()
        status = ended(moment, signal.SIGKILL, *HDF5)
        seen.append((status, Path("y.h5").read_bytes() != before))
        assert bits(load("y.h5::/old")) == bits(OLD)
        if seen[-1][1]:
            assert bits(load("y.h5::/y")) == undisturbed
        duration(*HDF5, "--force")
        assert bits(load("y.h5::/y")) == undisturbed
        assert bits(load("y.h5::/old")) == bits(OLD)
        assert sorted(os.listdir()) == ["x.npy", "y.h5"]
    killed, finished = sum(s != 0 for s, _ in seen), sum(f for _, f in seen)
    print(f"{count} runs, {killed} killed, {finished} with a whole output by then")
    assert any(status == -signal.SIGKILL for status, _ in seen)


ENDS = [("SIGTERM", 143), ("SIGHUP", 129), ("SIGINT", 130)]


@pytest.mark.parametrize(("number", "status"), ENDS)
@pytest.mark.parametrize("arguments", [ZARR[:-1], HDF5], ids=["zarr", "hdf5"])
def test_signals_leave_nothing(number, status, arguments):
    if number == "SIGHUP" and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        pytest.skip("SIGHUP is ignored, as below nohup")
    assert ended(0.05, getattr(signal, number), *arguments) == status
    assert os.listdir() == ["x.npy"]


@pytest.mark.parametrize(("number", "status"), ENDS[:1])
def test_signals_keep_what_can_be_resumed(number, status):
    assert ended(0.05, getattr(signal, number), *ZARR) == status
    assert len(list(Path().glob("y.zarr.numnorm-*.tmp"))) == 1
    duration(*ZARR)
    resumed = bits(load("y.zarr"))
    duration(*ZARR, "--force")  # undisturbed
    assert resumed == bits(load("y.zarr"))
    assert sorted(os.listdir()) == ["x.npy", "y.zarr"]


LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
from numnorm.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
WHOLE = ("--chunks", "1200", "4", "10")


@pytest.mark.parametrize("words", [(), WHOLE, (*WHOLE, "--compression", "gzip")])
@pytest.mark.parametrize("output", ["y.zarr", "y.h5::/y", "old.h5::/y"])
def test_a_full_disk_is_one_line_and_nothing_is_lost(output, words):
    """As a limit on the size of files; HDF5 crashes where it cannot write at its end."""
    if output == "y.zarr" and not words:
        words = ("--chunks", "1000", "4", "10")
    save("old.h5::/old", OLD)
    before = snapshot()
    path = os.pathsep.join([str(Path(numnorm.__file__).parents[1]), *sys.path])
    ended = subprocess.run(
        [sys.executable, "-c", LIMITED, "apply", "layer_norm", "x.npy", output, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "NUMBA_DISABLE_JIT": "1"},
    )
    said = f"numnorm apply: error: {output}: {os.strerror(errno.EFBIG)}\n"
    assert (ended.stderr, ended.returncode) == (said, 2)
    assert snapshot() == before
