"""The command that runs compute-sanitizer, with a made-up one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(__file__).parents[2] / "gpu" / "sanitizer.py"

# It notes what it was asked for, and finds something with one of the tools.
MADE_UP = """#!{python}
import os, sys
print("asked:", *sys.argv[1:])
sys.exit(1 if {finds!r} in sys.argv else 0)
"""

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the made-up program is a script")


def run(path, toolkit):
    # Without site-packages, where there may be a real one.
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_PATH"}
    return subprocess.run(
        [sys.executable, "-S", COMMAND],
        env=environment | {"PATH": str(path), "CUDA_HOME": str(toolkit)},
        capture_output=True,
        text=True,
    )


def put(folder, finds=""):
    folder.mkdir(parents=True)
    program = folder / "compute-sanitizer"
    program.write_text(MADE_UP.format(python=sys.executable, finds=finds))
    program.chmod(0o755)


def test_where_there_is_none_it_says_so(tmp_path):
    done = run(tmp_path, tmp_path)
    assert done.returncode == 2
    assert "nothing was checked" in done.stdout


@pytest.mark.parametrize("where", ["path", "toolkit/bin", "toolkit/compute-sanitizer"])
def test_both_tools_run(tmp_path, where):
    put(tmp_path / where)
    done = run(tmp_path / "path", tmp_path / "toolkit")
    assert done.returncode == 0
    asked = [line for line in done.stdout.splitlines() if line.startswith("asked:")]
    assert [line.split()[2] for line in asked] == ["memcheck", "racecheck"]
    for line in asked:
        assert "-m pytest -m gpu" in line and "--error-exitcode 1" in line


@pytest.mark.parametrize("finds", ["memcheck", "racecheck"])
def test_what_a_tool_finds_is_a_failure(tmp_path, finds):
    put(tmp_path / "path", finds)
    done = run(tmp_path / "path", tmp_path / "toolkit")
    assert done.returncode == 1
    assert done.stdout.count("asked:") == 2
