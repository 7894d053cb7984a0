"""``numnorm apply`` where no open file is renamed or removed, as on Windows, which is simulated."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from array_files import FORMATS, apply, load, path_in, save
from other_systems import pretend_windows

import numnorm
from numnorm import files, operating_system
from numnorm.commands.apply.journal import Journal
from numnorm.commands.outputs import appearing_directory
from numnorm.commands.terminal import CommandError

pytestmark = pytest.mark.skipif(not operating_system.LINUX, reason="simulates Windows")
X = np.random.default_rng(0).normal(size=(40, 6))


@pytest.fixture(autouse=True)
def windows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pretend_windows(monkeypatch)


def test_what_is_open_is_neither_renamed_nor_removed():
    with open("file", "wb"):
        for refused in (lambda: os.replace("file", "other"), lambda: os.unlink("file")):
            with pytest.raises(PermissionError):
                refused()
    os.replace("file", "other")
    mapped = np.lib.format.open_memmap("mapped.npy", "w+", shape=(3,))
    with pytest.raises(PermissionError):
        os.unlink("mapped.npy")
    del mapped
    os.unlink("mapped.npy")


@pytest.mark.parametrize("format", FORMATS)
def test_an_output_appears_and_replaces_another_one(capsys, format):
    source, target = path_in(format, "x"), path_in(format, "y")
    save(source, X)
    before = {path for path in Path().iterdir() if "x" in path.name}
    for changes in ((), ("--force",), ("--force", "--block-size", "0.0003")):
        assert apply(capsys, "layer_norm", source, target, *changes) == (0, "")
        np.testing.assert_array_equal(load(target), numnorm.layer_norm(X))
    assert len(set(Path().iterdir()) - before) == 1


@pytest.mark.parametrize("format", ["npy", "zarr"])
def test_a_run_leaves_no_temporary_directory(capsys, format):
    source, target = path_in(format, "x"), path_in(format, "y")
    save(source, X)
    options = ("--resume", "--block-size", "0.0003", "--save-statistics", "s.npz")
    assert apply(capsys, "batch_norm", source, target, *options) == (0, "")
    assert not list(Path().glob("*.tmp"))


def test_the_file_of_the_input_takes_no_output(capsys):
    save("x.h5::/x", X)
    status, said = apply(capsys, "layer_norm", "x.h5::/x", "x.h5::/y")
    assert status == 2
    assert said.endswith("x.h5 is the file of the input: Windows replaces no open file\n")


def test_two_runs_do_not_write_one_output():
    with appearing_directory(Path("y"), False) as work:
        (work / "new").mkdir()
        another = appearing_directory(Path("y"), False)
        with pytest.raises(CommandError, match="another process is writing y"):
            another.__enter__()
    assert [path.name for path in Path().iterdir()] == ["y"]


def test_a_run_goes_on_after_a_kill(capsys, monkeypatch):
    save("x.zarr", X)
    command = ("layer_norm", "x.zarr", "y.zarr", "--resume", "--block-size", "0.0003")

    def stop(self, number, add=Journal.note_written):
        if number == 3:
            raise KeyboardInterrupt
        add(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "note_written", stop)
        assert apply(capsys, *command)[0] == 130
    assert len(list(Path().glob("y.zarr.numnorm-*.tmp"))) == 1
    assert apply(capsys, *command) == (0, "")
    np.testing.assert_array_equal(load("y.zarr"), numnorm.layer_norm(X))
    assert not list(Path().glob("*.tmp"))


def test_only_old_leftovers_are_removed(caplog):
    left = Path("p.npz.numnorm-0123456789ab.tmp")
    left.write_text("left by a killed process, or whole and about to be renamed")
    with files.replacing(Path("q.npz")) as file:
        file.write(b"content")
    assert left.exists()
    os.utime(left, (time.time() - 120,) * 2)
    with files.replacing(Path("q.npz")) as file:
        file.write(b"content")
    assert not left.exists()
