"""A Zarr array of 8 GB through two workers of 1 GB each, undisturbed and with one of them killed.

It needs 16 GB of disk in the folder for temporary files (`TMPDIR`), and some minutes.
"""

import os
import re
import shutil
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import numnorm

pytestmark = pytest.mark.slow
dask_array = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")
zarr = pytest.importorskip("zarr")

WIDTH = 1024
CHUNK = 4096  # rows: 16 MB of float32, and a multiple of `chunk_multiple`
CHUNKS = 512
LIMIT = 1_000_000_000


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """The path of an array whose chunks differ, in scale and in offset."""
    folder = tmp_path_factory.mktemp("larger")
    write_source(folder / "x.zarr", CHUNKS)
    yield folder / "x.zarr"
    shutil.rmtree(folder)


def write_source(path, chunks):
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal((CHUNK, WIDTH), np.float32)
    array = new_array(path, chunks)
    for k in range(chunks):
        array[k * CHUNK : (k + 1) * CHUNK] = drawn * np.float32(1 + k % 7) + np.float32(k % 50)


def new_array(path, chunks):
    return zarr.create_array(
        store=str(path),
        shape=(chunks * CHUNK, WIDTH),
        chunks=(CHUNK, WIDTH),
        dtype=np.float32,
        compressors=None,
    )


def parts(path):
    """Yield an array on disk chunk by chunk."""
    array = zarr.open_array(str(path), mode="r")
    for start in range(0, array.shape[0], CHUNK):
        yield array[start : start + CHUNK]


# The two norms. A lazy function, and what the result must be, chunk by chunk.


def layer_norm(x):
    return numnorm.layer_norm(x, *parameters())


def layer_norm_of_parts(path):
    for x in parts(path):
        yield numnorm.layer_norm(x, *parameters()), None


def batch_norm(x):
    return numnorm.batch_norm(x, *parameters())


def batch_norm_of_parts(path):
    """As numnorm computes it for a stream, and by the definition in two passes of float64."""
    gamma, beta = parameters()
    moments = None
    for x in parts(path):
        moments = numnorm.batch_moments(x, after=moments)
    count = moments.count
    mean = sum(x.sum(0, dtype=np.float64) for x in parts(path)) / count
    variance = sum(np.square(x - mean).sum(0) for x in parts(path)) / count
    for x in parts(path):
        y = numnorm.batch_norm(
            x,
            gamma,
            beta,
            running_mean=moments.mean,
            running_var=moments.var(),
            training=False,
        )
        yield y, (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta


def parameters():
    gamma = np.linspace(0.5, 1.5, WIDTH, dtype=np.float32)
    return gamma, gamma[::-1].copy()


NORMS = [(layer_norm, layer_norm_of_parts), (batch_norm, batch_norm_of_parts)]


# What a worker tells of itself


def peak_memory():
    """The most memory that this process has had, in bytes."""
    status = Path("/proc/self/status").read_text("ascii")
    return 1024 * int(re.search(r"VmHWM:\s*(\d+)", status)[1])


def pauses(client):
    """The changes of the state of any worker: one that has too little memory is paused."""
    events = [
        event
        for topic in client.get_events().values()
        for _, event in topic
        if isinstance(event, dict)
    ]
    return [event for event in events if "paused" in event.values()]


def kill_midway(client, output, chunks):
    """Kill a worker when a quarter of the chunks is written; return how many were."""
    (victim, *_), folder = client.run(os.getpid).values(), output / "c"
    killed = []

    def watch():
        while written(folder) < chunks // 4:
            time.sleep(0.05)
        os.kill(victim, signal.SIGKILL)
        killed.append(written(folder))

    thread = threading.Thread(target=watch)
    thread.start()
    return thread, killed


def written(folder):
    return len(list(folder.iterdir())) if folder.exists() else 0


def run_on_cluster(norm, path, output, *, kill=False):
    """Write a norm of an array to a new array; return the seconds and the peaks of memory."""
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            memory_limit=LIMIT,
            dashboard_address=":0",
            local_directory=str(output.parent),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        x = dask_array.from_zarr(str(path))
        before = client.run(os.getpid)
        started = time.perf_counter()
        # For an array that exists, `to_zarr` would first merge chunks into some of 128 MB.
        writing = norm(x).store(new_array(output, x.numblocks[0]), lock=False, compute=False)
        if kill:
            thread, killed = kill_midway(client, output, x.numblocks[0])
        client.compute(writing, sync=True)
        seconds = time.perf_counter() - started
        if kill:
            thread.join()
            assert killed and killed[0] < x.numblocks[0]
        else:
            assert client.run(os.getpid) == before  # no worker was started again
        assert pauses(client) == []
        return seconds, list(client.run(peak_memory).values())


@pytest.mark.parametrize("kill", [False, True], ids=["undisturbed", "killed"])
@pytest.mark.parametrize("norm, of_parts", NORMS, ids=["layer_norm", "batch_norm"])
def test_larger_than_the_memory_of_all_workers(source, norm, of_parts, kill):
    output = source.parent / "y.zarr"
    try:
        seconds, peaks = run_on_cluster(norm, source, output, kill=kill)
        print(f"{seconds:.1f} s, at most {max(peaks) / 1e6:.0f} MB in a process")
        assert max(peaks) < LIMIT
        for y, (same, right) in zip(parts(output), of_parts(source), strict=True):
            np.testing.assert_array_equal(y, same)
            if right is not None:
                # An output of at most 20 is rounded to float32 a few times.
                np.testing.assert_allclose(y, right, rtol=0, atol=1e-5)
    finally:
        shutil.rmtree(output, ignore_errors=True)
