"""Norms of Dask arrays: beside one call on the whole array, and the time to make the graph."""

from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import dask
import dask.array as da
import numba
import numpy as np

import numnorm

from .arrays import drawn
from .timing import Timed, need

NORMS: dict[str, Callable[..., Any]] = {
    "layer_norm": numnorm.layer_norm,
    "batch_norm": numnorm.batch_norm,
}

SHAPE = (32768, 1024)
ROUNDS = 7


class Throughput:
    """The threaded scheduler, on as many threads as the call on the whole array has."""

    params = (list(NORMS), [1024, 8192])
    param_names = ("norm", "rows of a block")
    unit = "calls"

    def setup(self, norm: str, rows: int) -> None:
        """Make the data, and the graph."""
        need("chunk_multiple")
        self.x, _ = drawn(SHAPE)
        self.out = np.empty_like(self.x)
        self.lazy = NORMS[norm](da.from_array(self.x, chunks=(rows, SHAPE[1])))

    def track_beside_one_call(self, norm: str, _: int) -> float:
        """The time to compute all blocks and put them into an array, over that of one call."""
        threads = numba.config.NUMBA_NUM_THREADS
        options = {"lock": False, "scheduler": "threads", "num_workers": threads}
        blocks, whole = partial(self.lazy.store, self.out, **options), partial(NORMS[norm], self.x)
        blocks(), whole()  # compiles
        return round(median(_seconds(blocks) / _seconds(whole) for _ in range(ROUNDS)), 3)


class Graph(Timed):
    """The time to make the graph of an array of a number of blocks; nothing is computed."""

    params = (list(NORMS), [16, 1024])
    param_names = ("norm", "blocks")

    def setup(self, norm: str, blocks: int) -> None:
        """Make the array."""
        need("chunk_multiple")
        step = numnorm.chunk_multiple((1, 8))
        self.x = da.zeros((blocks * step, 8), np.float32, chunks=(step, 8))

    def time_construction(self, norm: str, _: int) -> None:
        """The call, and the graph as a scheduler gets it."""
        dict(NORMS[norm](self.x).__dask_graph__())

    def track_tasks(self, norm: str, _: int) -> int:
        """The number of tasks after Dask's optimization."""
        (optimized,) = dask.optimize(NORMS[norm](self.x))
        return len(dict(optimized.__dask_graph__()))


def _seconds(call: Callable[[], Any]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start
