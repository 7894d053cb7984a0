"""The equations in JAX: a scan over the steps, compiled by XLA and differentiated by JAX."""

from __future__ import annotations

import os
from typing import Any

# By default JAX takes three quarters of the device's memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp
from peers.cases import EPS

from numnorm import rnn

from ...arrays import Sequences
from ...sequences import SequenceCase
from .. import Call


def call_of(case: SequenceCase, arrays: Sequences) -> Call | None:
    """Return a call, which runs on JAX's own stream."""
    x, dy, *parameters = map(jax.dlpack.from_dlpack, (arrays.x, arrays.dy, *arrays.parameters))
    if case.direction == "forward":
        compiled = jax.jit(_states)
        return Call(lambda: compiled(x, *parameters), jax.block_until_ready)

    def gradients(dy: Any, *inputs: Any) -> Any:
        return jax.vjp(_states, *inputs)[1](dy)

    both = jax.jit(gradients)
    return Call(lambda: both(dy, x, *parameters), jax.block_until_ready)


def _states(x: Any, *parameters: Any) -> Any:
    p = rnn.LSTMParameters(*parameters)
    # By default XLA uses TF32 for products.
    with jax.default_matmul_precision("highest"):
        of_x = _norm(x @ p.weight_x.T, p.gamma_x, p.beta_x) + p.bias

        def step(state: Any, z: Any) -> Any:
            h, c = state
            z = z + _norm(h @ p.weight_h.T, p.gamma_h, p.beta_h)
            f, i, o, g = jnp.split(z, 4, axis=1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(_norm(c, p.gamma_c, p.beta_c))
            return (h, c), h

        first = jnp.zeros((x.shape[1], p.weight_h.shape[1]), x.dtype)
        return jax.lax.scan(step, (first, first), of_x)[1]


def _norm(x: Any, gamma: Any, beta: Any) -> Any:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + EPS) * gamma + beta
