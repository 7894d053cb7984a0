"""Runs the tests of `nox -s tests`: those that find most faults in little time.

Most run the kernels as Python; some compile them, as few as show what only compiled code can do.
`nox -s full` runs all tests compiled. `tests/project/mutations.py` changes lines of kernels and
formulas and tells whether these tests find it::

    python tests/support/default_tests.py          # all
    python tests/support/default_tests.py --first  # up to the first failure

Other options go to pytest.
"""

import argparse
import os
import subprocess
import sys

WORKERS = ["-n", "2"]

# These run the kernels as Python.
UNCOMPILED = [
    "tests/norms/test_definitions.py",
    "tests/norms/test_golden.py",
    "tests/norms/test_numerical_gradients.py",
    "tests/norms/test_accuracy.py",
    "tests/norms/test_array_kinds.py",
    "tests/norms/test_exponential_norm.py",
    "tests/norms/test_frozen_statistics.py",
    "tests/norms/test_labels.py",
    "tests/norms/test_missing_values.py",
    "tests/norms/test_moments.py",
    "tests/norms/test_moving_missing.py::test_any_call_agrees_with_the_definition",
    "tests/norms/test_moving_norm.py",
    "tests/norms/test_outputs.py",
    "tests/norms/test_quantiles.py",
    "tests/norms/test_residual.py",
    "tests/norms/test_robust.py",
    "tests/norms/test_running_statistics.py",
    "tests/norms/test_sparse.py",
    "tests/norms/test_weighted.py",
    "tests/recurrent/test_lstm.py::test_definition",
    "tests/recurrent/test_recurrent_cells.py::test_definition",
    "tests/recurrent/test_recurrent_cells.py::test_gradients",
    "tests/recurrent/test_recurrent_cells.py::test_zoneout",
    "tests/api",
    "tests/autograd/test_autograd_norms.py",
    "tests/project/test_structure.py",
    "tests/sklearn/test_row_estimators.py",
    "tests/xarray/test_xarray_norms.py",
]
# As Python, tests of large arrays, memory and threads take long and show little.
SLOW = ["memory", "threads", "test_large", "many", "loads_no_other"]

# These compile their kernels.
COMPILED = [
    "tests/cpu/memory/test_nontemporal.py::test_rows_are_those_of_few_rows[24-1000-float32]",
    "tests/norms/test_definitions.py::test_every_norm[layer-float32-both]",
    "tests/norms/test_definitions.py::test_every_norm[layer-first-axis-float32-both]",
    "tests/norms/test_definitions.py::test_every_norm[rms-bfloat16-gamma]",
    "tests/norms/test_definitions.py::test_every_norm[batch-float32-both]",
    "tests/norms/test_definitions.py::test_every_norm[batch-images-float32-both]",
    "tests/norms/test_definitions.py::test_sizes_for_threads[layer-float32-none]",
    "tests/norms/test_definitions.py::test_sizes_for_threads[layer-wide-float32-none]",
    "tests/recurrent/test_matmul.py",
    "tests/recurrent/test_lstm.py::test_definition_at_any_size[layer-paper-5-33]",
]


def main() -> int:
    """Run the tests, and return a status that is not 0 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", action="store_true", help="stop at the first failure")
    known, others = parser.parse_known_args()
    options = [*WORKERS, *(["-x"] if known.first else []), *others]
    without = " and ".join(f"not {word}" for word in SLOW)
    runs = (
        ("1", ["--dist", "worksteal", *UNCOMPILED, "-k", without]),
        ("0", ["--dist", "loadfile", *COMPILED]),  # so that no kernel is compiled twice
    )
    for nojit, chosen in runs:
        env = {**os.environ, "NUMBA_DISABLE_JIT": nojit}
        # -P: numnorm as it is installed, not the folder that is the current one.
        pytest = [sys.executable, "-P", "-m", "pytest"]
        status = subprocess.call([*pytest, *options, *chosen], env=env)
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
