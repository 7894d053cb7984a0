"""The memory that a call needs in addition to its input, its output and its compiled code."""

from collections.abc import Callable
from contextlib import suppress

import numpy as np

import numnorm

from .arrays import Array
from .timing import need

# The number of rows that compiles the same kernels as all rows.
FEW = 256


def _forward_and_backward(x: Array, dy: Array, out: Array) -> None:
    saved = numnorm.layer_norm_forward(x, out=out)[1:]
    numnorm.layer_norm_backward(dy, x, *saved, out=out)


def _stream(x: Array, dy: Array, out: Array) -> None:
    moments = None
    for chunk in np.split(x, 4):
        moments = numnorm.batch_moments(chunk, after=moments)


def _quantiles(x: Array) -> None:
    total = None
    for chunk in np.split(x, 4):
        total = numnorm.quantiles(chunk, after=total)
    assert total is not None
    total.median()


CALLS: dict[str, Callable[[Array, Array, Array], object]] = {
    "nothing": lambda x, dy, out: None,
    "layer_norm": lambda x, dy, out: numnorm.layer_norm(x),
    "layer_norm out=": lambda x, dy, out: numnorm.layer_norm(x, out=out),
    "layer_norm forward and backward out=": _forward_and_backward,
    "batch_norm out=": lambda x, dy, out: numnorm.batch_norm(x, out=out),
    "batch_moments of four chunks": _stream,
    "quantiles of four chunks": lambda x, dy, out: _quantiles(x),
    "layer_norm of NaN out=": lambda x, dy, out: numnorm.layer_norm(x, nan_policy="omit", out=out),
    "batch_norm of NaN out=": lambda x, dy, out: numnorm.batch_norm(x, nan_policy="omit", out=out),
    "moving_norm out=": lambda x, dy, out: numnorm.moving_norm(x, 300, axis=0, out=out),
    "exponential_norm out=": lambda x, dy, out: numnorm.exponential_norm(x, 0.01, axis=0, out=out),
}

# What later commits brought, for `need`.
NEEDS = {
    "quantiles of four chunks": ("quantiles",),
    "layer_norm of NaN out=": ("layer_norm", "nan_policy"),
    "batch_norm of NaN out=": ("batch_norm", "nan_policy"),
    "moving_norm out=": ("moving_norm",),
    "exponential_norm out=": ("exponential_norm",),
}


class Memory:
    """Arrays of 64 MB; the memory of a call is its peak minus that of `nothing`."""

    params = tuple(CALLS)
    param_names = ("call",)

    def setup_cache(self) -> None:
        """Compile in a separate process, because the compiler needs more memory than the arrays."""
        self._prepare()

    def setup(self, name: str) -> None:
        """Make arrays and touch their pages; load the compiled code of every call."""
        if name in NEEDS:
            need(*NEEDS[name])
        self._prepare()

    def _prepare(self) -> None:
        self.arrays = [np.ones((16384, 1024), np.float32) for _ in range(3)]
        for call in CALLS.values():
            # What a commit does not have yet fails by itself, in its own benchmark.
            with suppress(AttributeError, TypeError):
                call(*(array[:FEW] for array in self.arrays))

    def peakmem_call(self, name: str) -> None:
        """One call on all rows."""
        CALLS[name](*self.arrays)
