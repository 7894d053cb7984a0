"""The time of every norm, forward and backward."""

import numnorm

from .arrays import drawn
from .calls import CALLS, OF_IMAGES, OF_MATRICES, Calls
from .timing import Timed

MATRIX = (1024, 768)
MATRICES = [(32, 512), MATRIX, (65536, 64)]
IMAGE = (8, 64, 28, 28)
IMAGES = [(32, 64, 56, 56)]

# One norm of rows, of columns and of groups: the others share their kernels.
OF_DTYPES = ["layer_norm", "batch_norm", "group_norm"]


class _Norms(Timed):
    """Runs the calls once in `setup`, so that they are compiled before they are timed."""

    calls: Calls

    def prepare(self, norm: str, shape: tuple[int, ...], dtype: str = "float32") -> None:
        self.calls = CALLS[norm](*drawn(shape, dtype))
        self.calls.forward()
        self.calls.backward()

    def time_forward(self, *_: object) -> None:
        """Only the output, newly allocated."""
        self.calls.forward()

    def time_backward(self, *_: object) -> None:
        """All gradients, newly allocated."""
        self.calls.backward()


class Matrices(_Norms):
    """Samples and features, in float32."""

    params = (list(OF_MATRICES), MATRICES)
    param_names = ("norm", "shape")

    def setup(self, norm: str, shape: tuple[int, int]) -> None:
        """Make the data and the calls."""
        self.prepare(norm, shape)


class Images(_Norms):
    """Samples, channels, height and width, in float32."""

    params = (list(OF_IMAGES), IMAGES)
    param_names = ("norm", "shape")

    def setup(self, norm: str, shape: tuple[int, int, int, int]) -> None:
        """Make the data and the calls."""
        self.prepare(norm, shape)


class Dtypes(_Norms):
    """Other dtypes than float32, in one shape: a matrix if the norm takes one, else images."""

    params = (OF_DTYPES, ["bfloat16", "float64"])
    param_names = ("norm", "dtype")

    def setup(self, norm: str, dtype: str) -> None:
        """Make the data and the calls."""
        self.prepare(norm, MATRIX if norm in OF_MATRICES else IMAGE, dtype)


class Detached(Timed):
    """The gradients of a layer norm with constant statistics."""

    params = ("mean", "both")
    param_names = ("detach",)

    def setup(self, detach: str) -> None:
        """Compile, and save what the backward pass needs."""
        self.x, self.dy = drawn(MATRIX)
        self.saved = numnorm.layer_norm_forward(self.x)[1:]
        self.time_layer_norm_backward(detach)

    def time_layer_norm_backward(self, detach: str) -> None:
        """All gradients, newly allocated."""
        numnorm.layer_norm_backward(self.dy, self.x, *self.saved, detach=detach)
