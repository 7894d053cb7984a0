"""JAX: the definitions, compiled by XLA and differentiated by JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..arrays import Array, Arrays
from ..cases import Case
from ..definition import forward
from . import Call

PACKAGES = ("jax", "jaxlib", "numpy")


def start(threads: int) -> None:
    """Enable float64; XLA takes the number of threads from the environment."""
    jax.config.update("jax_enable_x64", True)


def call_of(case: Case, arrays: Arrays) -> Call | None:
    """Return a call of the definition."""
    return compiled_call(case, arrays, _definition)


def compiled_call(
    case: Case, arrays: Arrays, function: Callable[[Case, Arrays], Any]
) -> Call | None:
    """Return a call that waits for its result; JAX cannot write into an existing array."""
    if case.out or case.family != "norms":
        return None
    x, dy, *small = (jnp.array(array) for array in arrays)
    parameters, statistics = small[:2], small[2:]

    def norm(x: Any, gamma: Any, beta: Any) -> Any:
        return function(case, Arrays(x, None, gamma, beta, *statistics))

    if case.direction == "forward":
        compiled = jax.jit(norm)
        return Call(lambda: compiled(x, *parameters).block_until_ready(), lambda y: [_array(y)])
    count = {"ada_norm": 1, "rms_norm": 2}.get(case.norm, 3)
    # What the forward pass saved is in `pullback`, an argument like any other.
    _, pullback = jax.jit(lambda *inputs: jax.vjp(norm, *inputs))(x, *parameters)
    pull = jax.jit(lambda pullback, dy: pullback(dy)[:count])
    return Call(lambda: jax.block_until_ready(pull(pullback, dy)), lambda gs: [*map(_array, gs)])


def _definition(case: Case, arrays: Arrays) -> Any:
    wide = jnp.promote_types(arrays.x.dtype, jnp.float32)  # as Flax does in half precision
    inputs = Arrays(*(None if value is None else value.astype(wide) for value in arrays))
    return forward(case, inputs, jax.lax.stop_gradient).astype(case.dtype)


def _array(values: Any) -> Array:
    return np.asarray(values).astype(np.float64)
