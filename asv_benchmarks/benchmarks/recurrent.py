"""Recurrent cells over whole sequences, normalized and not."""

import numpy as np

from numnorm import rnn


class Lstm:
    """Sequences of float32, steps x batch x inputs x units."""

    params = (
        [(100, 1, 128, 128), (100, 12, 128, 128), (100, 32, 256, 256), (500, 8, 400, 400)],
        ["layer", None],
    )
    param_names = ("shape", "norm")

    def setup(self, shape: tuple[int, int, int, int], norm: str | None) -> None:
        """Draw the input, and run both passes once."""
        time, batch, inputs, units = shape
        rng = np.random.default_rng(0)
        self.x = rng.standard_normal((time, batch, inputs), np.float32)
        self.dy = rng.standard_normal((time, batch, units), np.float32)
        self.parameters = rnn.lstm_init(inputs, units, rng=rng, norm=norm)
        self.time_forward(shape, norm)
        self.time_forward_and_backward(shape, norm)

    def time_forward(self, shape: tuple[int, int, int, int], norm: str | None) -> None:
        """Nothing is saved for a backward pass."""
        rnn.lstm(self.x, self.parameters, norm=norm)

    def time_forward_and_backward(self, shape: tuple[int, int, int, int], norm: str | None) -> None:
        """A step of training, but for the update."""
        saved = rnn.lstm_forward(self.x, self.parameters, norm=norm).saved
        rnn.lstm_backward(self.dy, saved)
