"""CPU seconds of first calls, which compile, as multiples of those of a plain layer norm.

A new process with an empty cache compiles the plain layer norm first and then a family of kernels::

    python asv_benchmarks/benchmarks/compile.py layer_norm

prints the multiple.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import numba
import numpy as np

import numnorm

with suppress(ImportError):  # a commit without cells fails for these alone
    from numnorm import rnn

Array = np.ndarray[Any, Any]

# The first runs serially, the second in parallel.
SHAPES = ((8, 64), (512, 512))
GROUPS = 8


@numba.njit(parallel=True)
def plain_layer_norm(x: Array, gamma: Array, beta: Array, eps: float) -> Array:
    """Layer norm as one writes it down."""
    y = np.empty_like(x)
    rows, width = x.shape
    for i in numba.prange(rows):
        mean = np.float32(0)
        for j in range(width):
            mean += x[i, j]
        mean /= width
        variance = np.float32(0)
        for j in range(width):
            variance += (x[i, j] - mean) ** 2
        rstd = 1 / np.sqrt(variance / width + eps)
        for j in range(width):
            y[i, j] = (x[i, j] - mean) * rstd * gamma[j] + beta[j]
    return y


def of_rows(norm: str, parameters: int, both: bool, x: Array) -> None:
    """A norm of rows, perhaps with its backward pass."""
    weights = [np.ones(x.shape[0 if norm == "weight_norm" else 1], x.dtype)] * parameters
    if not both:
        getattr(numnorm, norm)(x, *weights)
        return
    _, *saved = getattr(numnorm, f"{norm}_forward")(x, *weights)
    getattr(numnorm, f"{norm}_backward")(x, x, *saved, *weights[:1])


def of_groups(norm: str, x: Array) -> None:
    """Group or instance norm of as many channels."""
    weight = np.ones(GROUPS, x.dtype)
    options = {"groups": GROUPS // 2} if norm == "group_norm" else {}
    getattr(numnorm, norm)(x.reshape(len(x), GROUPS, -1), weight, weight, **options)


def of_cells(kind: str, x: Array) -> None:
    """A recurrent cell with layer norm, both ways, the columns as steps of few inputs."""
    x = np.ascontiguousarray(x.reshape(len(x), -1, 8).swapaxes(0, 1)[:8])
    rng = np.random.default_rng(0)
    parameters = getattr(rnn, f"{kind}_init")(8, 16, rng=rng, dtype=x.dtype)
    y, *_, saved = getattr(rnn, f"{kind}_forward")(x, parameters)
    getattr(rnn, f"{kind}_backward")(y, saved)


def of_missing(norm: str, x: Array) -> None:
    """A norm with a mask, both ways."""
    keep = x > x.min()
    _, *saved = getattr(numnorm, f"{norm}_forward")(x, where=keep)
    getattr(numnorm, f"{norm}_backward")(x, x, *saved, where=keep)


def of_steps(norm: str, number: float, x: Array) -> None:
    """A norm along an axis, both ways."""
    _, *saved = getattr(numnorm, f"{norm}_forward")(x, number, axis=0)
    getattr(numnorm, f"{norm}_backward")(x, x, *saved, number, axis=0)


FAMILIES: dict[str, Callable[[Array], None]] = {
    "layer_norm": partial(of_rows, "layer_norm", 2, False),
    "layer_norm both ways": partial(of_rows, "layer_norm", 2, True),
    "rms_norm": partial(of_rows, "rms_norm", 1, False),
    "ada_norm": partial(of_rows, "ada_norm", 0, False),
    "weight_norm": partial(of_rows, "weight_norm", 1, False),
    "group_norm": partial(of_groups, "group_norm"),
    "instance_norm": partial(of_groups, "instance_norm"),
    "batch_norm both ways": partial(of_rows, "batch_norm", 2, True),
    "layer_norm with a mask both ways": partial(of_missing, "layer_norm"),
    "batch_norm with a mask both ways": partial(of_missing, "batch_norm"),
    "moving_norm both ways": partial(of_steps, "moving_norm", 4),
    "exponential_norm both ways": partial(of_steps, "exponential_norm", 0.1),
    "lstm both ways": partial(of_cells, "lstm"),
    "gru both ways": partial(of_cells, "gru"),
    "rnn both ways": partial(of_cells, "rnn"),
}


# Those of the dashboard; the others share most of these kernels.
TRACKED = [
    "layer_norm both ways",
    "rms_norm",
    "group_norm",
    "batch_norm both ways",
    "layer_norm with a mask both ways",
    "batch_norm with a mask both ways",
    "moving_norm both ways",
    "exponential_norm both ways",
    "lstm both ways",
]


MISSING = 3
"""The exit status of a process that asks for what its commit does not have."""


class Compilation:
    """With float32, serially and in parallel."""

    params = (TRACKED,)
    param_names = ("family",)
    unit = "plain layer norms"

    def setup_cache(self) -> dict[str, float | None]:
        """Compile all families, two at a time: CPU seconds are counted, and asv waits less."""
        with ThreadPoolExecutor(2) as pool:
            return dict(zip(TRACKED, pool.map(_multiple, TRACKED), strict=True))

    def setup(self, multiples: dict[str, float | None], family: str) -> None:
        """Have asv skip what the commit does not have yet."""
        if multiples[family] is None:
            raise NotImplementedError(family)

    def track_first_calls(self, multiples: dict[str, float | None], family: str) -> float | None:
        """All kernels of a family."""
        return multiples[family]


def _multiple(family: str) -> float | None:
    """Return what a process with an empty cache prints, or None if the commit lacks the family."""
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, "-P", __file__, family],
            env={**os.environ, "NUMBA_CACHE_DIR": cache},
            stdout=subprocess.PIPE,
            check=False,
        )
    if done.returncode != MISSING:
        done.check_returncode()
        return float(done.stdout)
    return None


def main(family: str) -> None:
    """Print the multiple."""
    arrays = [np.random.default_rng(0).standard_normal(shape, np.float32) for shape in SHAPES]
    weight = np.ones(SHAPES[0][1], np.float32)
    begun = time.process_time()
    plain_layer_norm(arrays[0], weight, weight, 1e-5)
    plain = time.process_time() - begun
    begun = time.process_time()
    try:
        for x in arrays:
            FAMILIES[family](x)
    except (AttributeError, TypeError):  # no such function, or keyword, yet
        sys.exit(MISSING)
    print(round((time.process_time() - begun) / plain, 2))


if __name__ == "__main__":
    main(sys.argv[1])
