"""The time of recurrent cells with and without norms: whole sequences and single steps."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

import numpy as np

from .arrays import Array
from .timing import Timed, need

with suppress(ImportError):  # a commit without cells is skipped
    from numnorm import rnn

Shape = tuple[int, int, int, int]


# Cached as in `arrays`: orthogonal weights take long.
@lru_cache(maxsize=1)
def _drawn(shape: Shape, norm: str | None) -> tuple[Array, Array, rnn.LSTMParameters]:
    """Return an input, the gradient of the states, and parameters."""
    time, batch, inputs, units = shape
    rng = np.random.default_rng(0)
    x = rng.standard_normal((time, batch, inputs), np.float32)
    dy = rng.standard_normal((time, batch, units), np.float32)
    return x, dy, rnn.lstm_init(inputs, units, rng=rng, norm=norm)


class Lstm(Timed):
    """Sequences of float32, steps x batch x inputs x units."""

    params = (
        [
            (100, 1, 128, 128),
            (100, 32, 256, 256),
            (500, 8, 400, 400),
        ],
        ["layer", None],
    )
    param_names = ("shape", "norm")

    def setup(self, shape: Shape, norm: str | None) -> None:
        """Draw the input, and run both passes once."""
        need("rnn")
        self.x, self.dy, self.parameters = _drawn(shape, norm)
        self.time_forward(shape, norm)
        self.time_forward_and_backward(shape, norm)

    def time_forward(self, shape: Shape, norm: str | None) -> None:
        """A forward pass that saves nothing."""
        rnn.lstm(self.x, self.parameters, norm=norm)

    def time_forward_and_backward(self, shape: Shape, norm: str | None) -> None:
        """Both passes of a step of training."""
        saved = rnn.lstm_forward(self.x, self.parameters, norm=norm).saved
        rnn.lstm_backward(self.dy, saved)


class LstmCell(Timed):
    """One step of float32, batch x inputs x units."""

    params = ([(1, 128, 128), (1, 512, 512), (32, 256, 256)], ["layer", None])
    param_names = ("shape", "norm")

    def setup(self, shape: tuple[int, int, int], norm: str | None) -> None:
        """Draw the input, pack the weights, and take both steps once."""
        need("rnn")
        x, _, self.parameters = _drawn((1, *shape), norm)
        self.x, self.packed = x[0], rnn.lstm_pack(self.parameters, norm=norm)
        self.h, self.c = rnn.lstm_cell(self.x, self.packed, norm=norm)
        self.time_packed(shape, norm)
        self.time_plain(shape, norm)

    def time_packed(self, shape: tuple[int, int, int], norm: str | None) -> None:
        """A step with packed weights."""
        rnn.lstm_cell(self.x, self.packed, self.h, self.c, norm=norm)

    def time_plain(self, shape: tuple[int, int, int], norm: str | None) -> None:
        """A step that packs the weights itself."""
        rnn.lstm_cell(self.x, self.parameters, self.h, self.c, norm=norm)
