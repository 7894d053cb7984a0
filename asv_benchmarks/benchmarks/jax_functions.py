"""The time of norms that a user's function under `jax.jit` calls, with and without gradients."""

from collections.abc import Callable
from functools import cache
from typing import Any

from .arrays import drawn
from .timing import Timed

SHAPE = (1024, 768)


# JAX takes a second. It is imported late, as asv imports this file for every suite, and once, as
# `setup` runs before each sample.
@cache
def _compiled(norm: str) -> tuple[Callable[..., Any], Callable[..., Any], Any]:
    """Return the norm and the gradient of a loss under jit, and an input."""
    try:
        import jax

        import numnorm.jax
    except ImportError as error:
        raise NotImplementedError(f"no {error.name}") from error
    function = getattr(numnorm.jax, norm)
    x = jax.numpy.array(drawn(SHAPE)[0])
    gradient = jax.jit(jax.grad(lambda x: (function(x) * x).sum()))
    plain = jax.jit(function)
    for call in (plain, gradient):
        call(x).block_until_ready()
    return plain, gradient, x


class Jit(Timed):
    """A matrix of float32."""

    params = ("layer_norm", "batch_norm")
    param_names = ("norm",)

    def setup(self, norm: str) -> None:
        """Compile, if necessary."""
        self.plain, self.gradient, self.x = _compiled(norm)

    def time_forward(self, _: str) -> None:
        """Only the output."""
        self.plain(self.x).block_until_ready()

    def time_gradient(self, _: str) -> None:
        """The output and the gradient of a loss."""
        self.gradient(self.x).block_until_ready()
