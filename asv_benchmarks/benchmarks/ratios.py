"""How many copies of its input take as long as a norm: what a noisy machine blurs least."""

import timeit
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numba
import numpy as np

from .arrays import drawn
from .calls import CALLS, OF_IMAGES, OF_MATRICES

# In a core's own cache, or beyond every cache: in between, it counts who else uses the shared one.
MATRICES = [(1, 256), (32, 512), (4096, 1024), (65536, 64)]
IMAGES = [(32, 64, 56, 56)]

# Short, so that whatever slows one of the two down slows down the other as well.
BATCH_SECONDS = 0.002
ROUNDS = 100


class _Ratios:
    """On one thread, as a copy has, and into arrays that are there already."""

    unit = "copies"

    def prepare(self, norm: str, shape: tuple[int, ...]) -> None:
        numba.set_num_threads(1)
        self.x, dy = drawn(shape)
        self.calls = CALLS[norm](self.x, dy)

    def track_forward(self, *_: object) -> float:
        """The output alone."""
        return self.copies(self.calls.forward)

    def track_backward(self, *_: object) -> float:
        """Every gradient; it reads two arrays, so that no kernel reaches 1."""
        return self.copies(self.calls.backward)

    def copies(self, call: Callable[..., Any]) -> float:
        """Return the median of what the rounds say."""
        # Where numnorm itself places a result; the gradients of parameters come after that of x.
        out = call()
        out = out[0] if isinstance(out, tuple) else out
        norm, copy = _batch(partial(call, out=out)), _batch(partial(np.copyto, out, self.x))
        return round(median(norm() / copy() for _ in range(ROUNDS)), 3)


def _batch(call: Callable[[], Any]) -> Callable[[], float]:
    """Return a function that says how long a call takes, from as many as fill the batch."""
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
