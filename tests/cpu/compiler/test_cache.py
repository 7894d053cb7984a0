"""The compiled kernels on disk: found again, never stale, and harmless whatever is wrong there.

Every test works on a copy of the package, in processes of its own.
"""

import hashlib
import json
import os
import pickle
import random
import re
import shutil
import sys
from pathlib import Path

import kernels
import numpy as np
import pytest
from every_call import CASES, COMPILED, in_new_process, output_of, start

import numnorm

pytestmark = pytest.mark.skipif(not COMPILED, reason="nothing is compiled")

# It prints what each call gives, to the last bit, and whether a kernel was compiled for that. A
# call is the name of a norm, or name:dtype:copies for copies of the same few rows; or `half`,
# of a kernel that takes a moment to compile, where which kernel it is does not matter.
CALLS = """
import json
import sys

import ml_dtypes
import numpy as np
from numba.core import event

import numnorm
from numnorm.backends.cpu import tuning
from numnorm.backends.cpu.compiler.jit import make_kernel

tuning.PARALLEL_LEAST_WORK = 1 << 20

@lambda halve: make_kernel("half", halve).serial
def halve(rows, halves, first, last):
    for row in range(first, last):
        for column in range(rows.shape[1]):
            halves[row, column] = rows[row, column] / 2

def half(rows):
    halves = np.empty_like(rows)
    halve(rows, halves, 0, len(rows))
    return halves

compiled = event.RecordingListener()
event.register("numba:compile", compiled)
x = np.array([[1.0, 2.0, 6.0, 0.3], [0.1, 7.0, 3.0, 1e3]], np.float32)

def call(name, dtype="float32", copies="1"):
    rows = np.tile(x, (int(copies), 1)).astype(dtype)
    function = half if name == "half" else getattr(numnorm, name)
    return function(rows)[:2].astype(float).ravel().tolist()

results = [call(*argument.split(":")) for argument in sys.argv[1:]]
print(json.dumps([results, bool(compiled.buffer), numnorm.__file__]))
"""


class Copy:
    """A copy of the package and a folder for its compiled kernels, to be run in new processes."""

    def __init__(self, folder):
        self.package = folder / "numnorm"
        self.kernels = folder / "cache" / "numnorm"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(numnorm.__file__).parent, self.package, ignore=ignored)
        self.environment = {"PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder / "cache")}

    def files(self):
        """The compiled kernels, and what is left of those that were being written."""
        return [path for path in self.kernels.glob("*/*") if path.suffix != ".json"]

    def start(self, *norms, before="", **changes):
        return start("-c", before + CALLS, *norms, **self.environment | changes)

    def finish(self, process):
        """The results of the calls, and whether anything was compiled."""
        results, compiled, file = json.loads(output_of(process))
        assert Path(file).parent == self.package
        return results, compiled

    def call(self, *norms, **changes):
        return self.finish(self.start(*norms, **changes))


@pytest.fixture
def copy(tmp_path):
    return Copy(tmp_path)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A copy that has compiled `half` and written it to its only file; and the result."""
    copy = Copy(tmp_path_factory.mktemp("compiled"))
    result, was_compiled = copy.call("half")
    assert was_compiled
    assert len(copy.files()) == 1
    return copy, result


@pytest.fixture
def with_kernel(copy, compiled):
    """A copy of that copy, and the result, and the file."""
    original, result = compiled
    shutil.copytree(original.kernels, copy.kernels)
    (file,) = copy.files()
    return copy, result, file


def test_second_process_compiles_nothing(with_kernel):
    copy, result, file = with_kernel
    content = file.read_bytes()
    assert copy.call("half") == (result, False)
    assert copy.files() == [file]
    assert file.read_bytes() == content


def test_an_edit_of_a_cuda_file_compiles_nothing_on_the_cpu(with_kernel):
    copy, result, _ = with_kernel
    with open(copy.package / "backends" / "cuda" / "__init__.py", "a", encoding="utf-8") as file:
        file.write("# edited")
    assert copy.call("half") == (result, False)


def test_touched_sources_are_the_same_sources(with_kernel):
    copy, result, _ = with_kernel
    for path in copy.package.rglob("*.py"):
        os.utime(path, (1, 1))
    assert copy.call("half") == (result, False)


def test_another_processor_gets_code_of_its_own(with_kernel):
    copy, _, _ = with_kernel
    (result,), compiled = copy.call("half", NUMBA_CPU_NAME="generic")
    assert compiled
    assert result == pytest.approx(copy.call("half")[0][0], rel=1e-6)


def begin_return_with(beginning, function, path):
    """Edit what a function returns."""
    source, edits = re.subn(
        rf"(\ndef {function}\(.*?\n    return )",
        rf"\g<1>{beginning}",
        path.read_text("utf-8"),
        count=1,
        flags=re.DOTALL,
    )
    assert edits == 1
    path.write_text(source, "utf-8")


@pytest.mark.parametrize(
    "function, source",
    [
        ("affine", "norms/affine.py"),
        pytest.param(
            "_centred_normalized", "backends/cpu/statistics/normalize.py", marks=kernels.full
        ),
    ],
)
def test_edited_sources_give_the_new_result(copy, function, source):
    (before,), _ = copy.call("layer_norm")
    (file,) = copy.kernels.glob("*/row_forward.*")  # beside that of its direct call
    begins = "1 + " if function == "affine" else "value + "
    begin_return_with(begins, function, copy.package / source)
    (after,), compiled = copy.call("layer_norm")
    assert compiled
    x = np.array([[1.0, 2.0, 6.0, 0.3], [0.1, 7.0, 3.0, 1e3]])
    change = 1 if function == "affine" else x
    expected = np.reshape(before, x.shape) + change
    np.testing.assert_allclose(np.reshape(after, x.shape), expected, rtol=1e-5)
    assert copy.call("layer_norm") == ([after], False)
    assert file.exists(), "the old file still serves the old sources"


@kernels.full
def test_edited_formula_of_ada_norm_gives_the_new_result(copy):
    (before,), _ = copy.call("ada_norm")
    begin_return_with("1 + ", "adaptive", copy.package / "norms" / "ada.py")
    (after,), compiled = copy.call("ada_norm")
    assert compiled
    assert after == pytest.approx(np.add(before, 1), rel=1e-6)


EDIT = """
import numnorm
from pathlib import Path
path = Path(numnorm.__file__).parent / "norms" / "affine.py"
path.write_text(path.read_text("utf-8").replace("+ beta", "+ beta + 100"), "utf-8")
"""


@kernels.full
def test_sources_that_change_below_a_process(copy):
    # It has the old functions, and the new ones are on the disk: what it compiles is nobody's.
    before, compiled = copy.finish(copy.start("layer_norm", before=EDIT))
    assert compiled
    (after,), compiled = copy.call("layer_norm")
    assert compiled
    np.testing.assert_allclose(after, np.add(before[0], 100), rtol=1e-6)


@kernels.full
def test_package_in_an_archive(copy):
    results = []
    for change in "", "1 + ":
        if change:
            begin_return_with(change, "affine", copy.package / "norms" / "affine.py")
        archive = shutil.make_archive(
            str(copy.package.parent / "zipped"), "zip", copy.package.parent, "numnorm"
        )
        environment = copy.environment | {"PYTHONPATH": archive}
        results.append(json.loads(in_new_process("-c", CALLS, "layer_norm", **environment))[0][0])
    # There are no files of sources to tell one from the other.
    np.testing.assert_allclose(results[1], np.add(results[0], 1), rtol=1e-6)


MIXTURES = {
    "formulas": ("layer_norm", "rms_norm"),
    # Both halves are words of 16 bits to a kernel. The copies make it run in parallel.
    "halves": ("layer_norm:float16:50000", "layer_norm:bfloat16:50000"),
}


@pytest.mark.parametrize(
    "calls",
    [
        pytest.param(calls, marks=[kernels.full] if name == "halves" else [], id=name)
        for name, calls in MIXTURES.items()
    ],
)
def test_kernels_compiled_by_different_processes_do_not_mix(copy, calls):
    # The order of Python's sets goes into the names of compiled functions: here, the same ones.
    environment = {"PYTHONHASHSEED": "0", "NUMBA_NUM_THREADS": "2"}
    results = {call: copy.call(call, **environment)[0][0] for call in calls}
    for order in (calls, calls[::-1]):
        assert copy.call(*order, **environment) == ([results[call] for call in order], False)


@kernels.full
def test_parallel_kernels_compiled_at_the_same_address_do_not_mix(copy):
    # As in two children of one process, where Numba names the loops of both by one address.
    same = {
        "before": "from numba.parfors.parfor import Parfor\nParfor.__hash__ = lambda self: 1\n",
        "PYTHONHASHSEED": "0",
        "NUMBA_NUM_THREADS": "2",
    }
    calls = MIXTURES["halves"]
    results = {call: copy.call(call, **same)[0][0] for call in calls}
    for order in (calls, calls[::-1]):
        assert copy.call(*order, **same)[0] == [results[call] for call in order]


def test_compiling_and_loading_give_the_same_bytes(tmp_path):
    case = CASES["layer_norm float32 (131, 257)"]
    script = f"import every_call; print(every_call.digest(every_call.{case}))"
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "NUMBA_NUM_THREADS": "1"}
    compiled, loaded = (in_new_process("-c", script, **environment) for _ in range(2))
    assert compiled == loaded


def test_processes_that_compile_at_once(copy, compiled):
    _, result = compiled
    processes = [copy.start("half") for _ in range(4)]
    assert [copy.finish(process)[0] for process in processes] == [result] * 4
    # One whole file, and none that was being written.
    assert len(copy.files()) == 1
    assert copy.call("half") == (result, False)


def below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "folder"


def below_proc(tmp_path):
    if not Path("/proc/self").exists():
        pytest.skip("needs /proc")
    return Path("/proc/numnorm")


@pytest.mark.parametrize("place", [below_a_file, below_proc])
def test_unwritable_folder_of_the_environment(copy, compiled, tmp_path, place):
    _, result = compiled
    assert copy.call("half", NUMBA_CACHE_DIR=str(place(tmp_path))) == (result, True)


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
    for _ in range(2):  # nobody named another folder: what is not there is not kept
        assert copy.finish(copy.start("half:float64", before=before))[1]
    assert entries(copy.kernels) == held


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
        assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_each_installation_notes_that_it_uses_the_kernels(with_kernel):
    copy, _, file = with_kernel
    copy.call("half")
    origins = [json.loads(path.read_text()) for path in file.parent.glob("origin-*.json")]
    packages = {origin["package"] for origin in origins}
    assert len(origins) == len(packages) == 2  # that which compiled them, and the copy
    assert str(copy.package) in packages


MESSAGE = """
import logging

from numnorm.backends.cpu.compiler import waiting

waiting._left = 0.01
messages = logging.Handler()
messages.emit = lambda record: print(record.levelname, record.getMessage())
logging.getLogger("numnorm").addHandler(messages)
logging.getLogger("numnorm").setLevel("INFO")
"""


def test_a_message_while_a_kernel_is_compiled(copy):
    script = MESSAGE + CALLS
    message, _ = in_new_process("-c", script, "half", **copy.environment).splitlines()
    assert message.startswith("INFO numnorm compiles half ")
    assert str(copy.kernels) in message
    (_,) = in_new_process("-c", script, "half", **copy.environment).splitlines()


class Raises:
    """Something that pickles and does not come back."""

    def __reduce__(self):
        return int, ("not a number",)


def sealed(payload, name):
    """A file of this name whose digest is right."""
    return hashlib.sha256(name.encode() + b"\0" + payload).digest() + payload


def flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGES = {
    "empty": lambda content, name: b"",
    "truncated": lambda content, name: content[: len(content) // 2],
    "one-bit": lambda content, name: flipped(content),
    "garbage": lambda content, name: random.Random(0).randbytes(len(content)),
    "another-name": lambda content, name: sealed(content[32:], "another name"),
    "sealed-nonsense": lambda content, name: sealed(b"nonsense", name),
    "sealed-tuple": lambda content, name: sealed(pickle.dumps((1,) * 20), name),
    "sealed-raising": lambda content, name: sealed(pickle.dumps(Raises()), name),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_file_is_compiled_again(with_kernel, damage):
    copy, result, file = with_kernel
    damaged = damage(file.read_bytes(), f"{file.parent.name}/{file.name}")
    file.write_bytes(damaged)
    assert copy.call("half") == (result, True)
    assert file.read_bytes() != damaged


def test_folder_in_place_of_the_file(with_kernel):
    copy, result, file = with_kernel
    file.unlink()
    file.mkdir()
    assert copy.call("half") == (result, True)
    assert copy.files() == [file]


def test_folder_removed_between_calls(copy):
    remove = "import os, shutil; shutil.rmtree(os.environ['NUMBA_CACHE_DIR'])\n"
    script = CALLS.replace("results =", f"numnorm.layer_norm(x)\n{remove}results =")
    (result,), compiled, _ = json.loads(
        in_new_process("-c", script, "rms_norm", **copy.environment)
    )
    assert compiled
    x = np.array([1.0, 2.0, 6.0, 0.3])
    np.testing.assert_allclose(result[:4], x / np.sqrt(np.mean(x * x) + 1e-5), rtol=1e-6)


SAVE_TINY = """
import sys

import numpy as np

import every_call

results = {
    f"{label} {i}": np.asarray(array, np.float64)
    for label, case in every_call.CASES.items() if case.size == "tiny"
    for i, array in enumerate(every_call.results_of(case))
}
np.savez(sys.argv[1], **results)
"""


def test_without_compilation(tmp_path):
    for name, disabled in ("compiled", "0"), ("plain", "1"):
        in_new_process("-c", SAVE_TINY, str(tmp_path / name), NUMBA_DISABLE_JIT=disabled)
    compiled, plain = (np.load(tmp_path / f"{name}.npz") for name in ("compiled", "plain"))
    assert compiled.files == plain.files
    # Sums of tens of values in another order, and multiplication with addition in one step; the
    # halves are rounded once more, and may then fall to the next of their numbers.
    roundoff = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-10, "bfloat16": 2.0**-7}
    for name in plain.files:
        bound = 8 * roundoff[name.split()[1]] * np.abs(plain[name]).max()
        np.testing.assert_allclose(compiled[name], plain[name], rtol=0, atol=bound, err_msg=name)
