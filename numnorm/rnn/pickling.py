"""Pickles and copies of what forward passes save: a backend that is a module goes by its name."""

import importlib
from types import ModuleType
from typing import Any


def reduced(saved: Any) -> tuple[Any, ...]:
    """Return what ``__reduce__`` of a NamedTuple with a field `backend` returns."""
    values = saved._asdict()
    backend = values.pop("backend")
    named = backend.__name__ if isinstance(backend, ModuleType) else backend
    return _restored, (type(saved), named, values)


def _restored(kind: Any, backend: Any, values: dict[str, Any]) -> Any:
    if isinstance(backend, str):
        backend = importlib.import_module(backend)
    return kind(backend=backend, **values)
