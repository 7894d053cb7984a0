"""``numnorm compile``: it fills the cache, does so once, and removes only what nobody can use."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from every_call import COMPILED, in_new_process

from numnorm.__main__ import main
from numnorm.backends.cpu.compiler import cache
from numnorm.backends.kernel_files import folders as kernel_folders
from numnorm.backends.kernel_files import origin
from numnorm.backends.sources import CPU
from numnorm.commands.compile import calls, folders

NAMES = [*calls.PARAMETERS, *calls.MOVING, *calls.ORDER, *calls.CELLS]
COUNT = """
import numba.core.event
import numpy as np

import numnorm

compiled = numba.core.event.RecordingListener()
numba.core.event.register("numba:compile", compiled)
x = np.ones((2, 3), np.float32)
y, mean, rstd = numnorm.ada_norm_forward(x)
numnorm.ada_norm_backward(x, x, mean, rstd)
print(len(compiled.buffer))
"""


@pytest.mark.skipif(not COMPILED, reason="nothing is compiled")
def test_what_is_compiled_is_found(tmp_path):
    command = "-m", "numnorm", "compile", "ada_norm", "--dtype", "float32", "--jobs", "2"
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}
    first, second = (in_new_process(*command, **environment) for _ in range(2))
    files = list(tmp_path.rglob("*.bin"))
    assert first == f"Compiled {len(files)} kernels into {tmp_path / 'numnorm'}.\n"
    assert second == "Nothing to compile: all of these kernels are in the cache.\n"
    assert in_new_process("-c", COUNT, **environment) == "0\n"
    assert set(tmp_path.rglob("*.bin")) == set(files)
    listed = in_new_process("-m", "numnorm", "compile", "--list", **environment)
    assert f"{len(files)} kernels" in listed
    assert "in use" in listed


MOVING = """
import numba.core.event
import numpy as np

import numnorm

compiled = numba.core.event.RecordingListener()
numba.core.event.register("numba:compile", compiled)
for shape, axis in (((60, 9), 0), ((60, 2), 0), ((2, 60), 1), ((60,), 0), ((2, 60, 4), 1)):
    x = np.ones(shape, np.float32)
    y, mean, rstd = numnorm.moving_norm_forward(x, 5, axis=axis, center=True)
    numnorm.moving_norm(x, 5, axis=axis)
    numnorm.moving_norm_step(x, 5, axis=axis)
    numnorm.moving_norm_backward(x, x, mean, rstd, 5, axis=axis, center=True)
    y, mean, rstd = numnorm.exponential_norm_forward(x, 0.1, axis=axis)
    numnorm.exponential_norm_step(x, 0.1, axis=axis)
    numnorm.exponential_norm_backward(x, x, mean, rstd, 0.1, axis=axis)
print(len(compiled.buffer))
"""


@pytest.mark.skipif(not COMPILED, reason="nothing is compiled")
def test_moving_norms_of_any_shape_are_compiled(tmp_path):
    names = "moving_norm", "exponential_norm"
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}
    command = "-m", "numnorm", "compile", *names, "--dtype", "float32", "--jobs", "2"
    in_new_process(*command, **environment)
    assert in_new_process("-c", MOVING, **environment) == "0\n"


ORDER = """
import numba.core.event
import numpy as np

import numnorm

compiled = numba.core.event.RecordingListener()
numba.core.event.register("numba:compile", compiled)
x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
fixed = x.copy()
fixed.flags.writeable = False
for axis in (0, 1, -1, (0, 2)):
    for options in ({}, {"where": x > 3}, {"nan_policy": "omit"}, {"scale": (0.1, 0.7)}):
        y, *saved = numnorm.robust_norm_forward(fixed, axis=axis, **options)
        numnorm.robust_norm_backward(x, x, *saved, axis=axis, **options)
numnorm.robust_norm(x, where=np.broadcast_to(x[:1] > 3, x.shape), scale=None)
print(len(compiled.buffer))
"""


@pytest.mark.skipif(not COMPILED, reason="nothing is compiled")
def test_robust_norm_of_any_axes_is_compiled(tmp_path):
    environment = {"NUMBA_CACHE_DIR": str(tmp_path)}
    in_new_process("-m", "numnorm", "compile", "robust_norm", "--dtype", "float32", **environment)
    assert in_new_process("-c", ORDER, **environment) == "0\n"


@pytest.mark.skipif(COMPILED, reason="takes minutes")
@pytest.mark.parametrize("dtype", calls.DTYPES)
def test_every_job_runs(dtype):
    for job in calls.jobs(NAMES, [dtype]):
        job.run()


def test_jobs_have_no_call_in_common():
    jobs = calls.jobs(NAMES * 2, ["float32", "float64"] * 2)
    assert len(set(jobs)) == len(jobs)
    assert {dtype for job in jobs for dtype in job.arguments if dtype in calls.DTYPES} == {
        "float32",
        "float64",
    }


def test_of_the_jobs_only_those_that_are_missing(monkeypatch):
    def lacks_a_kernel():
        assert cache._only_load
        raise cache.NotCached

    jobs = [calls.Job(lambda: None, ()), calls.Job(lacks_a_kernel, ())]
    assert calls.missing(jobs) == jobs[1:]
    assert not cache._only_load
    monkeypatch.setattr(cache, "directory", lambda: None)
    monkeypatch.setattr(calls, "compile_ahead", pytest.fail)
    calls.prepare(jobs[1:] * 2)  # as nothing could be kept


WAITING = """
import time
from numnorm.commands.compile import calls

if __name__ == "__main__":
    calls.compile_ahead([calls.Job(time.sleep, (600,))] * 2, 2)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_workers_end_with_the_process_that_started_them(tmp_path):
    """Else who reads its output to the end, as a CI runner, waits for ever."""
    (tmp_path / "waiting.py").write_text(WAITING)
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "waiting.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        deadline = time.monotonic() + 60
        while len(workers := children(process.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(workers) >= 2
        process.kill()
        process.communicate(timeout=60)  # ends when nobody has the pipe any more


def children(number):
    """The numbers of the processes that a process has started."""
    return Path(f"/proc/{number}/task/{number}/children").read_text().split()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["batchnorm"], f"NORM must be one of {', '.join(NAMES)}, got batchnorm"),
        (["--jobs", "0"], "--jobs must be at least 1, got 0"),
    ],
)
def test_errors(capsys, arguments, message):
    assert main(["compile", *arguments]) == 2
    assert capsys.readouterr() == ("", f"numnorm compile: error: {message}\n")


@pytest.mark.skipif(COMPILED, reason="something is compiled")
def test_without_a_compiler(capsys):
    assert main(["compile"]) == 2
    assert "NUMBA_DISABLE_JIT is set" in capsys.readouterr().err


def test_without_a_folder(capsys, monkeypatch):
    from numba.core import config

    monkeypatch.setattr(config, "DISABLE_JIT", 0)
    monkeypatch.setattr(cache, "directory", lambda: None)
    monkeypatch.setattr(calls, "missing", list)
    assert main(["compile"]) == 2
    assert "no folder can be written to" in capsys.readouterr().err


# Listing and cleaning


def place_build(folder, *origins, age=0.0):
    """Make a folder of kernels that installations have used, each given by what it has changed."""
    folder.mkdir(parents=True)
    (folder / "kernel.bin").write_bytes(b"code")
    for number, changes in enumerate(origins):
        record = folder / f"origin-{number}.json"
        if changes is None:
            record.write_text("no JSON")
        else:
            own = json.loads(origin.content("linux znver9", CPU, ("numba", "llvmlite")))
            record.write_text(json.dumps(own | changes))
    os.utime(folder, (time.time() - age,) * 2)


GONE = {"package": "/nowhere/numnorm"}
ELSEWHERE = {"host": "another"}
LIBRARIES = json.loads(origin.content("linux znver9", CPU, ("numba", "llvmlite")))["libraries"]
KEPT = {
    "own": ({},),
    "another-processor": ({"processor": "arm"},),
    "package-of-another-machine": (GONE | ELSEWHERE,),
    "one-of-two": (GONE, {}),
    "unreadable": (None,),
    "unknown-form": ({"libraries": 1},),
    "no-interpreter": ({"interpreter": ""},),
    "another-interpreter": ({"interpreter": __file__, "python": "another"},),
    "unknown-version": (
        {"libraries": {n: lib | {"version": None} for n, lib in LIBRARIES.items()}},
    ),
    "not-yet-signed": (),
}
STALE = {
    "package-gone": (GONE,),
    "other-sources": ({"sources": "0" * 32},),
    "other-sources-of-another-machine": ({"sources": "0" * 32} | ELSEWHERE,),
    "two": (GONE, {"sources": "0" * 32}),
    "interpreter-gone": ({"interpreter": "/nowhere/python"},),
    "another-python": ({"interpreter": sys.executable, "python": "3.0"},),
    "another-numba": ({"libraries": {"numba": LIBRARIES["numba"] | {"version": "0.1"}}},),
    "no-llvmlite": ({"libraries": {"llvmlite": {"folder": "/nowhere", "version": "0.1"}}},),
}


# Only the second one is old, and has a name that numnorm gives.
UNFINISHED = (
    "own/kernel-0123456789ab.tmp",
    "own/kernel-fedcba987654.tmp",
    "own/thesis.tmp",
    "notes/thesis.tmp",
)


@pytest.fixture
def filled(monkeypatch, tmp_path):
    """A cache with all of these, and with other files."""
    for name, origins in (KEPT | STALE).items():
        place_build(tmp_path / name, *origins)
    place_build(tmp_path / "never-signed", age=7200)
    (tmp_path / "notes").mkdir()
    for name in ("of-others.bin", "readme", "notes/mine", *UNFINISHED):
        (tmp_path / name).write_bytes(b"1234")
    for name in UNFINISHED[1:]:
        os.utime(tmp_path / name, (time.time() - 7200,) * 2)
    monkeypatch.setattr(cache, "folders", lambda: (tmp_path, tmp_path / "missing"))
    monkeypatch.setattr(cache, "directory", lambda: tmp_path)
    return tmp_path


def files_in(folder):
    return {path for path in folder.rglob("*") if path.is_file()}


def test_clean_removes_exactly_what_is_stale(capsys, filled):
    stale = {path for name in (*STALE, "never-signed") for path in files_in(filled / name)}
    stale |= {filled / UNFINISHED[1]}
    kept = files_in(filled) - stale
    assert main(["compile", "--clean"]) == 0
    assert files_in(filled) == kept
    assert {path.name for path in filled.iterdir() if path.is_dir()} == {*KEPT, "notes"}
    out = capsys.readouterr().out
    assert out.startswith(f"{filled}: removed {len(stale)} files")
    assert main(["compile", "--clean"]) == 0
    assert capsys.readouterr().out.startswith(f"{filled}: removed 0 files")


@pytest.mark.skipif(os.name == "nt", reason="not everyone may make links")
def test_clean_follows_no_links(capsys, filled, tmp_path_factory):
    """As another user could place in a shared folder, to files that only this user can remove."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    place_build(elsewhere / "own", age=7200)
    (filled / "link").symlink_to(elsewhere / "own")
    assert main(["compile", "--clean"]) == 0
    assert [path.name for path in files_in(elsewhere)] == ["kernel.bin"]


needs_users = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs files of another user"
)
ANOTHER = 54321  # the number of a user who need not exist


@needs_users
@pytest.mark.parametrize("owner", ["own", "another"])
def test_a_cache_that_is_a_link_is_cleaned_if_it_is_of_this_user(
    capsys, monkeypatch, tmp_path, owner
):
    """Another user could lead it to any folder with old files of this kind, as firmware is."""
    place_build(tmp_path / "elsewhere" / "b43", age=7200)
    (tmp_path / "link").symlink_to("elsewhere")
    if owner == "another":
        os.lchown(tmp_path / "link", ANOTHER, -1)
    monkeypatch.setattr(cache, "folders", lambda: (tmp_path / "link",))
    monkeypatch.setattr(cache, "directory", lambda: tmp_path / "link")
    assert main(["compile", "--clean"]) == 0
    assert len(files_in(tmp_path / "elsewhere")) == (0 if owner == "own" else 1)


@needs_users
def test_a_link_of_another_user_is_not_written_through(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache/numnorm").mkdir(parents=True)
    for link in (tmp_path / "linked", tmp_path / "cache/numnorm/build"):
        link.symlink_to(tmp_path / "elsewhere")
        assert kernel_folders._is_writable.__wrapped__(link, "other")
        os.lchown(link, ANOTHER, -1)
        assert not kernel_folders._is_writable.__wrapped__(link, "other")
    assert not kernel_folders._is_writable.__wrapped__(tmp_path / "cache/numnorm", "build")
    assert kernel_folders._is_writable.__wrapped__(tmp_path / "cache/numnorm", "other")


@needs_users
def test_nothing_is_read_from_where_the_record_of_another_user_says(filled, monkeypatch):
    (filled / "foreign").mkdir()
    monkeypatch.setattr(origin, "hash_of_sources", pytest.fail)
    monkeypatch.setattr(origin, "distributions", pytest.fail)
    for name, changes in (("kept", {"sources": "0"}), ("stale", GONE)):
        place_build(filled / "foreign" / name, changes)
        os.chown(filled / "foreign" / name, ANOTHER, -1)
    told = {build.name: build.stale for build in folders.builds(filled / "foreign")}
    assert told == {"kept": False, "stale": True}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("option", ["--list", "--clean"])
def test_pipes_and_links_stop_nobody(capsys, filled, tmp_path_factory, option):
    """Another user could put them into a shared folder; opening a pipe would wait for ever."""
    package = tmp_path_factory.mktemp("package")
    (package / "norms").mkdir()
    os.mkfifo(package / "norms/x.py")
    place_build(filled / "source", {"package": str(package), "folders": ["norms"]})
    place_build(filled / "record")
    os.mkfifo(filled / "record/origin-1.json")
    (filled / "record/origin-2.json").symlink_to(filled / "own/origin-0.json")
    (filled / "record/dangling.bin").symlink_to("nowhere")
    os.mkfifo(filled / "record/pipe.bin")
    os.mkfifo(filled / "pipe.bin")
    large = filled / "large"
    place_build(large, {})
    os.truncate(large / "origin-0.json", 1 << 40)
    assert main(["compile", option]) == 0
    assert (filled / "record/kernel.bin").exists()
    assert (filled / "source/kernel.bin").exists()
    assert (large / "kernel.bin").exists()
    if option == "--list":
        assert "  record: 1 kernels, 0.0 MiB, in use\n" in capsys.readouterr().out


def test_what_a_terminal_would_obey_is_not_printed(capsys, filled):
    place_build(filled / "\x1b[2Jname", {"package": "\x1b]0;title\x07"})
    assert main(["compile", "--list"]) == 0
    out = capsys.readouterr().out
    assert "?[2Jname" in out
    assert out.replace("\n", "").isprintable()


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="needs descriptors of folders")
def test_clean_removes_nothing_through_a_link_that_takes_the_place_of_a_build(
    filled, monkeypatch, tmp_path_factory
):
    """As another user can exchange them between the look and the removal."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "kernel.bin").touch()
    (elsewhere / "kernel-0123456789ab.tmp").touch()
    os.utime(elsewhere / "kernel-0123456789ab.tmp", (0, 0))
    found = list(folders.builds(filled))

    def exchanged(folder):
        for path in filled.glob("*/"):
            path.rename(filled / f"{path.name}.aside")
            path.symlink_to(elsewhere)
        return found

    monkeypatch.setattr(folders, "builds", exchanged)
    folders.clean(filled)
    assert len(files_in(elsewhere)) == 2


def test_list(capsys, filled):
    assert main(["compile", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{filled} (new kernels are kept here)"
    assert lines[-2:] == [f"{filled / 'missing'} (only read)", "  no kernels"]
    told = {line.split(":")[0].strip(): line for line in lines if line.startswith("  ")}
    for names, use in ((KEPT, "in use"), (STALE, "nobody can use them")):
        for name in names:
            assert told[name] == f"  {name}: 1 kernels, 0.0 MiB, {use}"
