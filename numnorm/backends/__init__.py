"""The choice of the backend by the type of an array.

A type is compared with types of packages that the caller has already imported; the lookup imports
no array library. A new backend is one folder beside this file and one line in ``_REGISTRY``.
Arrays of some types may lie on the host or on a device. Such types are not in the registry: each
array is checked.
"""

import functools
import importlib
import sys
from typing import Any, NamedTuple, cast

import numpy as np

import numnorm.backends.forking  # registers its fork handlers
import numnorm.backends.sources  # noqa: F401  # records the sources' modification times
from numnorm.array_likes import as_plain_array, is_masked, is_on_device, plain_view, results_like
from numnorm.backends.contract.backend import Backend
from numnorm.backends.contract.weighting import WeightedInput, Weighting


class _Entry(NamedTuple):
    package: str
    type_name: str
    backend: str


_REGISTRY = (_Entry("numpy", "ndarray", "numnorm.backends.cpu"),)
_DEVICE_BACKEND = "numnorm.backends.cuda"
_HOST_BACKEND = "numnorm.backends.host"


def backend_for(array: Any, name: str) -> tuple[Backend, Any]:
    """Return the backend of an array, and the array in a float dtype.

    A sequence becomes a NumPy array, and a device array the backend's own array type.

    Raises
    ------
    TypeError
        If no backend takes this type and NumPy cannot convert it, or if its dtype is not one of
        real numbers.
    """
    backend: Any = backend_of(type(array))  # type: ignore[arg-type]  # types are hashable
    if backend is None:
        backend, array = _of_another_type(name, array)
    return backend, backend.as_float_array(name, array)


def _of_another_type(name: str, value: Any) -> tuple[Any, Any]:
    """Return the backend of a value that may lie on a device, and an array for it."""
    if isinstance(value, WeightedInput):
        backend, array = backend_for(value.x, name)
        return with_weighting(backend, value.weighting), array
    array = plain_view(value)
    if array is None:
        if is_on_device(value):
            return _module(_DEVICE_BACKEND), value
        array = as_plain_array(name, value)
    result = results_like(value)
    if result is None:
        return backend_of(np.ndarray), array
    return _module(_HOST_BACKEND).HostBackend(result), array


_module = functools.cache(importlib.import_module)


def with_weighting(backend: Any, weighting: Weighting) -> Any:
    """Return the backend of arrays with a weighting, given that of arrays without."""
    return _weighted()(backend, weighting)


@functools.cache
def _weighted() -> Any:
    """Return the function that makes a backend one of arrays with a weighting."""
    return importlib.import_module("numnorm.backends.weighted").with_weighting


@functools.lru_cache(maxsize=256)
def backend_of(kind: Any) -> Backend | None:
    """Return the backend of an array type, or None."""
    for entry in _REGISTRY:
        package = sys.modules.get(entry.package)
        if package is None or is_masked(kind):
            continue
        if issubclass(kind, getattr(package, entry.type_name)):
            return cast(Backend, importlib.import_module(entry.backend))
    return None
