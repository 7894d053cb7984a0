"""numnorm.jax in functions that JAX compiles and differentiates."""

from __future__ import annotations

from typing import Any

import numnorm.jax

from ..arrays import Arrays
from ..cases import Case
from . import Call
from . import jax as adapter
from .numnorm import forward_of

PACKAGES = ("numnorm", "numba", "llvmlite", "jax", "jaxlib", "numpy")

start = adapter.start


def call_of(case: Case, arrays: Arrays) -> Call | None:
    """Return a call like that of the definition in JAX, of the norm of numnorm.jax."""
    return adapter.compiled_call(case, arrays, _norm)


def _norm(case: Case, arrays: Arrays) -> Any:
    return forward_of(case, arrays, numnorm.jax)()
