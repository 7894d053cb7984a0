"""JAX: the definitions, compiled by XLA and differentiated by JAX."""

from __future__ import annotations

import os
from typing import Any

# By default JAX takes three quarters of the device's memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
from peers import arrays as peers_arrays
from peers import definition

from ...agreement import as_peers_case
from ...arrays import Arrays
from ...cases import Case
from .. import Call

jax.config.update("jax_enable_x64", True)


def call_of(case: Case, arrays: Arrays) -> Call | None:
    """Return a call, which runs on JAX's own stream."""
    given = (arrays.x, arrays.dy, arrays.gamma, arrays.beta)
    x, dy, gamma, beta = (jax.dlpack.from_dlpack(tensor) for tensor in given)

    def norm(*inputs: Any) -> Any:
        wide = jnp.promote_types(x.dtype, jnp.float32)  # as Flax does in half precision
        x_, gamma_, beta_ = (value.astype(wide) for value in inputs)
        whole = peers_arrays.Arrays(x_, None, gamma_, beta_, None, None)
        y = definition.forward(as_peers_case(case), whole, jax.lax.stop_gradient)
        return y.astype(x.dtype)

    if case.direction == "forward":
        compiled = jax.jit(norm)
        return Call(lambda: compiled(x, gamma, beta), jax.block_until_ready)
    count = {"ada_norm": 1, "rms_norm": 2}.get(case.norm, 3)
    # What the forward pass saved is in `pullback`, an argument like any other.
    _, pullback = jax.jit(lambda *inputs: jax.vjp(norm, *inputs))(x, gamma, beta)
    pull = jax.jit(lambda pullback, dy: pullback(dy)[:count])
    return Call(lambda: pull(pullback, dy), jax.block_until_ready)
