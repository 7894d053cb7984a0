"""The axes of a mesh over which an array varies inside `jax.shard_map`.

JAX keeps them in the type of an array, and derives from them what may leave the mapped function
and where gradients are summed. Its own operations pass them on, calls of foreign functions do not.
"""

from __future__ import annotations

from typing import Any

import jax


def varying_like(arrays: Any, others: Any) -> Any:
    """Return a tree of arrays that also vary over each axis over which one of `others` varies.

    No element changes. Where a gradient flows back, JAX sums it over the axes that were added.
    """
    axes = frozenset[Any]().union(*map(_axes, jax.tree.leaves(others)))
    return jax.tree.map(lambda array: _varying(array, axes), arrays)


def _axes(array: Any) -> frozenset[Any]:
    kind = jax.typeof(array)
    if hasattr(kind, "mat"):  # since JAX 0.10
        return frozenset(kind.mat.varying)
    # Before JAX 0.6 types had no axes, and `shard_map` refused foreign functions unless told not
    # to check.
    return frozenset(getattr(kind, "vma", ()))


def _varying(array: Any, axes: frozenset[Any]) -> Any:
    missing = tuple(axes - _axes(array))
    if not missing:
        return array
    if hasattr(jax.lax, "pcast"):  # since JAX 0.8
        return jax.lax.pcast(array, missing, to="varying")
    return jax.lax.pvary(array, missing)
