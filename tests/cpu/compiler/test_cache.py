"""The compiled kernels on disk: found again, never stale, and harmless whatever is wrong there.

Every test works on a copy of the package, in processes of its own.
"""

import json
import os
import pickle
import random
import re
import shutil

import kernels
import numpy as np
import pytest
from every_call import CASES, COMPILED, in_new_process
from package_copy import CALLS, sealed

pytestmark = pytest.mark.skipif(not COMPILED, reason="nothing is compiled")


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


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("OPT", "0"),
        ("OPT", "max"),
        ("BOUNDSCHECK", "1"),
        *(
            pytest.param(setting, value, marks=kernels.full)
            for setting, value in (
                ("LOOP_VECTORIZE", "0"),
                ("SLP_VECTORIZE", "1"),
                ("DEBUGINFO", "1"),
                ("ENABLE_PROFILING", "1"),
                ("DEBUG_NRT", "1"),
                ("ENABLE_AVX", "0"),
                ("CPU_FEATURES", ""),
                ("LLVM_REFPRUNE_PASS", "0"),
            )
        ),
    ],
)
def test_other_settings_of_the_compiler_get_code_of_their_own(with_kernel, setting, value):
    copy, result, file = with_kernel
    content = file.read_bytes()
    # The compiler warns that `half`, whose source is a string, has no file to debug.
    before = "import warnings\nwarnings.simplefilter('ignore')\n"
    for compiled in (True, False):
        process = copy.start("half", before=before, **{f"NUMBA_{setting}": value})
        assert copy.finish(process) == (result, compiled)
    assert copy.call("half") == (result, False)
    assert file.read_bytes() == content


def test_settings_of_the_process_get_code_of_their_own(with_kernel):
    copy, result, _ = with_kernel
    before = "import numba\nnumba.config.BOUNDSCHECK = 1\n"
    assert copy.finish(copy.start("half", before=before)) == (result, True)
    assert copy.call("half", NUMBA_BOUNDSCHECK="1") == (result, False)


# The settings that change no machine code, or are part of the processor's name and features.
WITHOUT_EFFECT = re.compile(
    "ALWAYS_WARN|ANNOTATE|CACHE|CHROME_TRACE|COLOR|CPU_|CUDA_|DEBUG$|DEBUG_(ARRAY_OPT|CACHE|FRONTEND)"
    "$|DEBUG_(ARRAY_OPT_STATS|INLINE|NRT_STACK|PRINT|TYPEINFER)|DEVELOPER|DISABLE_|DUMP_|ENABLE_(AVX"
    "|CUDASIM|SYS)|FORCE_CUDA|FULL_TRACEBACKS|FUNCTION_CACHE|GDB|HIGHLIGHT|HTML|IS_|JIT_COVERAGE|"
    "LLVM_PASS_TIMINGS|MACHINE_BITS|NRT_STATS|NUMBA_|PYVERSION|_HAVE_YAML|_NUMBA|PARALLEL|PARFOR_MAX|RUNNING|SHOW|"
    "THREADING|TRACE|USE_LLVMLITE"
)


def test_every_setting_of_the_compiler_is_known():
    from numba.core import config

    from numnorm.backends.cpu.compiler import cache

    found = {name for name in vars(config) if name.isupper()}
    unknown = {name for name in found if not WITHOUT_EFFECT.match(name)} - set(cache._SETTINGS)
    assert not unknown, "does it change machine code?"


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
    before, compiled = copy.finish(
        copy.start("layer_norm", before=f"import numnorm; numnorm.layer_norm{EDIT}")
    )
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
