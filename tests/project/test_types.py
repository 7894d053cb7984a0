"""What type checkers find in `typed_calls.py`, and what they read of functions made at import."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import stubs

CALLS = Path(__file__).with_name("typed_calls.py")
LINES = enumerate(CALLS.read_text("utf-8").splitlines(), 1)
EXPECTED = [number for number, line in LINES if line.endswith("# error")]
ROOT = Path(__file__).parents[2]


PLACES = [
    pytest.param(place, marks=[pytest.mark.jax] if place == "jax" else []) for place in stubs.PLACES
]


@pytest.mark.parametrize("place", PLACES)
def test_stub_has_the_signatures_of_the_module(place):
    pytest.importorskip(place)
    stub = stubs.path_of(place).read_text("utf-8")
    assert stub == stubs.stub_of(place), "run python tests/support/stubs.py"


def run(command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout


def test_mypy(tmp_path):
    pytest.importorskip("mypy")
    options = ["--strict", "--no-error-summary", f"--cache-dir={tmp_path}"]
    found = run([sys.executable, "-m", "mypy", *options, str(CALLS)])
    lines = re.findall(r"typed_calls\.py:(\d+): error", found)
    assert [int(line) for line in lines] == EXPECTED, found


def test_pyright():
    command = shutil.which("pyright")
    if command is None:
        pytest.skip("pyright is not installed")
    found = run([command, "--outputjson", "--pythonpath", sys.executable, str(CALLS)])
    errors = [d for d in json.loads(found)["generalDiagnostics"] if d["severity"] == "error"]
    assert sorted({d["range"]["start"]["line"] + 1 for d in errors}) == EXPECTED, found
