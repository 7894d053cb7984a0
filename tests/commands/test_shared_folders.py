"""``numnorm apply`` into folders that other users and programs write to at the same time."""

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import h5py
import numpy as np
import pytest
from array_files import apply, bits, draw, load, save, snapshot

import numnorm
from numnorm import files
from numnorm.commands import outputs
from numnorm.commands.apply.journal import Journal
from numnorm.commands.outputs import appearing, appearing_directory
from numnorm.commands.terminal import CommandError

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="users have no numbers")
root = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs files of another user"
)

X = draw((40, 6))
ANOTHER = 54321  # the number of a user who need not exist
OUTPUTS = ("y.npy", "y.zarr", "y.h5::/y")
NAMES = {output: output.partition("::")[0] for output in OUTPUTS}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)


class Stopped(BaseException):
    """The end of a process, for its exception handlers, too."""


def stop(capsys, monkeypatch, *arguments):
    """Run the command until it notes its third box."""

    def stopped(self, number, add=Journal.note_written):
        if number == 3:
            raise Stopped
        add(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "note_written", stopped)
        with pytest.raises(Stopped):
            apply(capsys, *arguments)


def meanwhile(monkeypatch, act):
    """Do something when the first box of the next run is written."""
    begun = []

    def add(self, number, add=Journal.note_written):
        add(self, number)
        if not begun:
            begun.append(number)
            act()

    monkeypatch.setattr(Journal, "note_written", add)


def temporary(output):
    (path,) = Path().glob(f"{output}.numnorm-*.tmp")
    return path


# What has the name of a temporary file or directory


def a_link(path, precious):
    path.symlink_to(precious, target_is_directory=True)


def a_link_to_a_file(path, precious):
    path.symlink_to(precious / "thesis")


def a_pipe(path, precious):
    os.mkfifo(path)


def a_directory(path, precious):
    """As another user can rename one of this user, which he could not empty himself."""
    shutil.copytree(precious, path)


def a_directory_with_a_new_output(path, precious):
    shutil.copytree(precious, path)
    (path / "new").mkdir()
    (path / "old").mkdir()


PLANTED = [a_link, a_link_to_a_file, a_pipe, a_directory, a_directory_with_a_new_output]


@pytest.mark.parametrize("plant", PLANTED)
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_what_no_run_has_made_stays(capsys, tmp_path_factory, output, plant, resume):
    if resume and "::" in output:
        pytest.skip("is not resumed")
    precious = tmp_path_factory.mktemp("precious")
    (precious / "thesis").write_text("years of work")
    (precious / "lock").write_text("{}")
    plant(Path(f"{NAMES[output]}.numnorm-0123456789ab.tmp"), precious)
    before = {path: path.lstat().st_mode for path in Path().rglob("*")}
    kept = snapshot(precious)
    assert apply(capsys, "layer_norm", "x.npy", output, *resume) == (0, "")
    assert bits(load(output)) == bits(numnorm.layer_norm(X))
    assert before.items() <= {path: path.lstat().st_mode for path in Path().rglob("*")}.items()
    assert snapshot(precious) == kept


@root
@pytest.mark.parametrize("output", ["y.npy", "y.zarr"])
def test_what_another_user_has_prepared_is_not_gone_on_from(capsys, monkeypatch, output):
    arguments = ("layer_norm", "x.npy", output, "--block-size", "0.0002", "--resume")
    stop(capsys, monkeypatch, *arguments)
    work = temporary(output)
    (work / "done").write_text("".join(f"{number}\n" for number in range(1000)))
    for path in (work, *work.rglob("*")):
        os.chown(path, ANOTHER, -1)
    prepared = snapshot(work)
    assert apply(capsys, *arguments) == (0, "")
    assert bits(load(output)) == bits(numnorm.layer_norm(X))
    assert snapshot(work) == prepared


@root
@pytest.mark.parametrize("place", ["directory", "lock"])
def test_both_the_directory_and_its_mark_must_be_of_this_user(capsys, monkeypatch, place):
    arguments = ("layer_norm", "x.npy", "y.zarr", "--block-size", "0.0002", "--resume")
    stop(capsys, monkeypatch, *arguments)
    work = temporary("y.zarr")
    os.chown(work if place == "directory" else work / "lock", ANOTHER, -1)
    before = snapshot(work)
    assert apply(capsys, *arguments) == (0, "")
    assert snapshot(work) == before


@root
@pytest.mark.parametrize("output", OUTPUTS)
def test_an_output_that_is_a_link_of_another_user_is_refused(capsys, output):
    """It could lead to a file of this user that the other one cannot write to."""
    place = NAMES[output]
    Path("elsewhere").mkdir()
    Path(place).symlink_to(f"elsewhere/{place}")
    os.lchown(place, ANOTHER, -1)
    said = f"numnorm apply: error: the output {place} is a symbolic link of another user\n"
    assert apply(capsys, "layer_norm", "x.npy", output) == (2, said)
    assert os.listdir("elsewhere") == []
    os.lchown(place, os.geteuid(), -1)
    assert apply(capsys, "layer_norm", "x.npy", output) == (0, "")
    assert os.listdir("elsewhere") == [place]


@root
def test_a_file_of_another_user_is_not_removed(capsys):
    left = Path("x.npy.numnorm-0123456789ab.tmp")
    left.write_text("of another")
    os.chown(left, ANOTHER, -1)
    assert apply(capsys, "layer_norm", "x.npy", "y.npy") == (0, "")
    assert left.read_text() == "of another"


def test_the_directory_of_another_output_is_not_gone_on_from(capsys, monkeypatch):
    """As if another user had renamed it."""
    arguments = ("layer_norm", "x.npy", "y.zarr", "--block-size", "0.0002", "--resume")
    stop(capsys, monkeypatch, *arguments)
    renamed = Path("z.zarr.numnorm-0123456789ab.tmp")
    os.rename(temporary("y.zarr"), renamed)
    before = snapshot(renamed)
    assert apply(capsys, "rms_norm", "x.npy", "z.zarr", "--resume") == (0, "")
    assert bits(load("z.zarr")) == bits(numnorm.rms_norm(X))
    assert snapshot(renamed) == before


def test_a_directory_that_was_moved_with_its_folder_is_gone_on_from(capsys, monkeypatch):
    Path("a").mkdir()
    output = ("--block-size", "0.0002", "--resume")
    stop(capsys, monkeypatch, "layer_norm", "x.npy", "a/y.zarr", *output)
    os.rename("a", "b")
    count = []
    monkeypatch.setattr(Journal, "note_written", lambda self, number: count.append(number))
    assert apply(capsys, "layer_norm", "x.npy", "b/y.zarr", *output) == (0, "")
    assert bits(load("b/y.zarr")) == bits(numnorm.layer_norm(X))
    assert count[0] == 3


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs an address of a directory")
@pytest.mark.parametrize("end", ["whole", "error"])
def test_a_link_in_the_place_of_the_directory_is_not_followed(tmp_path_factory, end):
    """As another user can place one while a run is at work."""
    precious = tmp_path_factory.mktemp("precious")
    (precious / "new").mkdir()
    (precious / "new/thesis").write_text("years of work")
    (precious / "notes").write_text("private")
    kept = snapshot(precious)
    with ExitStack() as stack:
        if end == "error":
            stack.enter_context(pytest.raises(Stopped))
        work = stack.enter_context(appearing_directory(Path("y"), resume=False))
        moved = temporary("y")
        os.rename(moved, "aside")
        moved.symlink_to(precious, target_is_directory=True)
        (work / "new").mkdir()
        (work / "new/content").write_text("whole")
        if end == "error":
            raise Stopped
    assert snapshot(precious) == kept
    assert Path("y/content").exists() == (end == "whole")
    assert os.listdir("aside") == []


@pytest.mark.parametrize("taken", ["link", "full"])
def test_a_name_that_is_taken_at_once_is_refused(monkeypatch, tmp_path_factory, taken):
    """As another user could, who watches the folder, before the new directory is opened."""
    precious = tmp_path_factory.mktemp("precious")
    (precious / "thesis").write_text("years of work")

    def mkdir(path, mode=0o777):
        if taken == "link":
            path.symlink_to(precious, target_is_directory=True)
        else:
            shutil.copytree(precious, path)

    monkeypatch.setattr(Path, "mkdir", mkdir)
    with (
        pytest.raises(CommandError, match="another user has taken"),
        appearing_directory(Path("y"), resume=False),
    ):
        pytest.fail("it was used")
    assert (temporary("y") / "thesis").read_text() == "years of work"


def test_names_cannot_be_known_before():
    names = {files.temporary_name(Path("y.zarr")) for _ in range(100)}
    assert len(names) == 100


def test_names_of_two_long_outputs_differ():
    first, second = (Path("x" * 60 + end) for end in ("1.npy", "2.npy"))
    files.temporary_name(first).touch()
    assert len(files.temporary_of(first)) == 1
    assert files.temporary_of(second) == []


@pytest.mark.parametrize("old", [0o600, 0o640])
@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_an_unfinished_output_has_no_more_readers_than_the_old_one(
    capsys, monkeypatch, output, old, resume
):
    if resume and "::" in output:
        pytest.skip("is not resumed")
    save(output, draw((3, 3)))
    place = Path(NAMES[output])
    place.chmod(old | 0o100 * place.is_dir())
    seen = []

    def look():
        path = temporary(place.name)
        others = path.stat().st_mode & 0o077
        seen.append(others if path.is_file() else others & old)
        assert not others & ~old

    meanwhile(monkeypatch, look)
    assert apply(capsys, "layer_norm", "x.npy", output, "--force", *resume) == (0, "")
    assert len(seen) == 1
    assert place.stat().st_mode & 0o077 == old & 0o077


# Several writers


@pytest.mark.parametrize("output", OUTPUTS)
def test_another_run_to_the_same_output_is_refused(capsys, monkeypatch, output):
    """Also to another dataset of the same file: each would replace the file by its own copy."""
    save("y.h5::/x", X)
    said = []

    def another():
        for second in {output, output.replace("::/y", "::/z")}:
            for resume in ((), *([("--resume",)] if "::" not in output else [])):
                said.append(apply(capsys, "rms_norm", "x.npy", second, *resume))

    meanwhile(monkeypatch, another)
    assert apply(capsys, "layer_norm", "x.npy", output) == (0, "")
    refusal = f"numnorm apply: error: another process is writing {NAMES[output]}\n"
    assert said == [(2, refusal)] * 2
    assert bits(load(output)) == bits(numnorm.layer_norm(X))
    assert bits(load("y.h5::/x")) == bits(X)


@pytest.mark.parametrize("first", [True, False])
def test_a_run_that_can_be_resumed_and_one_that_cannot_are_two_writers(capsys, monkeypatch, first):
    words = {True: ("--resume",), False: ()}
    said = []
    second = ("rms_norm", "x.npy", "y.npy", *words[not first])
    meanwhile(monkeypatch, lambda: said.append(apply(capsys, *second)))
    assert apply(capsys, "layer_norm", "x.npy", "y.npy", *words[first]) == (0, "")
    assert said == [(2, "numnorm apply: error: another process is writing y.npy\n")]


def hdf5_in_place():
    """As a program does that does not lock its files."""
    code = "import h5py; h5py.File('y.h5', 'a', locking=False)['more'] = [[1.0, 2.0]]"
    subprocess.run([sys.executable, "-c", code], check=True)


def hdf5_by_another_file():
    shutil.copy("y.h5", "z.h5")
    save("z.h5::/more", np.array([[1.0, 2.0]]))
    os.replace("z.h5", "y.h5")


@pytest.mark.parametrize("write", [hdf5_in_place, hdf5_by_another_file])
def test_what_another_program_puts_into_a_file_meanwhile_stays(capsys, monkeypatch, write):
    save("y.h5::/x", X)
    meanwhile(monkeypatch, write)
    said = "numnorm apply: error: y.h5: changed by another process meanwhile, and not replaced\n"
    assert apply(capsys, "layer_norm", "x.npy", "y.h5::/y") == (2, said)
    assert bits(load("y.h5::/more")) == bits(np.array([[1.0, 2.0]]))
    assert sorted(os.listdir()) == ["x.npy", "y.h5"]


@pytest.mark.parametrize("output", OUTPUTS)
def test_an_output_that_appears_meanwhile_is_not_replaced(capsys, monkeypatch, output):
    """As from another machine, or by another user, whose locks are not seen."""
    meanwhile(monkeypatch, lambda: save(output, draw((3, 3))))
    status, said = apply(capsys, "layer_norm", "x.npy", output)
    assert (status, said.count("\n")) == (2, 1)
    assert "changed by another process meanwhile, and not replaced" in said
    assert bits(load(output)) == bits(draw((3, 3)))
    assert sorted(os.listdir()) == sorted(["x.npy", NAMES[output]])


def test_a_file_of_statistics_that_appears_meanwhile_is_not_replaced(capsys, monkeypatch):
    meanwhile(monkeypatch, lambda: Path("s.npz").write_text("precious"))
    words = ("batch_norm", "x.npy", "y.npy", "--save-statistics", "s.npz")
    said = "numnorm apply: error: the file of statistics s.npz exists: --force replaces it\n"
    assert apply(capsys, *words) == (2, said)
    assert Path("s.npz").read_text() == "precious"
    assert sorted(os.listdir()) == ["s.npz", "x.npy"]


@pytest.mark.parametrize("output", ["y.npy", "y.zarr"])
def test_after_such_a_change_the_work_is_not_lost(capsys, monkeypatch, output):
    arguments = ("layer_norm", "x.npy", output, "--block-size", "0.0002", "--resume")
    with monkeypatch.context() as patch:
        meanwhile(patch, lambda: save(output, draw((3, 3))))
        assert apply(capsys, *arguments)[0] == 2
    monkeypatch.delattr(Journal, "note_written")  # nothing is left to write
    assert apply(capsys, *arguments, "--force") == (0, "")
    assert bits(load(output)) == bits(numnorm.layer_norm(X))


RUN = "import sys; from numnorm.__main__ import main; sys.exit(main(sys.argv[1:]))"


def test_of_many_processes_none_loses_its_result_without_a_word():
    save("y.h5::/x", X)
    path = os.pathsep.join([str(Path(numnorm.__file__).parents[1]), *sys.path])
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", RUN, "apply", "layer_norm", "y.h5::/x", f"y.h5::/y{number}"],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "NUMBA_DISABLE_JIT": "1"},
        )
        for number in range(4)
    ]
    said = [run.communicate()[1] for run in runs]
    with h5py.File("y.h5") as file:
        for number, run in enumerate(runs):
            assert (run.returncode, f"y{number}" in file) in ((0, True), (2, False)), said
            assert run.returncode == 0 or said[number].count("\n") == 1


def test_a_folder_that_somebody_has_locked_stops_nobody(capsys, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(files, "_PATIENCE", 0.02)
    number = os.open(".", os.O_RDONLY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        for output in OUTPUTS:
            assert apply(capsys, "layer_norm", "x.npy", output) == (0, "")
    finally:
        os.close(number)


def test_on_a_file_system_with_other_owners(capsys, monkeypatch):
    """Where new files belong to somebody else, what belongs to him is gone on from."""
    arguments = ("layer_norm", "x.npy", "y.zarr", "--block-size", "0.0002", "--resume")
    monkeypatch.setattr(os, "geteuid", lambda: ANOTHER)
    stop(capsys, monkeypatch, *arguments)
    (work,) = [temporary("y.zarr")]
    assert apply(capsys, *arguments) == (0, "")
    assert not work.exists()
    assert bits(load("y.zarr")) == bits(numnorm.layer_norm(X))


def test_without_an_address_of_a_directory_its_name_serves(capsys, monkeypatch):
    monkeypatch.setattr(outputs, "address", lambda number, path: path)
    assert apply(capsys, "layer_norm", "x.npy", "y.zarr", "--resume") == (0, "")
    assert bits(load("y.zarr")) == bits(numnorm.layer_norm(X))
    assert sorted(os.listdir()) == ["x.npy", "y.zarr"]


def test_what_a_process_left_that_had_just_begun_is_removed(capsys):
    Path("y.zarr.numnorm-0123456789ab.tmp").mkdir()
    assert apply(capsys, "layer_norm", "x.npy", "y.zarr") == (0, "")
    assert sorted(os.listdir()) == ["x.npy", "y.zarr"]


def test_a_temporary_directory_says_whose_it_is():
    with appearing_directory(Path("y.zarr"), resume=False) as work:
        (work / "new").mkdir()
        assert json.loads((work / "lock").read_text()) == {"output": "y.zarr"}
        assert temporary("y.zarr").stat().st_mode & 0o777 == 0o700


def test_two_writers_of_a_file():
    with appearing(Path("s.npz")):
        with (
            pytest.raises(CommandError, match=r"another process is writing s\.npz"),
            appearing(Path("s.npz")),
        ):
            pytest.fail("it was opened twice")
        with appearing(Path("t.npz")):
            pass
    assert sorted(os.listdir()) == ["s.npz", "t.npz", "x.npy"]
