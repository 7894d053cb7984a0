"""numnorm where Linux is missing: on macOS and Windows, which are simulated."""

import ast
import os
from pathlib import Path

import pytest
from every_call import in_new_process
from other_systems import BEFORE, MSVCRT, pretend_windows

import numnorm
from numnorm import operating_system

pytestmark = pytest.mark.skipif(not operating_system.LINUX, reason="simulates other systems")
PACKAGE = Path(numnorm.__file__).parent


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_no_other_module_asks_for_the_system(path):
    if path.name == "operating_system.py" or PACKAGE / "backends/cuda" in path.parents:
        return
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        assert ast.unparse(node) not in ("os.name", "sys.platform", "platform.system()", "fcntl")
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "hasattr":
            assert ast.unparse(node.args[0]) != "os" or "posix_fallocate" in ast.unparse(node)


CALLS = """
import logging
import numpy as np
import numnorm
from numnorm.backends.cpu.compiler import threads
from numnorm.backends.cpu.simd.processor import has_large_l1d
from numnorm.__main__ import main

assert threads.usable_processors() == os.cpu_count() and threads.quota_limit() == sys.maxsize
assert not has_large_l1d()
x = np.arange(24.0).reshape(4, 6)
y, mean, rstd = numnorm.layer_norm_forward(x)
numnorm.layer_norm_backward(y, x, mean, rstd)
cell = numnorm.rnn.lstm_init(6, 2, rng=np.random.default_rng(0), dtype="float64")
numnorm.rnn.save("cell.npz", cell)
assert np.array_equal(numnorm.rnn.load("cell.npz").weight_x, cell.weight_x)
np.save("x.npy", x)
with h5py.File("x.h5", "w") as file:
    file["x"] = x
for source, target in (("x.npy", "y.npy"), ("x.npy", "y.zarr"), ("x.h5::/x", "y.h5::/y")):
    assert main(["apply", "layer_norm", source, target]) == 0, target
assert main(["apply", "batch_norm", "x.npy", "z.npy", "--resume"]) == 0
assert np.array_equal(np.load("y.npy"), y)
assert sorted(os.listdir()) == ["cell.npz", "x.h5", "x.npy", "y.h5", "y.npy", "y.zarr", "z.npy"]
assert main(["compile", "--list"]) == 0
assert main(["doctor"]) == 0
"""


@pytest.mark.parametrize("system", BEFORE)
def test_everything_works_without_what_only_linux_has(tmp_path, system):
    pytest.importorskip("h5py")
    pytest.importorskip("zarr")
    before = f"import os; os.chdir({str(tmp_path)!r})\n{BEFORE[system]}"
    said = in_new_process("-c", before + CALLS, NUMBA_DISABLE_JIT="1")
    assert "all is well" in said


def test_a_lock_lasts_while_the_file_is_open(tmp_path, monkeypatch):
    path = tmp_path / "file"
    for pretend in (lambda monkeypatch: None, pretend_windows):
        pretend(monkeypatch)
        with open(path, "w+b") as file, open(path, "r+b") as other:
            file.write(b"content")
            file.flush()
            other.read()
            operating_system.lock(file.fileno())
            with pytest.raises(BlockingIOError):
                operating_system.lock(other.fileno())
            assert (file.tell(), other.tell()) == (7, 7)
        with open(path, "r+b") as file:
            operating_system.lock(file.fileno())


def test_windows_locks_by_its_own_library(tmp_path, monkeypatch):
    calls = []
    pretend_windows(monkeypatch)
    monkeypatch.setattr(MSVCRT, "locking", lambda *arguments: calls.append(arguments))
    with open(tmp_path / "file", "wb") as file:
        operating_system.lock(file.fileno())
        assert calls == [(file.fileno(), MSVCRT.LK_NBLCK, 1)]


def test_a_program_that_looks_into_a_new_file_delays_its_renaming(tmp_path, monkeypatch):
    pretend_windows(monkeypatch)
    replace, refused = os.replace, []

    def busy(source, target):
        if len(refused) < 3:
            refused.append(source)
            raise PermissionError(13, "busy")
        replace(source, target)

    monkeypatch.setattr(os, "replace", busy)
    monkeypatch.setattr(operating_system, "_PAUSES", (0.0,) * 4)
    (tmp_path / "new").write_text("new")
    (tmp_path / "old").write_text("old")
    operating_system.rename(tmp_path / "new", tmp_path / "old")
    assert (tmp_path / "old").read_text() == "new"
    refused.clear()
    (tmp_path / "new").write_text("newer")
    monkeypatch.setattr(operating_system, "_PAUSES", (0.0,) * 2)
    with pytest.raises(PermissionError):
        operating_system.rename(tmp_path / "new", tmp_path / "old")


@pytest.mark.parametrize("pretend", [lambda monkeypatch: None, pretend_windows])
def test_whether_files_can_be_made_in_a_folder(tmp_path, monkeypatch, pretend):
    pretend(monkeypatch)
    operating_system.check_new_files(tmp_path, 128)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError):
        operating_system.check_new_files(tmp_path / "missing", 128)


def test_a_path_that_is_too_long_for_windows_is_no_place_for_kernels(tmp_path, monkeypatch):
    pretend_windows(monkeypatch)
    # Linux refuses names of more than 255 characters, as Windows refuses paths of more than 259.
    with pytest.raises(OSError):
        operating_system.check_new_files(tmp_path, 256)


def test_a_pool_of_windows_has_few_processes(monkeypatch):
    assert operating_system.most_processes(500) == 500
    pretend_windows(monkeypatch)
    assert [operating_system.most_processes(n) for n in (2, 61, 500)] == [2, 61, 61]


def test_without_forks_nothing_is_registered(monkeypatch):
    monkeypatch.delattr(os, "register_at_fork")
    operating_system.at_fork(before=lambda: None)
