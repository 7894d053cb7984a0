"""The handlers of numnorm, known to XLA by name.

A name has a hash of numnorm's sources in it: an executable that JAX has kept on disk, or that was
exported, runs with the build of numnorm for which it was compiled, or not at all.
"""

from __future__ import annotations

import ctypes
import functools
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.ffi

from numnorm.backends.sources import JAX as SOURCES

# XLA's message for another device quotes the name.
_PREFIX = "numnorm.jax_runs_on_the_CPU_only"


@functools.cache
def _build() -> str:
    """Return the name of the loaded sources; one of its own if the files have changed since."""
    return SOURCES.token() or uuid.uuid4().hex


_targets: dict[str, str] = {}


def target_of(name: str, handler: Callable[[], int]) -> str:
    """Return the name of a target, after its handler is compiled and registered."""
    if name not in _targets:
        target = f"{_PREFIX}.{name}.{_build()}"
        capsule = jax.ffi.pycapsule(ctypes.c_void_p(handler()))
        jax.ffi.register_ffi_target(target, capsule, platform="cpu")
        _targets[name] = target
    return _targets[name]


def call(target: str, results: Sequence[jax.ShapeDtypeStruct], *arrays: Any, **attributes: Any) -> Any:
    """Call a target with arrays, and return its results as a list."""
    return jax.ffi.ffi_call(target, tuple(results))(*arrays, **attributes)
