"""The handlers of numnorm, known to XLA by name.

A name has a hash of numnorm's sources in it: an executable that JAX has kept on disk, or that was
exported, runs with the build of numnorm for which it was compiled, or not at all.
"""

from __future__ import annotations

import ctypes
import functools
import json
import threading
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.ffi
from jax.extend.core import Primitive
from jax.interpreters import mlir

from numnorm.backends.cpu.xla import frames
from numnorm.backends.cpu.xla.handlers import python_handler
from numnorm.backends.sources import JAX as SOURCES

# The axes of a mesh over which an array varies inside `jax.shard_map`


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


# XLA's message for another device quotes the name.
_PREFIX = "numnorm.jax_runs_on_the_CPU_only"


@functools.cache
def _build() -> str:
    """Return the name of the loaded sources; one of its own if the files have changed since."""
    return SOURCES.token() or uuid.uuid4().hex


_targets: dict[str, str] = {}
_targets_lock = threading.Lock()  # XLA refuses a second handler of one name


def target_of(name: str, handler: Callable[[], int]) -> str:
    """Return the name of a target, after its handler is compiled and registered."""
    with _targets_lock:
        if name not in _targets:
            target = f"{_PREFIX}.{name}.{_build()}"
            capsule = jax.ffi.pycapsule(ctypes.c_void_p(handler()))
            jax.ffi.register_ffi_target(target, capsule, platform="cpu")
            _targets[name] = target
        return _targets[name]


def call_python(
    function: Callable[..., None],
    results: Sequence[jax.ShapeDtypeStruct],
    *arrays: Any,
    **options: Any,
) -> Any:
    """Call ``function(arguments, results, **options)``, which stores its results, when XLA runs.

    It gets XLA's memory as NumPy arrays, without copies, and holds the GIL. The options are what
    JSON can hold.
    """

    def handler() -> int:
        return python_handler(functools.partial(_run, function))

    target = target_of(f"{function.__module__}.{function.__name__}", handler)
    return call(target, results, *arrays, options=json.dumps(options))


def _run(function: Callable[..., None], frame: int) -> None:
    arguments = frames.buffers(frame, frames.ARGUMENTS, frames.ARGUMENT_COUNT)
    results = frames.buffers(frame, frames.RESULTS, frames.RESULT_COUNT)
    function(arguments, results, **frames.options(frame))


def call(
    target: str, results: Sequence[jax.ShapeDtypeStruct], *arrays: Any, **attributes: Any
) -> Any:
    """Call a target with arrays, of which there is one at least, and return its results."""
    marked = _on_the_cpu.bind(arrays[0]), *arrays[1:]
    return varying_like(jax.ffi.ffi_call(target, tuple(results))(*marked, **attributes), arrays)


# Where a jitted function runs is known when JAX lowers it; XLA's own error would come later.
_on_the_cpu = Primitive("numnorm_on_the_cpu")
_on_the_cpu.def_abstract_eval(lambda array: array)
_on_the_cpu.def_impl(lambda array: array)


def _refused(context: Any, array: Any) -> Any:
    platform = min(set(context.module_context.platforms) - {"cpu"})
    raise NotImplementedError(
        f"numnorm.jax runs on the CPU only, got a function that is compiled for {platform}: "
        "call it with arrays on the CPU, or call numnorm on arrays of a GPU outside of jax.jit"
    )


mlir.register_lowering(_on_the_cpu, _refused)
mlir.register_lowering(_on_the_cpu, lambda context, array: [array], platform="cpu")
