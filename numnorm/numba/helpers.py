"""Compiling the parts of a call in nopython code."""

import inspect
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


def as_compiled(own: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter as Numba takes it, which compares it with the compiled function's.

    Numba does not call functions with keyword-only parameters: these can be given by position.
    """
    if own.kind is not own.KEYWORD_ONLY:
        return own.replace(annotation=own.empty)
    default = None if own.default is own.empty else own.default
    return inspect.Parameter(own.name, own.POSITIONAL_OR_KEYWORD, default=default)
