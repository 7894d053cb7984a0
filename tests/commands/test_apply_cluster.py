"""``numnorm apply --scheduler``: the same bytes on the workers of a Dask cluster."""

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from array_files import apply, bits, draw, load, save, snapshot

import numnorm
from numnorm.commands.apply import run, statistics
from numnorm.norms.batch import block_moments

distributed = pytest.importorskip("distributed", reason="distributed is not installed")
pytestmark = pytest.mark.filterwarnings("ignore")  # of its own threads and sockets

X = draw((3000, 4, 5))
SMALL = ("--block-size", "0.02")  # 262 samples


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def threads():
    """A cluster whose workers are threads of this process."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=2, processes=False, dashboard_address=None
    ) as local:
        yield local.scheduler_address


@pytest.mark.parametrize(
    ("source", "method", "options", "keywords"),
    [
        ("x.npy", "layer_norm", (), {}),
        ("x.h5::/x", "batch_norm", (), {}),
        ("x.zarr", "batch_norm", ("--channel-axis", "0"), {"channel_axis": 0}),
        ("x.zarr", "group_norm", ("--groups", "2"), {"groups": 2}),
        (
            "x.zarr",
            "moving_norm",
            ("--axis", "0", "--window", "30", "--center"),
            {"axis": 0, "window": 30, "center": True},
        ),
        (
            "x.npy",
            "exponential_norm",
            ("--alpha", "0.1", "--initial", "2"),
            {"alpha": 0.1, "initial": 2},
        ),
        ("x.npy", "robust_norm", (), {}),
        (
            "x.zarr",
            "robust_norm",
            ("--axis", "0", "1", "--scale", "iqr"),
            {"axis": (0, 1), "scale": "iqr"},
        ),
    ],
)
def test_same_bits_as_in_memory(capsys, threads, source, method, options, keywords):
    save(source, X, **({"chunks": (100, 4, 5)} if source != "x.npy" else {}))
    arguments = (method, source, "y.zarr", *options, *SMALL, "--scheduler", threads)
    assert apply(capsys, *arguments) == (0, "")
    assert bits(load("y.zarr")) == bits(getattr(numnorm, method)(X, **keywords))
    assert len(os.listdir()) == 2


def test_parameters_reach_the_workers(capsys, threads):
    np.save("x.npy", X)
    np.save("gamma.npy", draw(5))
    arguments = ("layer_norm", "x.npy", "y.zarr", "--gamma", "gamma.npy", "--scheduler", threads)
    assert apply(capsys, *arguments) == (0, "")
    assert bits(load("y.zarr")) == bits(numnorm.layer_norm(X, draw(5)))


@pytest.mark.parametrize("policy", ["omit", "raise"])
def test_batch_norm_with_missing_values(capsys, threads, policy):
    x = X.copy()
    x[np.random.default_rng(1).random(x.shape) < 0.1] = np.nan
    np.save("x.npy", x)
    words = ("batch_norm", "x.npy", "y.zarr", *SMALL, "--scheduler", threads)
    status, said = apply(capsys, *words, "--nan-policy", policy)
    if policy == "raise":
        assert (status, said.count("\n"), "must not contain NaN" in said) == (2, 1, True)
        assert os.listdir() == ["x.npy"]
        return
    assert (status, said) == (0, "")
    exact = x.astype(np.longdouble)
    mean, var = (f(exact, axis=(0, 2), keepdims=True) for f in (np.nanmean, np.nanvar))
    # The roundoff of the results is that of float32, a few units of those of size 1.
    expected = (exact - mean) / np.sqrt(var + 1e-5)
    np.testing.assert_allclose(load("y.zarr"), expected, rtol=2.0**-22, atol=2.0**-22)


def test_a_run_goes_on_on_a_cluster_and_back(capsys, threads, monkeypatch):
    np.save("x.npy", X)
    arguments = ("batch_norm", "x.npy", "y.zarr", *SMALL, "--resume")
    add, scheduler = run.Cluster.normalize, ("--scheduler", threads)

    def some(self, *words):
        for number, result in enumerate(add(self, *words)):
            if number == 3:
                raise KeyboardInterrupt
            yield result

    monkeypatch.setattr(run.Cluster, "normalize", some)
    assert apply(capsys, *arguments, *scheduler)[0] == 130
    (work,) = Path().glob("y.zarr.numnorm-*.tmp")
    assert len((work / "done").read_text().split()) == 3
    monkeypatch.setattr(run.Cluster, "normalize", add)
    assert apply(capsys, *arguments, *scheduler) == (0, "")
    assert bits(load("y.zarr")) == bits(numnorm.batch_norm(X))
    assert apply(capsys, "batch_norm", "x.npy", "z.zarr", *SMALL) == (0, "")
    assert list(snapshot("y.zarr").values()) == list(snapshot("z.zarr").values())


def test_an_interrupted_run_leaves_nothing(capsys, threads, monkeypatch):
    np.save("x.npy", X)

    def interrupted(self, number):
        raise KeyboardInterrupt

    monkeypatch.setattr("numnorm.commands.apply.journal.Journal.note_written", interrupted)
    arguments = ("layer_norm", "x.npy", "y.zarr", *SMALL, "--scheduler", threads)
    assert apply(capsys, *arguments) == (130, "numnorm apply: interrupted\n")
    time.sleep(0.2)
    assert os.listdir() == ["x.npy"]


def test_an_error_of_a_worker_is_one_line(capsys, threads):
    save("x.zarr", X, chunks=(100, 4, 5))
    Path("x.zarr/c/7/0/0").write_bytes(b"nothing of zstd")
    for method in ("layer_norm", "batch_norm"):
        status, said = apply(capsys, method, "x.zarr", "y.zarr", *SMALL, "--scheduler", threads)
        assert (status, said.count("\n")) == (2, 1)
        assert "x.zarr has a chunk that cannot be read" in said
        assert os.listdir() == ["x.zarr"]


@pytest.mark.parametrize("output", ["y.npy", "y.h5::/y"])
def test_files_with_one_writer_are_refused(capsys, output):
    np.save("x.npy", X)
    arguments = ("layer_norm", "x.npy", output, "--scheduler", "tcp://127.0.0.1:1")
    assert apply(capsys, *arguments) == (
        2,
        "numnorm apply: error: --scheduler writes Zarr alone: "
        "workers cannot write to one file at once\n",
    )
    assert os.listdir() == ["x.npy"]


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:1", "nobody://x", "no address"])
def test_a_scheduler_that_is_not_there(capsys, monkeypatch, address):
    monkeypatch.setattr(run, "_TIMEOUT", 0.5)
    np.save("x.npy", X)
    begin = time.monotonic()
    arguments = ("layer_norm", "x.npy", "y.zarr", "--scheduler", address)
    status, said = apply(capsys, *arguments)
    assert (status, said.count("\n")) == (2, 1), said
    assert said.startswith(f"numnorm apply: error: the scheduler {address} cannot be reached: ")
    assert time.monotonic() - begin < 5
    assert os.listdir() == ["x.npy"]


def test_a_library_that_is_not_installed_is_named(capsys, monkeypatch):
    np.save("x.npy", X)
    monkeypatch.setitem(sys.modules, "distributed", None)
    arguments = ("layer_norm", "x.npy", "y.zarr", "--scheduler", "tcp://127.0.0.1:1")
    status, said = apply(capsys, *arguments)
    assert (status, said.count("\n"), 'pip install "numnorm[dask]"' in said) == (2, 1, True)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("dtype", "spread"),
    [(dtype, 1.0) for dtype in ("f2", "f4", "f8", "i4")]
    + [("f4", spread) for spread in (0.0, 1e-44, 1e8, 1e37, np.nan)],
)
def test_moments_of_blocks_merge_to_the_bytes_of_the_whole(dtype, spread):
    step = numnorm.chunk_multiple((1, 3, 500))
    assert step < 100
    with np.errstate(all="ignore"):
        x = (draw((6 * step + 5, 3, 500), np.float64) * spread).astype(dtype)
    for length in (step, 3 * step):
        parts = [
            (1, block_moments(x[start : start + length], 1, 3))
            for start in range(0, len(x), length)
        ]
        merged = statistics.merged_statistics(1, parts, lambda size: None)
        whole = numnorm.batch_moments(x)
        assert list(map(bits, merged)) == list(map(bits, (whole.mean, whole.var())))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize("method", ["layer_norm", "batch_norm"])
def test_a_worker_that_dies_midway(capsys, method):
    """Two worker processes of 1 GB; one is killed when a few boxes are written."""
    shape = (120_000, 256)
    save("x.zarr", draw(shape), chunks=(2000, 256))
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, memory_limit="1GB", dashboard_address=None
    ) as local:
        first = next(iter(local.workers.values())).pid
        killed = threading.Event()

        def kill():
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline and not killed.is_set():
                for done in Path().glob("y.zarr.numnorm-*.tmp/done"):
                    with contextlib.suppress(OSError):
                        if done.stat().st_size > 4:
                            os.kill(first, signal.SIGKILL)
                            killed.set()
                time.sleep(0.005)

        thread = threading.Thread(target=kill)
        thread.start()
        options = ("--block-size", "2", "--scheduler", local.scheduler_address)
        outcome = apply(capsys, method, "x.zarr", "y.zarr", *options)
        thread.join()
    assert killed.is_set()
    assert outcome == (0, "")
    assert bits(load("y.zarr")) == bits(getattr(numnorm, method)(draw(shape)))
    assert sorted(os.listdir()) == ["x.zarr", "y.zarr"]
