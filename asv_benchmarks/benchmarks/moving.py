"""The time of norms along an axis: by windows, and by statistics that fade."""

import numnorm

from .arrays import drawn
from .timing import Timed, need

WINDOW = 300
ALPHA = 1e-3

# In float32: features of an utterance, a recording of EEG, and a single trace.
SEQUENCES = [(600, 80), (50_000, 22), (1_000_000, 1)]


class _Moving(Timed):
    """Runs the calls once in `setup`, so that they are compiled before they are timed."""

    params = (SEQUENCES,)
    param_names = ("steps and channels",)
    name: str
    number: float

    def setup(self, shape: tuple[int, int]) -> None:
        """Make the data, and what the backward pass needs."""
        need(self.name)
        self.x, self.dy = drawn(shape)
        self.plain = getattr(numnorm, self.name)
        self.backward = getattr(numnorm, f"{self.name}_backward")
        forward = getattr(numnorm, f"{self.name}_forward")
        self.saved = forward(self.x, self.number, axis=0)[1:]
        self.time_forward(shape)
        self.time_backward(shape)

    def time_forward(self, *_: object) -> None:
        """Only the output, newly allocated."""
        self.plain(self.x, self.number, axis=0)

    def time_backward(self, *_: object) -> None:
        """The gradient, newly allocated."""
        self.backward(self.dy, self.x, *self.saved, self.number, axis=0)


class Windows(_Moving):
    """Windows of 300 steps."""

    name, number = "moving_norm", WINDOW


class Exponential(_Moving):
    """Statistics of which half lies on the last 700 steps."""

    name, number = "exponential_norm", ALPHA


class Streams(Timed):
    """The next chunk of a recording of 22 channels, in float32."""

    params = (["moving_norm", "exponential_norm"], [1, 100, 10_000])
    param_names = ("norm", "steps of a chunk")

    def setup(self, norm: str, steps: int) -> None:
        """Make the state after a window of steps."""
        need(f"{norm}_step")
        self.step = getattr(numnorm, f"{norm}_step")
        self.number = WINDOW if norm == "moving_norm" else ALPHA
        before, _ = drawn((WINDOW, 22))
        self.chunk, _ = drawn((steps, 22))
        _, self.state = self.step(before, self.number, axis=0)
        self.time_step(norm, steps)

    def time_step(self, *_: object) -> None:
        """The chunk and the next state."""
        self.step(self.chunk, self.number, self.state, axis=0)
