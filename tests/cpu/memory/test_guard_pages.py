"""No call reads or writes beside its arrays: they lie beside memory that ends the process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from every_call import COMPILED

pytestmark = [
    pytest.mark.skipif(not COMPILED, reason="NumPy reads the arrays"),
    pytest.mark.skipif(sys.platform == "win32", reason="memory is protected by mprotect"),
]
CALLS = Path(__file__).parents[2] / "support" / "guarded_calls.py"
DTYPES = ("float32", "float64", "float16", "bfloat16")
PARTS = ("rows", "channels", "moving", "cells")


def run(*arguments):
    command = [sys.executable, CALLS, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    last = done.stdout.strip().splitlines()[-1:]
    assert (done.returncode, last) == (0, ["END"]), (done.returncode, last, done.stderr[-2000:])


@pytest.mark.parametrize("part", PARTS)
def test_random_calls_stay_inside_their_arrays(part):
    run(0, 60 if part == "cells" else 150, "float32", part)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("part", PARTS)
def test_many_random_calls(part, dtype):
    run(1000, 1250, dtype, part)
