"""Runs pages of the gallery that the site does not run, and writes what came out.

``python tests/support/gallery_runs.py torch_autograd`` writes a file in docs/gallery/runs, from
which the site draws the page's picture. The library of the page must be installed; for
`mpi_batch_norm` mpiexec, too.
"""

import argparse
import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
GALLERY = ROOT / "docs" / "gallery"
RANKS = (2, 3, 4)


def run(name, **options):
    """Return what `main` of a page returns."""
    return runpy.run_path(str(GALLERY / f"{name}.py"))["main"](**options)


def record_of(name):
    """Return what is recorded of a page."""
    return {
        "dask_cluster": dask_cluster,
        "mpi_batch_norm": mpi_batch_norm,
        "fused_layer_norm": fused_layer_norm,
        "torch_autograd": torch_autograd,
    }[name]()


def torch_autograd():
    """Return the losses with numnorm's layer norm and with PyTorch's."""
    _, mine, own = run("torch_autograd")
    return {"numnorm": mine, "torch.nn.LayerNorm": own}


def dask_cluster():
    """Return how many chunks were written at which seconds, and when a process was killed."""
    _, runs = run("dask_cluster")
    return runs


def mpi_batch_norm():
    """Return the differences from one process, for some numbers of ranks."""
    program = (
        "import json, runpy; from mpi4py import MPI;"
        f"errors = runpy.run_path({str(GALLERY / 'mpi_batch_norm.py')!r})['main']();"
        "MPI.COMM_WORLD.rank or print(json.dumps(errors))"
    )
    mpiexec = shutil.which("mpiexec", path=Path(sys.executable).parent) or "mpiexec"
    records = {}
    for ranks in RANKS:
        command = [mpiexec, "-n", str(ranks), sys.executable, "-m", "mpi4py", "-c", program]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        records[ranks] = json.loads(printed.splitlines()[-1])
    return records


def fused_layer_norm():
    """Return the differences from NumPy, of a few rows on a device in Python."""
    sys.path.insert(0, str(ROOT / "tests" / "cuda" / "support"))
    import simulated_target
    from simulated_numba import instead_of_numba

    sys.modules["numnorm.backends.cuda.compiler.target"] = simulated_target
    with instead_of_numba():
        errors = run("fused_layer_norm", rows=8)
    return dict(zip(("y", "dx", "dgamma", "dbeta", "dbias"), map(float, errors), strict=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="+", help="such as torch_autograd")
    for name in parser.parse_args().pages:
        path = GALLERY / "runs" / f"{name}.json"
        path.write_text(json.dumps(record_of(name), indent=1) + "\n", "utf-8")
