"""The time of every norm, forward and backward, and the memory that they take."""

import numpy as np

import numnorm

from .calls import CALLS

SHAPES = [(1, 256), (1024, 768), (4096, 1024), (65536, 64)]


class Norms:
    """Compiled before the clock starts: `setup` calls each function once."""

    params = (list(CALLS), SHAPES, ["float16", "float32", "float64"])
    param_names = ("norm", "shape", "dtype")

    def setup(self, norm: str, shape: tuple[int, int], dtype: str) -> None:
        """Make the data and the calls."""
        generator = np.random.default_rng(0)
        x, dy = (generator.standard_normal(shape).astype(dtype) for _ in range(2))
        self.calls = CALLS[norm](x, dy)
        self.calls.forward()
        self.calls.backward()

    def time_forward(self, *_: object) -> None:
        """The output alone, freshly allocated."""
        self.calls.forward()

    def time_backward(self, *_: object) -> None:
        """Every gradient."""
        self.calls.backward()


class Moments:
    """Statistics of the channels, streamed."""

    def setup(self) -> None:
        """Make one chunk and the moments before it."""
        self.chunk = np.random.default_rng(0).standard_normal((4096, 1024))
        self.before = numnorm.batch_moments(self.chunk)

    def time_batch_moments_after(self) -> None:
        """One more chunk."""
        numnorm.batch_moments(self.chunk, after=self.before)


class Memory:
    """What a layer norm of 64 MB needs beside its input, its output and its compiled code."""

    def setup(self) -> None:
        """Make the input and an output whose pages exist."""
        self.x = np.ones((16384, 1024), np.float32)
        self.out = self.x.copy()
        # Enough rows for the kernel that the large array gets, and for no other to be compiled.
        numnorm.layer_norm(self.x[:256], out=self.out[:256])

    def peakmem_reference(self) -> None:
        """All that there is before the call."""

    def peakmem_layer_norm_out(self) -> None:
        """The same and the call."""
        numnorm.layer_norm(self.x, out=self.out)
