"""A copy of the package with a cache of its own, for tests of compiled kernels on disk."""

import hashlib
import json
import shutil
from pathlib import Path

from every_call import output_of, start

import numnorm

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


def sealed(payload, name):
    """A file of this name whose digest is right."""
    return hashlib.sha256(name.encode() + b"\0" + payload).digest() + payload
