"""Which backend serves which type of array.

A type is looked up in a package that the caller has imported already: nothing is imported to
find out what an array is. A new backend is one folder beside this file and one line in
``_REGISTRY``. Types whose arrays may lie in the memory of a host or of a device are not in it:
each array is asked.
"""

import functools
import importlib
import sys
from typing import Any, NamedTuple, cast

import numpy as np

import numnorm.backends.forking  # notices a fork from now on
import numnorm.backends.sources  # noqa: F401  # and a change of the sources
from numnorm.arguments import is_masked, is_on_device, is_surprising
from numnorm.backends.contract.backend import Backend


class _Entry(NamedTuple):
    package: str
    type_name: str
    backend: str


_REGISTRY = (_Entry("numpy", "ndarray", "numnorm.backends.cpu"),)
_OF_DEVICES = "numnorm.backends.cuda"


def backend_for(array: Any, name: str) -> tuple[Backend, Any]:
    """Return the backend of an array, and the array in a float dtype; a sequence as NumPy array.

    An array of a device is returned as that backend's own kind of it.

    Raises
    ------
    TypeError
        If no backend takes this type and it does not turn into a NumPy array, or if its dtype
        is not one of real numbers.
    """
    backend: Any = backend_of(type(array))  # type: ignore[arg-type]  # types are hashable
    if backend is None and is_on_device(array):
        backend = importlib.import_module(_OF_DEVICES)
    elif backend is None:
        backend, array = backend_of(np.ndarray), _as_numpy(array, name)
    return backend, backend.as_float_array(name, array)


@functools.lru_cache(maxsize=256)
def backend_of(kind: Any) -> Backend | None:
    """Return the backend of a type of array, None if there is none."""
    for entry in _REGISTRY:
        package = sys.modules.get(entry.package)
        if package is None or is_masked(kind):
            continue
        if issubclass(kind, getattr(package, entry.type_name)):
            return cast(Backend, importlib.import_module(entry.backend))
    return None


def _as_numpy(array: Any, name: str) -> np.ndarray[Any, Any]:
    plain = isinstance(array, list | tuple | int | float | np.generic)
    like = hasattr(array, "__array__")
    if (plain or like) and not is_surprising(array):
        try:
            return np.asarray(array)
        except (TypeError, ValueError, RuntimeError):
            pass
    supported = ", ".join(f"{e.package}.{e.type_name}" for e in _REGISTRY)
    raise TypeError(
        f"{name} must be one of {supported}, or turn into the first, "
        f"got {type(array).__module__}.{type(array).__qualname__}"
    )
