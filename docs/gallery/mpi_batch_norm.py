"""Batch norm over the ranks of MPI
================================

Batch norm of samples that lie in several processes, with MPI.

.. picture:: runs.mpi_batch_norm
   :alt: Differences of two to four ranks from one process: some roundings of float32.

   A recorded run: differences of the ranks from one process.

Each rank reads its own samples. One Allreduce merges their moments, and each rank normalizes its
samples by the statistics of all; a second one adds the gradients of gamma and beta.

In the folder of the sources: ``pip install '.[mpi]'``, then
``mpiexec -n 2 python docs/gallery/mpi_batch_norm.py``
"""

# sphinx_gallery_thumbnail_path = "generated/pictures/runs.mpi_batch_norm-light.svg"

import tempfile
from pathlib import Path

import numpy as np
from mpi4py import MPI

import numnorm

EPS, MOMENTUM = 1e-5, 0.1

# A channel's count, mean, m2 and mean_lo. MPI may cut a message into pieces between two elements of
# its datatype, so that a piece has whole records.
RECORD = MPI.DOUBLE.Create_contiguous(4).Commit()


def packed(moments):
    """Return moments as records, one row for each channel."""
    count = np.full_like(moments.mean, moments.count)
    return np.stack([count, moments.mean, moments.m2, moments.mean_lo], axis=1)


def unpacked(records):
    """Return records as moments."""
    count, mean, m2, mean_lo = records.T
    return numnorm.Moments(int(count[0]), mean, m2, mean_lo)


def merge(lower, upper, datatype):
    """Merge the records of lower ranks into those of higher ranks; MPI calls it."""
    below, above = (np.frombuffer(buffer).reshape(-1, 4) for buffer in (lower, upper))
    above[:] = packed(unpacked(below).merge(unpacked(above)))


# The ranks are merged in their order: the result does not depend on who arrives first.
MERGE = MPI.Op.Create(merge, commute=False)


def moments_of_all(comm, x):
    """Return the moments of the samples of all ranks, the same bytes on each rank."""
    records = packed(numnorm.batch_moments(x))
    merged = np.empty_like(records)
    comm.Allreduce([records, len(records), RECORD], [merged, len(records), RECORD], MERGE)
    return unpacked(merged)


def forward(comm, x, gamma, beta, running):
    """Return y, mean and rstd of this rank's samples, and the count of all; update `running`."""
    moments = moments_of_all(comm, x)
    mean, variance = moments.mean, moments.var()
    normalized = numnorm.batch_norm_forward(
        x, gamma, beta, running_mean=mean, running_var=variance, training=False, eps=EPS
    )
    for old, new in zip(running, (mean, moments.var(ddof=1)), strict=True):
        old += MOMENTUM * (new - old)
    return *normalized, moments.count


def backward(comm, dy, x, mean, rstd, gamma, count):
    """Return dx of this rank's samples, and dgamma and dbeta of all samples."""
    own = numnorm.batch_norm_backward(dy, x, mean, rstd, gamma, training=False)
    sums = np.stack([own.dgamma, own.dbeta]).astype(np.float64)
    comm.Allreduce(MPI.IN_PLACE, sums)
    dgamma, dbeta = sums
    # The formula in the docstring of `batch_norm_backward`, with the sums of all ranks.
    dx = gamma * rstd * (dy - (dbeta + (x - mean) * rstd * dgamma) / count)
    return dx.astype(x.dtype), dgamma, dbeta


def one_process(x, dy, gamma, beta, running):
    """Return y, dx, dgamma and dbeta of the whole array, without MPI; update `running`."""
    mean, variance = running
    y, *saved = numnorm.batch_norm_forward(
        x, gamma, beta, running_mean=mean, running_var=variance, momentum=MOMENTUM, eps=EPS
    )
    return y, *numnorm.batch_norm_backward(dy, x, *saved, gamma)


def samples_of(rank, size, rows, channels):
    """Return the samples of a rank as a slice; its ends are multiples of `chunk_multiple`.

    `batch_moments` takes float32 squares in blocks of that length. Ranks with whole blocks differ
    from one process only by the order in which float64 moments are merged.
    """
    step = numnorm.chunk_multiple((rows, channels))
    blocks = -(-rows // step)
    return slice(*(min(blocks * r // size * step, rows) for r in (rank, rank + 1)))


def compare(comm, path, channels, batches):
    """Return the largest differences from one process, relative to the largest values."""
    gamma, beta = np.linspace(1, 2, channels, dtype="f4"), np.linspace(-1, 1, channels, dtype="f4")
    running, expected_running = np.zeros((2, channels)), np.zeros((2, channels))
    errors = {}
    for batch in range(batches):
        file = np.load(path, mmap_mode="r")[:, batch]  # x and dy
        own = samples_of(comm.rank, comm.size, file.shape[1], channels)
        x, dy = np.array(file[:, own])
        y, mean, rstd, count = forward(comm, x, gamma, beta, running)
        dx, dgamma, dbeta = backward(comm, dy, x, mean, rstd, gamma, count)
        whole = one_process(*np.array(file), gamma, beta, expected_running)
        right = whole[0][own], whole[1][own], *whole[2:], *expected_running
        names = ("y", "dx", "dgamma", "dbeta", "running mean", "running variance")
        for name, one, two in zip(names, (y, dx, dgamma, dbeta, *running), right, strict=True):
            error = abs(one - two).max(initial=0) / abs(two).max(initial=1e-300)
            errors[name] = max(errors.get(name, 0), float(error))
    return {name: comm.allreduce(error, MPI.MAX) for name, error in errors.items()}


def main(rows=50_000, channels=32, batches=2):
    """Write samples to a file, compare the ranks with one process, and print the differences."""
    comm = MPI.COMM_WORLD
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples.npy"
        if comm.rank == 0:
            samples = np.random.default_rng(0).standard_normal((2, batches, rows, channels), "f4")
            samples[0] = samples[0] * 3 + 100
            np.save(path, samples)
        # The other ranks read the file of rank 0, and it waits for them.
        errors = compare(comm, comm.bcast(path), channels, batches)
    if comm.rank == 0:
        print(f"{batches} batches of {rows} x {channels} on {comm.size} ranks")
        for name, error in errors.items():
            print(f"{name:>16}: off by {error:.1e} of the largest")
    return errors


if __name__ == "__main__":
    main()
