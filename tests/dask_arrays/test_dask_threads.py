"""Graphs on the threads of Dask, under each of Numba's threading layers."""

import json
import os

import pytest
from every_call import COMPILED, in_new_process, skip_where_missing

pytest.importorskip("dask.array")
pytestmark = pytest.mark.skipif(not COMPILED, reason="threads need compiled kernels")

# One layer where the environment chooses it, as a session of nox does for each of them.
LAYERS = [os.environ.get("NUMBA_THREADING_LAYER", "")]
LAYERS = LAYERS if LAYERS[0] else ["workqueue", "omp", "tbb"]

GRAPHS = """
import json, sys, threading
import dask, dask.array as da, numpy as np
import every_call, numnorm

every_call.load_tbb()
x = np.random.default_rng(0).normal(size=(160, 4096)).astype(np.float32)
gamma = np.linspace(0.5, 2.0, 4096, dtype=np.float32)
launches = every_call.Launches()
forward, backward = (getattr(numnorm, sys.argv[1] + way) for way in ("_forward", "_backward"))
forward(x)
assert launches.take()  # such arrays are large enough for threads

def graph(lazy):
    y, mean, rstd = forward(lazy, gamma)
    return y, *backward(y, lazy, mean, rstd, gamma)

def digest(chunks):
    lazy = graph(da.from_array(x, chunks=chunks))
    arrays = dask.compute(*lazy, scheduler="threads", num_workers=4)
    return b"".join(array.tobytes() for array in arrays)

expected = {chunks: digest(chunks) for chunks in ((40, -1), (80, 1024))}
wrong = []

def work(chunks):
    for _ in range(50):
        if digest(chunks) != expected[chunks]:
            wrong.append(chunks)

threads = [threading.Thread(target=work, args=(chunks,)) for chunks in expected for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps([wrong, launches.take()]))
"""


@pytest.mark.parametrize("norm", ["layer_norm", "batch_norm"])
@pytest.mark.parametrize("layer", LAYERS)
def test_graphs_on_threads_of_dask(layer, norm):
    """200 graphs, four at a time; no block launches threads of its own."""
    skip_where_missing(layer)
    environment = {"NUMBA_THREADING_LAYER": layer, "NUMBA_NUM_THREADS": "2"}
    assert json.loads(in_new_process("-c", GRAPHS, norm, **environment)) == [[], []]
