"""Compiling the parts of a call in nopython code."""

from collections.abc import Callable
from typing import Any

import numba

from numnorm.backends.cpu.compiler.helper_compiler import CountingHelperCompiler

# Inlining is forced: a cached caller would otherwise keep a copy of a helper, and the loader could
# run a helper of another process that happens to have the same name. What is not set here would
# come from the first caller, and stay for all: fastmath drops the tests of NaN and infinity, and
# what rounding lost.
OPTIONS = {
    "error_model": "python",
    "fastmath": False,
    "forceinline": True,
    "no_cfunc_wrapper": True,
    "no_cpython_wrapper": True,
    "pipeline_class": CountingHelperCompiler,
}


def helper(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a part of a call as a part of its caller."""
    compiled: Callable[..., Any] = numba.njit(**OPTIONS)(function)
    return compiled
