"""Compiling the parts of a call in nopython code."""

from collections.abc import Callable
from typing import Any

import numba

from numnorm.backends.cpu.compiler.helper_compiler import CountingHelperCompiler

_OPTIONS = {
    "no_cfunc_wrapper": True,
    "no_cpython_wrapper": True,
    "pipeline_class": CountingHelperCompiler,
}


def helper(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a part of a call: into the caller, which is optimized as a whole."""
    compiled: Callable[..., Any] = numba.njit(**_OPTIONS)(function)
    return compiled
