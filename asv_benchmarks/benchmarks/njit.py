"""The time of norms that a user's compiled function calls."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np
from numba.core.errors import NumbaError

import numnorm

from .arrays import Array, drawn
from .timing import Timed


@numba.njit
def _layer_norm(x: Array) -> Array:
    return numnorm.layer_norm(x)


@numba.njit
def _batch_norm(x: Array) -> Array:
    return numnorm.batch_norm(x)


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "layer_norm": _layer_norm,
    "batch_norm": _batch_norm,
}


# asv runs `setup` before each sample.
@cache
def _compiled(norm: str) -> Callable[[Array], Array]:
    """Return the function, compiled; skip what the commit cannot compile yet."""
    try:
        FUNCTIONS[norm](np.ones((2, 4), np.float32))
    except NumbaError as error:
        raise NotImplementedError(norm) from error
    return FUNCTIONS[norm]


class Njit(Timed):
    """Matrices of float32; the function has one thread."""

    params = (list(FUNCTIONS), [(1, 256), (1024, 768)])
    param_names = ("norm", "shape")

    def setup(self, norm: str, shape: tuple[int, int]) -> None:
        """Compile the function."""
        self.x, _ = drawn(shape)
        self.function: Callable[..., Any] = _compiled(norm)

    def time_call(self, *_: object) -> None:
        """The output, newly allocated."""
        self.function(self.x)
