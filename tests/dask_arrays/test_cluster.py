"""Norms of Dask arrays on a cluster of two processes, also where one of them is killed."""

import json
import os
import runpy
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import numnorm
from numnorm._dask import moments

dask = pytest.importorskip("dask")
dask_array = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

ROWS, WIDTH, BLOCKS = 1024, 32, 24  # of a block: a multiple of `chunk_multiple`


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=2,
            memory_limit="1GB",
            dashboard_address=":0",
            local_directory=str(tmp_path_factory.mktemp("cluster")),
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, BLOCKS * ROWS, WIDTH), np.float32)
    return x * 3 + 100, dy


def lazy(array):
    return dask_array.from_array(array, chunks=(ROWS, WIDTH))


# The same for arrays of NumPy and of Dask


def layer_norm(x, dy):
    y, mean, rstd = numnorm.layer_norm_forward(x, *parameters())
    return y, mean, rstd, *numnorm.layer_norm_backward(dy, x, mean, rstd, parameters()[0])


def batch_norm(x, dy):
    y, mean, rstd = numnorm.batch_norm_forward(x, *parameters())
    return y, mean, rstd, *numnorm.batch_norm_backward(dy, x, mean, rstd, parameters()[0])


def parameters():
    return np.linspace(1, 2, WIDTH, dtype="f4"), np.linspace(-1, 1, WIDTH, dtype="f4")


NORMS = pytest.mark.parametrize("norm", [layer_norm, batch_norm])


def assert_same(results, expected):
    for result, right in zip(results, expected, strict=True):
        np.testing.assert_array_equal(result, right)


@NORMS
def test_bytes_do_not_depend_on_the_workers(client, arrays, norm):
    x, dy = arrays
    results = norm(lazy(x), lazy(dy))
    alone = dask.compute(*results, scheduler="synchronous")
    worker, *_ = client.scheduler_info()["workers"]
    assert_same(client.compute(results, sync=True), alone)
    assert_same(client.compute(results, sync=True, workers=[worker]), alone)
    expected = norm(x, dy)
    assert_same(alone[:3], expected[:3])
    for result, right in zip(alone[3:], expected[3:], strict=True):
        # Sums of 24,576 products are taken in another order, and rounded to float32.
        np.testing.assert_allclose(result, right, rtol=0, atol=1e-6 * abs(right).max())


def slowly(block, folder):
    """Return a block as it is, after some time, and leave a file that says so."""
    time.sleep(0.05)
    os.close(tempfile.mkstemp(dir=folder)[0])
    return block


@NORMS
def test_a_killed_worker_changes_nothing(client, arrays, norm, tmp_path):
    x, dy = arrays
    meta = np.empty((0, 0), x.dtype)
    slow = lazy(x).map_blocks(slowly, str(tmp_path), dtype=x.dtype, meta=meta)
    results = norm(slow, lazy(dy))
    client.wait_for_workers(2, timeout=60)
    victim = next(iter(client.run(os.getpid).values()))
    running = client.compute(results)
    until(lambda: len(os.listdir(tmp_path)) >= BLOCKS // 3)
    assert not all(future.done() for future in running)
    os.kill(victim, signal.SIGKILL)
    assert_same(client.gather(running), dask.compute(*norm(lazy(x), lazy(dy))))
    until(lambda: victim not in client.run(os.getpid).values())


def until(true, seconds=60):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_zarr(client, arrays, tmp_path):
    zarr = pytest.importorskip("zarr")
    x, _ = arrays
    chunks = {"shape": x.shape, "chunks": (3 * ROWS // 2, WIDTH), "dtype": x.dtype}
    source = zarr.create_array(store=str(tmp_path / "x.zarr"), **chunks)
    source[:] = x
    read = dask_array.from_zarr(str(tmp_path / "x.zarr"))
    client.compute(
        numnorm.layer_norm(read).to_zarr(str(tmp_path / "y.zarr"), compute=False), sync=True
    )
    y = zarr.open_array(str(tmp_path / "y.zarr"), mode="r")
    assert y.chunks == source.chunks
    np.testing.assert_array_equal(y[:], numnorm.layer_norm(x))


def test_blocks_from_storage_are_not_kept_between_two_passes(tmp_path):
    zarr = pytest.importorskip("zarr")
    for name in ("x", "dy"):
        zarr.create_array(store=str(tmp_path / name), data=np.ones((8, 4)), chunks=(2, 4))
    x, dy = (dask_array.from_zarr(str(tmp_path / name)) for name in ("x", "dy"))
    for passes in (numnorm.batch_norm(x), numnorm.batch_norm_backward(dy, x, *np.ones((2, 4))).dx):
        # Each task that reads a block is fused with the one that uses it, in both passes.
        (optimized,) = dask.optimize(passes)
        names = {key[0].rpartition("-")[0] for key in optimized.dask if isinstance(key, tuple)}
        assert names and not {name for name in names if name.startswith("from-zarr")}
    # What was computed before is kept: nobody knows what it costs.
    scaled = x.map_blocks(np.sqrt, dtype=x.dtype)
    (optimized,) = dask.optimize(numnorm.batch_norm(scaled))
    assert any(key[0].startswith("sqrt") for key in optimized.dask if isinstance(key, tuple))


def test_moments_are_merged_once(monkeypatch):
    calls = []

    def counted(parts):
        calls.append(len(parts))
        return merged(parts)

    merged = moments.merged
    monkeypatch.setattr(moments, "merged", counted)
    x = dask_array.ones((64, 4), chunks=(2, 4))
    numnorm.batch_norm(x).compute(scheduler="synchronous")
    assert calls == [16, 17]  # the second begins with the result of the first


@pytest.mark.full
def test_gallery(capsys):
    pytest.importorskip("zarr")
    page = Path(__file__).parents[2] / "docs" / "gallery" / "dask_cluster.py"
    same, runs = runpy.run_path(str(page))["main"](rows=20_000)
    assert len(same) == 4 and all(same.values())
    recorded = json.loads((page.parent / "runs" / "dask_cluster.json").read_text("utf-8"))
    assert recorded.keys() == runs.keys() == same.keys()
    for run in (*recorded.values(), *runs.values()):
        seconds, chunks = zip(*run["written"], strict=True)
        assert list(seconds) == sorted(seconds) and list(chunks) == sorted(chunks)
    assert len({run["written"][-1][1] for run in recorded.values()}) == 1  # all chunks
    assert [name for name, run in runs.items() if run["killed"]] == list(runs)[1::2]
    assert capsys.readouterr().out.count("killed after") == 2
