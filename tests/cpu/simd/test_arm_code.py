"""The machine code for 64-bit ARM, which any processor compiles: vectors, and fused operations."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from every_call import COMPILED

pytestmark = pytest.mark.skipif(not COMPILED, reason="Numba compiles nothing")
CODE = Path(__file__).parents[2] / "support" / "arm_code.py"


def kernels_of(folder, target, *arguments):
    """Return the names of kernels, and the counts of their instructions."""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, CODE, target, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    return [(counts.pop("kernel"), counts) for counts in map(json.loads, done.stdout.splitlines())]


def check(kernels, starts):
    """Hold kernels whose names start so to vectors with fused operations, and few others."""
    chosen = [(name, counts) for name, counts in kernels if name.startswith(starts)]
    assert {next(s for s in starts if name.startswith(s)) for name, _ in chosen} == {*starts}
    for name, counts in chosen:
        fused = counts["fused_neon"] + counts["fused_sve"]
        assert fused >= 16, name
        # Those of single numbers are the last steps of a row's or channel's statistics.
        assert counts["fused_scalar"] < fused / 4, name


def test_moving_means_have_vectors_and_fused_operations(tmp_path):
    check(kernels_of(tmp_path, "neoverse-n1", "moving_norm"), ("numnorm_moving_window",))


@pytest.mark.parametrize(
    "target",
    [
        pytest.param(name, marks=pytest.mark.full if name == "neoverse-n1" else pytest.mark.slow)
        for name in ("apple-m1", "neoverse-n1", "neoverse-v1", "neoverse-v2")
    ],
)
def test_every_family_has_vectors_and_fused_operations(tmp_path, target):
    kernels = kernels_of(tmp_path, target)
    rows = "numnorm_row_forward", "numnorm_row_backward"
    columns = "numnorm_column_moments_a", "numnorm_column_forward", "numnorm_column_sums"
    cells = "numnorm_matmul_rows", "numnorm_lstm_forward", "numnorm_lstm_backward"
    check(kernels, (*rows, *columns, "numnorm_column_dx", "numnorm_moving_exponential", *cells))
    counted = dict(kernels)  # large results go past the caches
    for name in ("row_forward_affine", "row_backward_affine", "column_forward_across"):
        assert counted[f"numnorm_{name}_float32"]["nontemporal"] > 0, name
