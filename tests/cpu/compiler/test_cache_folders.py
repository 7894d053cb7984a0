"""Where compiled kernels are read and written, and whose files are loaded."""

import json
import os
import pickle
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from every_call import COMPILED
from package_copy import sealed

from numnorm.backends.kernel_files import origin

pytestmark = pytest.mark.skipif(not COMPILED, reason="nothing is compiled")


def below_a_file(tmp_path):
    (tmp_path / "file").touch()
    return tmp_path / "file" / "folder"


def below_proc(tmp_path):
    if not Path("/proc/self").exists():
        pytest.skip("needs /proc")
    return Path("/proc/numnorm")


@pytest.mark.parametrize("place", [below_a_file, below_proc])
def test_unwritable_folder_of_the_environment(copy, compiled, tmp_path, place):
    _, result = compiled
    for was_compiled in (True, False):  # it is kept as if no folder were named
        changes = {"NUMBA_CACHE_DIR": str(place(tmp_path))}
        assert copy.call("half", **changes) == (result, was_compiled)


def test_nowhere_to_write(copy, compiled, tmp_path):
    _, result = compiled
    nowhere = str(below_a_file(tmp_path))
    (copy.package / "__pycache__").write_text("")
    homes = dict.fromkeys(("HOME", "USERPROFILE", "XDG_CACHE_HOME", "LOCALAPPDATA"), nowhere)
    assert copy.call("half", NUMBA_CACHE_DIR=None, **homes) == (result, True)


def test_beside_the_package_without_a_choice(copy, compiled):
    _, result = compiled
    assert copy.call("half", NUMBA_CACHE_DIR=None) == (result, True)
    assert len(list((copy.package / "__pycache__" / "kernels").rglob("*.bin"))) == 1
    assert not copy.kernels.exists()


def test_in_the_cache_of_the_user_where_the_package_is_not_writable(copy, compiled, tmp_path):
    _, result = compiled
    (copy.package / "__pycache__").write_text("")
    home = tmp_path / "home"
    homes = dict.fromkeys(("HOME", "USERPROFILE", "XDG_CACHE_HOME", "LOCALAPPDATA"), str(home))
    assert copy.call("half", NUMBA_CACHE_DIR=None, **homes) == (result, True)
    assert len(list(home.rglob("*.bin"))) == 1
    assert copy.call("half", NUMBA_CACHE_DIR=None, **homes) == (result, False)


def test_a_package_in_a_zip_archive(copy, compiled, tmp_path):
    _, result = compiled
    archive = Path(shutil.make_archive(tmp_path / "archive", "zip", copy.package.parent, "numnorm"))
    copy.package = archive / "numnorm"
    copy.environment["PYTHONPATH"] = str(archive)
    for was_compiled in (True, False):
        assert copy.call("half") == (result, was_compiled)
    (record,) = copy.kernels.rglob("origin-*.json")
    recorded = json.loads(record.read_text("utf-8"))
    assert not origin.is_stale(recorded, trusted=True)
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr("numnorm/another.py", "")
    assert origin.is_stale(recorded, trusted=True)
    assert copy.call("half") == (result, True)
    archive.unlink()
    assert origin.is_stale(recorded, trusted=True)


# A superuser may write anywhere. Without capabilities it may not, if the permissions forbid it.
OBEDIENT = """
import ctypes
header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capset(header, none) == 0
"""


@pytest.fixture
def read_only(with_kernel):
    """That copy, whose cache nobody may write to, and what its processes execute before a call."""
    copy, result, _ = with_kernel
    if os.name == "nt" or (os.geteuid() == 0 and sys.platform != "linux"):
        pytest.skip("needs folders that cannot be written to")
    copy.call("half")  # it notes that it uses the kernels
    folders = [copy.kernels, *copy.kernels.glob("*/")]
    for folder in folders:
        folder.chmod(0o555)
    yield copy, result, OBEDIENT if os.geteuid() == 0 else ""
    for folder in folders:
        if folder.exists():
            folder.chmod(0o755)


def entries(folder):
    """All that a folder holds, with the times of the last changes."""
    return {path: path.stat().st_mtime_ns for path in [folder, *folder.rglob("*")]}


def test_a_read_only_cache_is_used_and_never_written(read_only):
    copy, result, before = read_only
    held = entries(copy.kernels)
    assert copy.finish(copy.start("half", before=before)) == (result, False)
    # What is not there is kept as if no folder were named.
    for compiled in (True, False):
        assert copy.finish(copy.start("half:float64", before=before))[1] == compiled
    assert entries(copy.kernels) == held
    assert len(list((copy.package / "__pycache__" / "kernels").rglob("*.bin"))) == 1


def test_a_read_only_cache_beside_the_package(read_only, tmp_path):
    copy, result, before = read_only
    shared = copy.package / "__pycache__" / "kernels"
    shared.parent.mkdir(exist_ok=True)
    copy.kernels.rename(shared)
    home = tmp_path / "home"
    homes = dict.fromkeys(("HOME", "USERPROFILE", "XDG_CACHE_HOME", "LOCALAPPDATA"), str(home))
    changes = {"before": before, "NUMBA_CACHE_DIR": None, **homes}
    held = entries(shared)
    assert copy.finish(copy.start("half", **changes)) == (result, False)
    assert not list(home.rglob("*.bin"))
    # The user's own cache takes what is not there.
    assert copy.finish(copy.start("half:float64", **changes))[1]
    assert copy.finish(copy.start("half:float64", "half", **changes))[1] is False
    assert entries(shared) == held


def test_kernels_can_be_read_by_others(with_kernel):
    *_, file = with_kernel
    umask = os.umask(0)
    os.umask(umask)
    for path in file.parent.iterdir():
        assert path.stat().st_mode & 0o777 == 0o644 & ~umask


def test_a_process_reads_the_kernels_that_it_wrote_with_any_umask(copy, compiled):
    _, result = compiled
    for umask in (0o002, 0o000):
        before = f"import os; os.umask({umask})\n"
        assert copy.finish(copy.start("half", before=before)) == (result, umask == 0o002)


def test_a_user_without_a_home_writes_nothing_where_the_program_starts(copy, tmp_path):
    (copy.package / "__pycache__").write_text("")
    started = tmp_path / "started"
    started.mkdir()
    before = f"import os; os.chdir({str(started)!r}); os.path.expanduser = lambda path: path\n"
    changes = {"NUMBA_CACHE_DIR": None, "XDG_CACHE_HOME": None}
    copy.finish(copy.start("half", before=before, **changes))
    assert list(started.iterdir()) == []


class Planted:
    """Something that leaves a file beside the cache when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def plant(file, trace):
    """Replace a kernel by code that is not its own, with the right digest."""
    name = f"{file.parent.name}/{file.name}"
    file.write_bytes(sealed(pickle.dumps(Planted(trace)), name))


posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="users have no numbers")
ANOTHER = 54321  # the number of a user who need not exist


@posix
@pytest.mark.parametrize("place", ["file", "folder"])
@pytest.mark.parametrize("fault", ["owner", "group", "all"])
def test_what_another_user_could_have_written_is_not_unpickled(with_kernel, tmp_path, place, fault):
    copy, result, file = with_kernel
    trace = tmp_path / "trace"
    plant(file, trace)
    target, before = (file if place == "file" else file.parent), ""
    if fault != "owner":
        target.chmod(0o664 | 0o111 * (place == "folder") if fault == "group" else 0o777)
    elif os.geteuid() == 0:
        os.chown(target, ANOTHER, -1)
    else:
        before = f"import os; os.geteuid = lambda: {ANOTHER}\n"
    process = copy.start("half", before=before)
    out, err = process.communicate()
    assert json.loads(out)[:2] == [result, True]
    assert not trace.exists()
    (line,) = err.splitlines()
    assert line.startswith(f"numnorm does not load compiled kernels from {file.parent}: ")
    assert ("belongs to user" if fault == "owner" else "can be written by other users") in line
    # It is replaced, or kept in another folder.
    assert copy.finish(copy.start("half", before=before)) == (result, False)


@posix
def test_the_trap_works_where_the_file_is_trusted(with_kernel, tmp_path):
    copy, result, file = with_kernel
    plant(file, tmp_path / "trace")
    assert copy.call("half") == (result, True)
    assert (tmp_path / "trace").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs files of root")
def test_every_user_reads_the_kernels_of_root(with_kernel):
    copy, result, _ = with_kernel
    before = f"import os; os.geteuid = lambda: {ANOTHER}\n"
    assert copy.finish(copy.start("half", before=before)) == (result, False)


@posix
def test_a_pipe_in_the_folder_of_another_user_stops_nobody(with_kernel):
    copy, result, file = with_kernel
    file.unlink()
    os.mkfifo(file)
    file.parent.chmod(0o777)
    assert copy.call("half") == (result, True)


def test_without_user_numbers_every_file_is_read(with_kernel):
    copy, result, file = with_kernel
    file.chmod(0o666)
    before = "import os; vars(os).pop('geteuid', None)\n"
    assert copy.finish(copy.start("half", before=before)) == (result, False)
