"""The public functions that compiled code can call, and which module compiles each.

A module is imported when a call of its functions is first compiled.
"""

import importlib
import inspect
import operator
from collections.abc import Callable
from typing import Any

from numba.core.registry import cpu_target
from numba.extending import overload

import numnorm
from numnorm.backends.cpu.compiler.jit import IN_CALLER

# ``numnorm.numba.rows.layer_norm`` compiles calls of ``numnorm.layer_norm``.
_PASSES = "", "_forward", "_backward"
_HOMES: dict[str, str] = {
    **{name + end: "rows" for name in ("layer_norm", "rms_norm") for end in _PASSES},
    "standard_normal_variate": "rows",
    **{"ada_norm" + end: "ada" for end in _PASSES},
    **{name + end: "groups" for name in ("group_norm", "instance_norm") for end in _PASSES},
    **{"weight_norm" + end: "weight" for end in _PASSES},
}


def register() -> None:
    """Register all functions with Numba."""
    for name, home in _HOMES.items():
        function = operator.attrgetter(name)(numnorm)
        # Literal axes and options are compiled as such.
        overload(function, jit_options=IN_CALLER, prefer_literal=True)(
            _maker(function, f"{__package__}.{home}")
        )
    # Numba may be compiling the first function that names numnorm, whose import this then is.
    cpu_target.typing_context.refresh()
    cpu_target.target_context.refresh()


def _maker(function: Callable[..., Any], home: str) -> Callable[..., Any]:
    """Return what Numba calls with the types of the arguments; it has the function's signature."""

    def maker(*arguments: Any, **others: Any) -> Any:
        make = getattr(importlib.import_module(home), function.__name__)
        return make(*arguments, **others)

    maker.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [_parameter(p) for p in inspect.signature(function).parameters.values()]
    )
    return maker


def _parameter(own: inspect.Parameter) -> inspect.Parameter:
    """Return a parameter as Numba takes it, which compares it with the compiled function's.

    Numba does not call functions with keyword-only parameters: these can be given by position.
    """
    if own.kind is not own.KEYWORD_ONLY:
        return own.replace(annotation=own.empty)
    default = None if own.default is own.empty else own.default
    return inspect.Parameter(own.name, own.POSITIONAL_OR_KEYWORD, default=default)
