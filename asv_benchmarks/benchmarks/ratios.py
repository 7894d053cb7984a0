"""The time of a norm as a multiple of a copy of its input, which is robust to noise."""

import timeit
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numba
import numpy as np

from .arrays import drawn
from .calls import CALLS, OF_IMAGES, OF_MATRICES

# These fit in a core's own cache or exceed all caches: other processes disturb the shared cache.
MATRICES = [(1, 256), (32, 512), (4096, 1024), (65536, 64)]
IMAGES = [(32, 64, 56, 56)]

# Short, so that disturbances slow down both calls.
BATCH_SECONDS = 0.002
ROUNDS = 50


class _Ratios:
    """On one thread, like the copy, and into existing arrays."""

    unit = "copies"

    def prepare(self, norm: str, shape: tuple[int, ...]) -> None:
        numba.set_num_threads(1)
        self.x, dy = drawn(shape)
        self.calls = CALLS[norm](self.x, dy)

    def track_forward(self, *_: object) -> float:
        """The output alone."""
        return self.copies(self.calls.forward)

    def track_backward(self, *_: object) -> float:
        """All gradients; this reads two arrays, so that it cannot reach 1."""
        return self.copies(self.calls.backward)

    def copies(self, call: Callable[..., Any]) -> float:
        """Return the median ratio of the rounds."""
        # The array of a result, for the alignment that numnorm gives it.
        out = call()
        out = out[0] if isinstance(out, tuple) else out
        norm, copy = _batch(partial(call, out=out)), _batch(partial(np.copyto, out, self.x))
        return round(median(norm() / copy() for _ in range(ROUNDS)), 3)


def _batch(call: Callable[[], Any]) -> Callable[[], float]:
    """Return a function that times a batch of calls and returns the seconds of one."""
    timer = timeit.Timer(call)
    number = max(1, round(BATCH_SECONDS / min(timer.repeat(5, 1))))
    return lambda: timer.timeit(number) / number


class Matrices(_Ratios):
    """Samples and features, in float32."""

    params = (list(OF_MATRICES), MATRICES)
    param_names = ("norm", "shape")

    def setup(self, norm: str, shape: tuple[int, int]) -> None:
        """Make the data and the calls."""
        self.prepare(norm, shape)


class Images(_Ratios):
    """Samples, channels, height and width, in float32."""

    params = (list(OF_IMAGES), IMAGES)
    param_names = ("norm", "shape")

    def setup(self, norm: str, shape: tuple[int, int, int, int]) -> None:
        """Make the data and the calls."""
        self.prepare(norm, shape)
