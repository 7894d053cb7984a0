"""A cluster that loses a process
==============================

Norms of a Zarr array by two processes, one of which is killed.

.. picture:: runs.dask_cluster
   :alt: Chunks on disk as seconds go by. After a process was killed, all are written in the end.

   A recorded run of two processes on a busy machine: chunks on disk, the first wait included.

Dask computes again what was lost with the process, and starts another one. The results have the
bytes of NumPy's. A cluster of many machines takes another line than the one with `LocalCluster`:
docs/clusters.md names some.

In the folder of the sources: ``pip install '.[dask,storage]'``, then
``python docs/gallery/dask_cluster.py``
"""

# sphinx_gallery_thumbnail_path = "generated/pictures/runs.dask_cluster-light.svg"

import os
import signal
import tempfile
import time
from pathlib import Path

import dask.array as da
import numpy as np
import zarr
from distributed import Client, LocalCluster

import numnorm


def written(path):
    """Return how many chunks of an array are on disk."""
    return len(list((path / "c").glob("*/*")))


def write_and_kill(client, lazy, path, kill):
    """Write a lazy array to a Zarr store; return the chunks on disk by time, and those at a kill.

    A process is killed when a quarter of the chunks is on disk.
    """
    chunks = tuple(lengths[0] for lengths in lazy.chunks)
    target = zarr.create_array(store=str(path), shape=lazy.shape, chunks=chunks, dtype=lazy.dtype)
    victim = next(iter(client.run(os.getpid).values()))
    start, killed, by_time = time.perf_counter(), None, [(0.0, 0)]
    writing = client.compute(lazy.store(target, lock=False, compute=False))
    while not writing.done():
        time.sleep(0.01)
        now = (round(time.perf_counter() - start, 2), written(path))
        by_time += [now] if now[1] > by_time[-1][1] else []
        if kill and not killed and now[1] >= lazy.npartitions // 4:
            os.kill(victim, signal.SIGKILL)
            killed = now
            print(f"  process {victim} killed after {now[1]} of {lazy.npartitions} chunks")
    writing.result()
    return {"written": by_time, "killed": killed}


def main(rows=100_000, width=256):
    """Normalize in several ways; return whether each has the bytes of NumPy's, and its course."""
    x = np.random.default_rng(0).standard_normal((rows, width), np.float32) * 3 + 100
    # Chunks of a multiple of `chunk_multiple` samples: batch norm then has NumPy's bytes, too.
    chunks = (2 * numnorm.chunk_multiple(x.shape), width)
    same, runs = {}, {}
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        source = Path(folder) / "x.zarr"
        zarr.create_array(store=str(source), data=x, chunks=chunks)
        for norm in (numnorm.layer_norm, numnorm.batch_norm):
            for kill in (False, True):
                name = f"{norm.__name__}{', a process killed' if kill else ''}"
                print(name)
                path = Path(folder) / f"{norm.__name__}-{kill}.zarr"
                runs[name] = write_and_kill(client, norm(da.from_zarr(str(source))), path, kill)
                client.wait_for_workers(2)
                y = zarr.open_array(str(path), mode="r")[:]
                same[name] = y.tobytes() == norm(x).tobytes()
                print(f"  the bytes of NumPy's: {same[name]}")
    return same, runs


if __name__ == "__main__":
    main()
