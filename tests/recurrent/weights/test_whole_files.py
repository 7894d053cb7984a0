"""Files of `save` appear whole or not at all, whatever happens meanwhile."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import numnorm
from numnorm import rnn

CELL = rnn.RNNParameters(np.ones((1, 2)), np.eye(1))
OTHER = rnn.RNNParameters(np.zeros((1, 2)), np.eye(1), np.ones(1))


def saved(path):
    """Save parameters and return the bytes of the file."""
    rnn.save(path, CELL)
    return path.read_bytes()


def test_an_error_while_writing_leaves_the_file(tmp_path, monkeypatch):
    path = tmp_path / "p.npz"
    before = saved(path)

    def full(file, **arrays):
        file.write(b"PK")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        rnn.save(path, OTHER)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["p.npz"]


def test_a_folder_that_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        rnn.save(tmp_path / "nowhere" / "p.npz", CELL)
    assert str(caught.value).endswith(f"'{tmp_path / 'nowhere' / 'p.npz'}'")


def test_what_is_no_file_is_not_replaced(tmp_path):
    pipe = tmp_path / "pipe"
    if hasattr(os, "mkfifo"):
        os.mkfifo(pipe)
    else:
        pipe.mkdir()
    with pytest.raises(OSError, match="Not a regular file") as caught:
        rnn.save(pipe, CELL)
    assert str(pipe) in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_mode_and_links_are_kept(tmp_path):
    path, link = tmp_path / "p.npz", tmp_path / "link.npz"
    rnn.save(path, CELL)
    path.chmod(0o640)
    link.symlink_to(path)
    rnn.save(link, OTHER)
    assert link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640
    assert rnn.load(path).bias is not None


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as caught:
        rnn.save(tmp_path / "file" / "p.npz", CELL)
    assert str(caught.value).endswith(f"'{tmp_path / 'file' / 'p.npz'}'")


def test_a_file_without_write_permission_is_not_replaced(tmp_path, monkeypatch):
    path = tmp_path / "p.npz"
    before = saved(path)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write to every file
    with pytest.raises(PermissionError) as caught:
        rnn.save(path, OTHER)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == before


def test_another_call_leaves_a_complete_file_alone(tmp_path, monkeypatch):
    """It removes temporary files that nobody has locked, also just before they get their name."""
    pytest.importorskip("fcntl")
    replace = os.replace

    def after_another_call(source, target):
        monkeypatch.setattr(os, "replace", replace)
        rnn.save(tmp_path / "other.npz", OTHER)
        replace(source, target)

    monkeypatch.setattr(os, "replace", after_another_call)
    rnn.save(tmp_path / "p.npz", CELL)
    assert rnn.load(tmp_path / "p.npz").bias is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.npz", "p.npz"]


def test_files_with_similar_names_stay(tmp_path):
    similar = tmp_path / "my.numnorm-notes.tmp"
    similar.write_text("notes")
    rnn.save(tmp_path / "p.npz", CELL)
    assert similar.read_text() == "notes"


KILLED = """
import numpy as np
from numnorm import rnn
def endless(file, **arrays):
    file.write(b"PK" * 10)
    file.flush()
    print("writing", flush=True)
    import time
    time.sleep(60)
np.savez = endless
rnn.save("p.npz", rnn.RNNParameters(np.ones((1, 1)), np.ones((1, 1))))
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="of POSIX")
def test_a_kill_leaves_the_file_and_the_next_call_cleans(tmp_path, caplog):
    path = tmp_path / "p.npz"
    before = saved(path)
    env = os.environ | {"PYTHONPATH": os.path.dirname(os.path.dirname(numnorm.__file__))}
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], cwd=tmp_path, stdout=subprocess.PIPE, env=env
    ) as child:
        assert child.stdout.readline().strip() == b"writing"
        child.kill()
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 2
    rnn.save(path, OTHER)
    assert rnn.load(path).bias is not None
    assert [path.name for path in tmp_path.iterdir()] == ["p.npz"]
    assert "which a killed process left" in caplog.text
