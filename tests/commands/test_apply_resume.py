"""``numnorm apply --resume``: what was done stays done, and the bytes are those of one run."""

import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import zarr
from array_files import apply, bits, draw, load, save, snapshot

import numnorm
from numnorm.commands import outputs
from numnorm.commands.apply.formats.npy import ArrayFile
from numnorm.commands.apply.formats.zarr import ZarrArray
from numnorm.commands.outputs import appearing_directory
from numnorm.commands.terminal import CommandError

X = draw((40, 6, 5))
SMALL = ("--block-size", "0.00025")  # two samples


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", X)


class Stopped(BaseException):
    """The end of a process, for its exception handlers, too."""


@pytest.fixture
def writes(monkeypatch):
    """Counts the boxes that are written, and stops at a given number."""

    class Writes:
        count, last = 0, None

    for kind in (ZarrArray, ArrayFile):

        def counted(self, box, values, write=kind.write):
            if Writes.count == Writes.last:
                raise Stopped
            Writes.count += 1
            write(self, box, values)

        monkeypatch.setattr(kind, "write", counted)
    return Writes


def stop(capsys, writes, number, *arguments):
    """Run the command until it has written so many boxes."""
    writes.count, writes.last = 0, number
    with pytest.raises(Stopped):
        apply(capsys, *arguments)
    writes.count, writes.last = 0, None


def temporary(output="y.zarr"):
    return list(Path().glob(f"{output}.numnorm-*.tmp"))


RUNS = {
    "layer_norm": {},
    "batch_norm": {},
    "instance_norm": {},
    "moving_norm": {"axis": 0, "window": 7},
    "exponential_norm": {"axis": 0, "alpha": 0.1, "initial": 5},
}


@pytest.mark.parametrize(("method", "keywords"), RUNS.items(), ids=RUNS)
@pytest.mark.parametrize("number", [0, 1, 7, 19])
@pytest.mark.parametrize("suffix", ["zarr", "npy"])
def test_a_run_goes_on_where_it_stopped(capsys, writes, method, keywords, number, suffix):
    words = [word for name, value in keywords.items() for word in (f"--{name}", value)]
    output, undisturbed = f"y.{suffix}", f"z.{suffix}"
    assert apply(capsys, method, "x.npy", undisturbed, *SMALL, *words) == (0, "")
    boxes = writes.count
    assert boxes == 20
    arguments = (method, "x.npy", output, *SMALL, *words, "--resume")
    stop(capsys, writes, number, *arguments)
    assert not Path(output).exists()
    assert len(temporary(output)) == 1
    assert apply(capsys, *arguments) == (0, "")
    assert writes.count == boxes - number
    assert bits(load(output)) == bits(getattr(numnorm, method)(X, **keywords))
    if suffix == "zarr":
        y, z = (list(snapshot(name).values()) for name in (output, undisturbed))
    else:
        y, z = (Path(name).read_bytes() for name in (output, undisturbed))
    assert y == z
    assert temporary(output) == []


def test_statistics_are_not_taken_again(capsys, writes, monkeypatch):
    arguments = ("batch_norm", "x.npy", "y.zarr", *SMALL, "--resume")
    stop(capsys, writes, 3, *arguments, "--save-statistics", "s.npz")
    assert not Path("s.npz").exists()
    from numnorm.commands.apply import run

    monkeypatch.delattr(run, "stream_statistics")
    assert apply(capsys, *arguments, "--save-statistics", "s.npz") == (0, "")
    assert bits(load("y.zarr")) == bits(numnorm.batch_norm(X))
    with np.load("s.npz") as saved:
        assert bits(saved["mean"]) == bits(numnorm.batch_moments(X).mean)


def test_the_bar_begins_where_the_work_begins(capsys, writes, monkeypatch):
    from contextlib import contextmanager

    from numnorm.commands.apply import run

    seen = []

    @contextmanager
    def bar(description, total, done=0):
        seen.append([total, done])
        yield lambda amount: seen.append(amount)

    arguments = ("batch_norm", "x.npy", "y.zarr", *SMALL, "--resume")
    stop(capsys, writes, 3, *arguments)
    monkeypatch.setattr(run, "progress_bar", bar)
    assert apply(capsys, *arguments) == (0, "")
    assert seen == [[2 * X.size, X.size + 3 * 60], *[60] * 17]


def test_a_torn_line_and_torn_chunks_are_written_again(capsys, writes):
    arguments = ("layer_norm", "x.npy", "y.zarr", *SMALL, "--chunks", 2, 6, 5, "--resume")
    assert apply(capsys, *arguments[:2], "z.zarr", *arguments[3:]) == (0, "")
    stop(capsys, writes, 12, *arguments)
    (work,) = temporary()
    # As if the process had died while it wrote box 11, and zarr a chunk.
    done = work / "done"
    assert done.read_text().endswith("\n10\n11\n")
    done.write_text(done.read_text().removesuffix("1\n"))
    (work / "new/c/11/0/0").write_bytes(b"torn")
    (work / "new/c/11/0/0.0123.partial").write_bytes(b"torn")
    assert apply(capsys, *arguments) == (0, "")
    assert writes.count == 9
    y, z = (list(snapshot(name).values()) for name in ("y.zarr", "z.zarr"))
    assert y == z


def test_without_resume_everything_begins_anew(capsys, caplog, writes):
    arguments = ("layer_norm", "x.npy", "y.zarr", *SMALL)
    stop(capsys, writes, 5, *arguments, "--resume")
    (work,) = temporary()
    assert apply(capsys, *arguments) == (0, "")
    assert caplog.messages == [f"removed {work.resolve()}, which a killed process left"]
    assert writes.count == 20
    assert sorted(os.listdir()) == ["x.npy", "y.zarr"]


def test_without_resume_an_error_leaves_nothing(capsys, writes):
    save("y.zarr", draw((3, 3)))
    before = snapshot()
    stop(capsys, writes, 5, "layer_norm", "x.npy", "y.zarr", *SMALL, "--force")
    assert snapshot() == before


def other_input():
    np.save("x.npy", X + 1)


def other_dtype():
    np.save("x.npy", X.astype(np.float64))


CHANGES = {
    "eps": (("--eps", "0.1"), None, "--eps"),
    "block size": (("--block-size", "0.002"), None, "--block-size"),
    "compression": (("--compression", "none"), None, "--compression"),
    "gamma": (("--gamma", "gamma.npy"), None, "--gamma"),
    "several": (("--eps", "0.1", "--axis", "1"), None, "--axis and --eps"),
    "input": ((), other_input, "INPUT"),
    "dtype": ((), other_dtype, "INPUT"),
}


@pytest.mark.parametrize(("words", "change", "name"), CHANGES.values(), ids=CHANGES)
def test_other_arguments_and_inputs_are_refused_and_nothing_is_lost(
    capsys, writes, words, change, name
):
    np.save("gamma.npy", draw(5))
    arguments = ("layer_norm", "x.npy", "y.zarr", *SMALL, "--resume")
    stop(capsys, writes, 5, *arguments)
    original, times = Path("x.npy").read_bytes(), os.stat("x.npy")
    if change:
        change()
    before = snapshot()
    assert apply(capsys, *arguments, *words) == (
        2,
        f"numnorm apply: error: y.zarr was begun with another {name}: give the same, "
        "or start anew without --resume\n",
    )
    assert snapshot() == before
    Path("x.npy").write_bytes(original)
    os.utime("x.npy", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert apply(capsys, *arguments) == (0, "")
    assert writes.count == 15


def test_another_method_is_refused(capsys, writes):
    stop(capsys, writes, 5, "layer_norm", "x.npy", "y.zarr", *SMALL, "--resume")
    status, said = apply(capsys, "rms_norm", "x.npy", "y.zarr", *SMALL, "--resume")
    assert (status, "another METHOD" in said) == (2, True)


@pytest.mark.parametrize("made", ["zarr", "hdf5"])
def test_other_data_in_other_formats_are_noticed(capsys, writes, made):
    path = {"zarr": "x.zarr", "hdf5": "x.h5::/x"}[made]
    save(path, X)
    arguments = ("layer_norm", path, "y.zarr", *SMALL, "--chunks", 2, 6, 5, "--resume")
    stop(capsys, writes, 5, *arguments)
    Path("x.h5").unlink(missing_ok=True)
    save(path, np.concatenate([X, X]))
    status, said = apply(capsys, *arguments)
    assert (status, "another INPUT" in said) == (2, True)


def test_a_request_that_another_version_wrote_is_refused(capsys, writes):
    arguments = ("layer_norm", "x.npy", "y.zarr", *SMALL, "--resume")
    stop(capsys, writes, 5, *arguments)
    request = temporary()[0] / "request.json"
    content = json.loads(request.read_text())
    request.write_text(json.dumps({**content, "version of numnorm": "0"}))
    status, said = apply(capsys, *arguments)
    assert (status, "another version of numnorm" in said) == (2, True)


def test_hdf5_cannot_be_resumed(capsys):
    assert apply(capsys, "layer_norm", "x.npy", "y.h5::/y", "--resume") == (
        2,
        "numnorm apply: error: --resume is not for y.h5::/y\n",
    )
    assert os.listdir() == ["x.npy"]


def test_a_file_of_npy_keeps_its_order_and_its_mode(capsys, writes):
    np.save("x.npy", np.asfortranarray(X))
    np.save("y.npy", draw((3, 3)))
    Path("y.npy").chmod(0o640)
    arguments = ("layer_norm", "x.npy", "y.npy", *SMALL, "--force", "--resume")
    stop(capsys, writes, 5, *arguments)
    assert bits(load("y.npy")) == bits(draw((3, 3)))
    assert apply(capsys, *arguments) == (0, "")
    assert bits(load("y.npy")) == bits(numnorm.layer_norm(X))
    assert load("y.npy").flags.f_contiguous
    assert Path("y.npy").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("output", ["y.zarr", "y.npy"])
def test_a_new_output_is_as_readable_as_the_umask_lets_it_be(capsys, output):
    umask = os.umask(0o027)
    try:
        assert apply(capsys, "layer_norm", "x.npy", output, "--resume") == (0, "")
    finally:
        os.umask(umask)
    assert Path(output).stat().st_mode & 0o777 == (0o750 if output == "y.zarr" else 0o640)


def test_without_resume_a_file_of_npy_begins_anew(capsys, caplog, writes):
    arguments = ("layer_norm", "x.npy", "y.npy", *SMALL)
    stop(capsys, writes, 5, *arguments, "--resume")
    (work,) = temporary("y.npy")
    assert apply(capsys, *arguments) == (0, "")
    assert caplog.messages == [f"removed {work.resolve()}, which a killed process left"]
    assert writes.count == 20
    assert sorted(os.listdir()) == ["x.npy", "y.npy"]


def killed_after_the_statistics(capsys, monkeypatch, *arguments):
    """End the command as a kill would between the file of statistics and the output."""

    def stopped(output):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(outputs, "_settle", stopped)
        with pytest.raises(Stopped):
            apply(capsys, *arguments)
    assert Path("s.npz").exists()


@pytest.mark.parametrize("output", ["y.zarr", "y.npy"])
def test_a_run_that_was_killed_after_its_statistics_goes_on(capsys, monkeypatch, output):
    arguments = ("batch_norm", "x.npy", output, "--resume", "--save-statistics", "s.npz")
    killed_after_the_statistics(capsys, monkeypatch, *arguments)
    saved = Path("s.npz").read_bytes()
    assert apply(capsys, *arguments) == (0, "")
    assert bits(load(output)) == bits(numnorm.batch_norm(X))
    assert Path("s.npz").read_bytes() == saved
    assert sorted(os.listdir()) == sorted(["s.npz", "x.npy", output])


OTHER = {
    "other statistics": lambda: np.savez("s.npz", mean=np.ones(6), var=np.ones(6)),
    "other channels": lambda: np.savez("s.npz", mean=np.ones(4), var=np.ones(4)),
    "no statistics": lambda: Path("s.npz").write_text("precious"),
}


@pytest.mark.parametrize("change", OTHER.values(), ids=OTHER)
def test_another_file_of_statistics_is_not_replaced_by_a_run_that_goes_on(
    capsys, monkeypatch, change
):
    arguments = ("batch_norm", "x.npy", "y.zarr", "--resume", "--save-statistics", "s.npz")
    killed_after_the_statistics(capsys, monkeypatch, *arguments)
    change()
    before = snapshot()
    said = "numnorm apply: error: the file of statistics s.npz exists: --force replaces it\n"
    assert apply(capsys, *arguments) == (2, said)
    assert snapshot() == before
    assert apply(capsys, *arguments, "--force") == (0, "")
    with np.load("s.npz") as saved:
        assert bits(saved["mean"]) == bits(numnorm.batch_moments(X).mean)


def test_a_file_of_statistics_is_not_replaced_by_a_run_that_begins(capsys):
    Path("s.npz").write_text("precious")
    arguments = ("batch_norm", "x.npy", "y.zarr", "--resume", "--save-statistics", "s.npz")
    said = "numnorm apply: error: the file of statistics s.npz exists: --force replaces it\n"
    assert apply(capsys, *arguments) == (2, said)
    assert sorted(os.listdir()) == ["s.npz", "x.npy"]


def test_two_runs_at_once_are_refused(capsys):
    with appearing_directory(Path("y.zarr"), resume=False) as work:
        (work / "new").mkdir()
        for words in ((), ("--resume",)):
            assert apply(capsys, "layer_norm", "x.npy", "y.zarr", *words) == (
                2,
                "numnorm apply: error: another process is writing y.zarr\n",
            )
        assert apply(capsys, "layer_norm", "x.npy", "z.zarr") == (0, "")
        assert apply(capsys, "layer_norm", "x.npy", "z.npy") == (0, "")
    assert sorted(os.listdir()) == ["x.npy", "y.zarr", "z.npy", "z.zarr"]


@pytest.mark.parametrize("repetition", range(10))  # a race shows in one of about ten
def test_many_at_once_leave_one_whole_output(repetition):
    outcomes = []

    def make(number):
        try:
            with appearing_directory(Path("y"), resume=False) as work:
                (work / "new").mkdir()
                (work / "new/content").write_text(str(number))
            outcomes.append(number)
        except CommandError:
            pass

    threads = [threading.Thread(target=make, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert int(Path("y/content").read_text()) in outcomes
    assert sorted(os.listdir()) == ["x.npy", "y"]


def test_a_missing_file_within_the_block_is_the_callers_error():
    with (
        pytest.raises(FileNotFoundError, match="missing"),
        appearing_directory(Path("y"), resume=False),
    ):
        os.remove("missing")
    assert os.listdir() == ["x.npy"]


@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_an_old_output_that_was_moved_aside_comes_back(capsys, writes, resume):
    """As if the process had died between the two renames at the end."""
    save("y.zarr", draw((3, 3)))
    old = snapshot("y.zarr")
    arguments = ("layer_norm", "x.npy", "y.zarr", *SMALL, "--force", "--resume")
    stop(capsys, writes, 5, *arguments)
    os.rename("y.zarr", temporary()[0] / "old")
    stop(capsys, writes, 0, *arguments[:-1], *resume)
    assert snapshot("y.zarr") == old
    assert apply(capsys, *arguments) == (0, "")
    assert bits(load("y.zarr")) == bits(numnorm.layer_norm(X))
    assert temporary() == []


@pytest.mark.parametrize("resume", [(), ("--resume",)])
def test_an_old_output_that_was_moved_aside_still_needs_force(capsys, writes, resume):
    save("y.zarr", draw((3, 3)))
    old = snapshot("y.zarr")
    arguments = ("layer_norm", "x.npy", "y.zarr", *SMALL)
    stop(capsys, writes, 5, *arguments, "--force", "--resume")
    os.rename("y.zarr", temporary()[0] / "old")
    said = "numnorm apply: error: the output y.zarr exists: --force replaces it\n"
    assert apply(capsys, *arguments, *resume) == (2, said)
    assert snapshot("y.zarr") == old


def test_what_an_earlier_run_wrote_cannot_be_read(capsys, writes):
    arguments = ("layer_norm", "x.npy", "y.zarr", *SMALL)
    stop(capsys, writes, 5, *arguments, "--resume")
    (temporary()[0] / "request.json").write_text("{bad")
    said = "what an earlier run wrote of y.zarr cannot be read: start anew without --resume\n"
    assert apply(capsys, *arguments, "--resume") == (2, f"numnorm apply: error: {said}")
    assert apply(capsys, *arguments) == (0, "")
    assert bits(load("y.zarr")) == bits(numnorm.layer_norm(X))


def test_resuming_when_nothing_is_left_but_the_rename(capsys, writes, monkeypatch):
    arguments = ("layer_norm", "x.npy", "y.zarr", *SMALL, "--resume")

    def stopped(output):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(outputs, "_settle", stopped)
        with pytest.raises(Stopped):
            apply(capsys, *arguments)
    writes.count = 0
    assert apply(capsys, *arguments) == (0, "")
    assert writes.count == 0
    assert bits(load("y.zarr")) == bits(numnorm.layer_norm(X))


@pytest.mark.parametrize("resume", [(), ("--resume",)])
@pytest.mark.parametrize("old", [False, True])
def test_what_is_left_of_a_run_that_ended_is_not_gone_on_from(capsys, monkeypatch, old, resume):
    """As if the process had died between its last rename and the end of its cleaning."""
    if old:
        save("y.zarr", draw((3, 3)))
    arguments = ("layer_norm", "x.npy", "y.zarr", *SMALL, "--force")
    with monkeypatch.context() as patch:
        patch.setattr(outputs.Temporary, "remove", lambda work: None)
        assert apply(capsys, *arguments, "--resume") == (0, "")
    assert len(temporary()) == 1
    np.save("x.npy", X + 1)
    assert apply(capsys, *arguments, *resume) == (0, "")
    assert bits(load("y.zarr")) == bits(numnorm.layer_norm(X + 1))
    assert temporary() == []


def test_a_run_that_died_while_it_cleaned_is_not_gone_on_from(capsys, writes, monkeypatch):
    arguments = ("layer_norm", "x.npy", "y.zarr", *SMALL)
    stop(capsys, writes, 12, *arguments, "--resume")
    rmtree = shutil.rmtree

    def stopped(path, *words, **options):
        Path(path, "c/0/0/0").unlink(missing_ok=True)
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", stopped)
        with pytest.raises(Stopped):
            apply(capsys, *arguments)
    assert shutil.rmtree is rmtree
    assert apply(capsys, *arguments, "--resume") == (0, "")
    assert bits(load("y.zarr")) == bits(numnorm.layer_norm(X))


def test_the_journal_is_not_in_the_output(capsys):
    assert apply(capsys, "batch_norm", "x.npy", "y.zarr", *SMALL, "--resume") == (0, "")
    assert set(os.listdir("y.zarr")) == {"zarr.json", "c"}
    assert zarr.open_array("y.zarr", mode="r").nchunks_initialized == 20
