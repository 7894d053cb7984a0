"""numnorm in functions that Numba compiles, called from Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numba

import numnorm
import numnorm._numba

from ..arrays import Array, Arrays
from ..cases import Case
from . import Call

PACKAGES = ("numnorm", "numba", "llvmlite", "numpy")

# Numba does so itself where numnorm is installed.
numnorm._numba.init()


def start(threads: int) -> None:
    """Do nothing: a call in compiled code has one thread."""


@numba.njit
def _layer_norm(x: Array, gamma: Array, beta: Array) -> Array:
    return numnorm.layer_norm(x, gamma, beta)


@numba.njit
def _batch_norm(x: Array, gamma: Array, beta: Array) -> Array:
    return numnorm.batch_norm(x, gamma, beta)


def call_of(case: Case, arrays: Arrays) -> Call | None:
    """Return the call of a function that calls numnorm."""
    return compiled_call(case, arrays, {"layer_norm": _layer_norm, "batch_norm": _batch_norm})


def compiled_call(
    case: Case, arrays: Arrays, functions: dict[str, Callable[..., Any]]
) -> Call | None:
    """Return the call of the function for a norm; Numba has no half precision."""
    chosen = case.norm in functions and case.kind == "forward"
    if not chosen or case.dtype not in ("float32", "float64"):
        return None
    function = functions[case.norm]
    return Call(partial(function, arrays.x, arrays.gamma, arrays.beta), lambda y: [y])
