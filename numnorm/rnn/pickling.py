"""Pickles and copies of what forward passes save: a backend is a module, which goes by its name."""

import importlib
from typing import Any


def reduced(saved: Any) -> tuple[Any, ...]:
    """Return what ``__reduce__`` of a NamedTuple with a field `backend` returns."""
    values = saved._asdict()
    backend = values.pop("backend").__name__
    return _restored, (type(saved), backend, values)


def _restored(kind: Any, backend: str, values: dict[str, Any]) -> Any:
    return kind(backend=importlib.import_module(backend), **values)
