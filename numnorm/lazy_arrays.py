"""Arrays of Dask: how to tell them, and the functions that take them.

A public function hands a call with such an array to its twin in `numnorm.dask`. Only where Dask is
imported can there be one, so that all other calls pay for one lookup.
"""

import importlib
from collections.abc import Callable
from sys import modules
from types import NoneType
from typing import Any

import numpy as np

# The module of each library with chunked, lazy arrays, whose array type is called Array there.
_LIBRARIES = ("dask.array", "dask_array")

# The types of most arguments: a small call must not pay for more than one look at them.
_IN_MEMORY = frozenset({np.ndarray, NoneType, int})


def library_of(value: Any) -> Any:
    """Return the module of a lazy array's library, None for all else."""
    for name in _LIBRARIES:
        kind = getattr(modules.get(name), "Array", None)
        if kind is not None and isinstance(value, kind):
            return modules[name]
    return None


def any_lazy(*values: Any) -> bool:
    """Return whether one of the values is a lazy array."""
    if _IN_MEMORY.issuperset(map(type, values)):
        return False
    return any(library_of(value) is not None for value in values)


def lazily(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Return the lazy result of a public function, given all its arguments by name."""
    arguments = {name: value for name, value in arguments.items() if name != "others"}
    return importlib.import_module("numnorm.dask").call(function, arguments)


def lazy_twin(name: str) -> Callable[..., Any]:
    """Return the function of a name that takes lazy moments."""
    twin: Callable[..., Any] = getattr(importlib.import_module("numnorm.dask"), name)
    return twin
