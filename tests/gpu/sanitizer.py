"""Some of the tests on a GPU under NVIDIA's compute-sanitizer: ``python tests/gpu/sanitizer.py``.

Its memcheck finds accesses outside of arrays and at wrong addresses, its racecheck shared memory
that two threads use without a barrier between them.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

PROGRAM = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck")
# Every kernel is some hundred times as slow: one library, and one type of each size.
SELECTION = "numba and (float32 or float16 or in_place or lstm or gru or rnn or stacked) or gallery"
ROOT = Path(__file__).parents[2]


def folders():
    """Return where the program may be besides PATH: a CUDA toolkit, and packages of pip."""
    toolkits = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    found = [Path(toolkit) for toolkit in toolkits if toolkit]
    packages = importlib.util.find_spec("nvidia")  # such as nvidia/cu13
    for place in (packages and packages.submodule_search_locations) or ():
        found += sorted(Path(place).iterdir())
    return [folder / name for folder in found for name in ("bin", PROGRAM)]


def find():
    """Return the path of the program, or None."""
    return shutil.which(PROGRAM) or next(
        filter(None, (shutil.which(PROGRAM, path=folder) for folder in folders())), None
    )


def main():
    """Run each tool, and exit with 1 if one has found anything; with 2 if there is none."""
    program = find()
    if program is None:
        print(
            f"{PROGRAM} is neither in PATH nor in a CUDA toolkit nor in a package of pip: "
            "nothing was checked"
        )
        sys.exit(2)
    pytest = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider"]
    selection = sys.argv[1:] or ["tests/gpu", "-k", SELECTION]
    failed = False
    for tool in TOOLS:
        # Drivers are asked for what they do not have, which is no error of a kernel.
        options = ["--tool", tool, "--error-exitcode", "1", "--report-api-errors", "no"]
        command = [program, *options, *pytest, *selection]
        print(*command, flush=True)
        failed |= subprocess.run(command, cwd=ROOT, check=False).returncode != 0
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
