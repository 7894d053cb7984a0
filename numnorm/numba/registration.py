"""The public functions that compiled code can call, and which module compiles each.

A module is imported when a call of its functions is first compiled.
"""

import importlib
import inspect
import operator
from collections.abc import Callable
from typing import Any

from numba.extending import overload

import numnorm

# ``numnorm.numba.rows.layer_norm`` compiles calls of ``numnorm.layer_norm``.
_HOMES: dict[str, str] = {
    "rnn.lstm_cell": "cells",
    "rnn.gru_cell": "cells",
    "rnn.rnn_cell": "cells",
}


def register() -> None:
    """Register all functions with Numba."""
    for name, home in _HOMES.items():
        function = operator.attrgetter(name)(numnorm)
        overload(function)(_maker(function, f"{__package__}.{home}"))


def _maker(function: Callable[..., Any], home: str) -> Callable[..., Any]:
    """Return what Numba calls with the types of the arguments; it has the function's signature."""

    def maker(*arguments: Any, **others: Any) -> Any:
        make = getattr(importlib.import_module(home), function.__name__)
        return make(*arguments, **others)

    signature = inspect.signature(function)
    shown = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    maker.__signature__ = signature.replace(parameters=shown)
    return maker
