"""What every rank checks; test_mpi_ranks.py starts it with mpiexec."""

import runpy
import sys
from pathlib import Path

import numpy as np
from mpi4py import MPI

import numnorm

GALLERY = Path(__file__).parents[2] / "docs" / "gallery" / "mpi_batch_norm.py"
PAGE = runpy.run_path(str(GALLERY))
COMM = MPI.COMM_WORLD


def moments_of_ranks(channels, lengths):
    """The moments of all ranks by Allreduce, and those of the same samples in rank order."""
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((length, channels)) * 2 + 1e6 for length in lengths]
    merged = PAGE["moments_of_all"](COMM, parts[COMM.rank])
    return merged, np.concatenate(parts)


def check_moments(channels, lengths):
    merged, samples = moments_of_ranks(channels, lengths)
    wide = samples.astype(np.longdouble)
    mean = wide.mean(0)
    squares = ((wide - mean) ** 2).sum(0)
    assert merged.count == len(samples)
    # One rounding of the mean, and a few of a sum of squares with a merge for each rank.
    np.testing.assert_allclose(merged.mean, mean, rtol=2**-52)
    np.testing.assert_allclose(merged.m2, squares, rtol=32 * 2**-52)
    same = COMM.allgather(b"".join(array.tobytes() for array in merged[1:]))
    assert len(set(same)) == 1


def check_pieces():
    """The operation takes any number of records, as MPI cuts messages."""
    rng = np.random.default_rng(COMM.rank)
    below, above = (numnorm.batch_moments(rng.standard_normal((9, 7))) for _ in range(2))
    whole = PAGE["packed"](below.merge(above))
    for cut in range(1, 7):
        lower, upper = PAGE["packed"](below), PAGE["packed"](above)
        for piece in (slice(cut), slice(cut, None)):
            PAGE["merge"](lower[piece], upper[piece], None)
        np.testing.assert_array_equal(upper, whole)


def check_page(rows, channels):
    errors = PAGE["main"](rows, channels)
    # Moments are merged in another order, which a float64 shows. An output of float32 may then
    # round to its neighbour, and float32 gradients are sums that other blocks begin.
    allowed = {"running mean": 1e-14, "running variance": 1e-14}
    assert {n: e for n, e in errors.items() if e > allowed.get(n, 1e-6)} == {}


if __name__ == "__main__":
    size = COMM.size
    check_moments(3, [100 + 11 * rank for rank in range(size)])
    check_moments(3, [0, *[40] * (size - 1)] if size > 1 else [40])  # a rank without samples
    check_moments(50_000, [4] * size)  # 1.6 MB, more than one piece
    check_pieces()
    check_page(int(sys.argv[1]), int(sys.argv[2]))
