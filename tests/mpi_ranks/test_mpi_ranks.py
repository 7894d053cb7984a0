"""The recipe docs/gallery/mpi_batch_norm.py, on one rank and on several."""

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("mpi4py", reason="mpi4py is not installed")
MPIEXEC = shutil.which("mpiexec", path=sysconfig.get_path("scripts")) or shutil.which("mpiexec")
pytestmark = pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec")


def on_ranks(ranks, script, *arguments):
    # `-m mpi4py` ends all ranks if one raises an error; otherwise they would wait for it.
    command = [MPIEXEC, "-n", str(ranks), sys.executable, "-m", "mpi4py", str(script)]
    done = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_equal_one_process(ranks):
    script = Path(__file__).with_name("rank_checks.py")
    # 10,000 samples are ten blocks of `chunk_multiple`. 900 are one, which the last rank has.
    for rows in (10_000, 900):
        assert f"on {ranks} ranks" in on_ranks(ranks, script, rows, 8)


def test_gallery():
    page = Path(__file__).parents[2] / "docs" / "gallery" / "mpi_batch_norm.py"
    printed = on_ranks(2, page).splitlines()
    assert printed[0] == "2 batches of 50000 x 32 on 2 ranks"
    assert len(printed) == 7
    recorded = json.loads((page.parent / "runs" / "mpi_batch_norm.json").read_text("utf-8"))
    names = [line.partition(":")[0].strip() for line in printed[1:]]
    for errors in recorded.values():
        # Roundings of float32, of gradients that are sums of 50,000 products.
        assert list(errors) == names and max(errors.values()) < 1e-6
