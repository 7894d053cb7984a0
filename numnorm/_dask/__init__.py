"""Lazy arrays of Dask, in any chunks: the public functions of `numnorm` call `call` for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from numnorm._dask import batch, instance, moments, moving, rows
from numnorm._dask.moments import merge, of_divisor
from numnorm.norms.batch import batch_moments
from numnorm.norms.declared import BY_FUNCTION
from numnorm.norms.spec import NormSpec, taken_counting

__all__ = ["call", "merge", "of_divisor"]


def call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Return the lazy result of a public function.

    Parameters
    ----------
    function : callable
    arguments : dict
        All its arguments by name.

    Raises
    ------
    NotImplementedError
        If the function does not take one of the keywords for missing values for lazy arrays.
    """
    counting = taken_counting(arguments)
    spec = BY_FUNCTION.get(function)
    if counting and not _takes(spec, function, counting):
        keyword = next(iter(counting))
        raise NotImplementedError(
            f"{keyword} is not supported for lazy arrays in {function.__name__}"
        )
    if spec is None:
        assert function is batch_moments
        return moments.batch_moments(**arguments)
    if spec.family in ("windows", "decay"):
        return moving.call(spec, function, arguments, counting)
    if counting:
        return rows.with_weights(spec, function, arguments, counting)
    if spec.family == "channels":
        if spec.is_backward(function):
            return batch.batch_norm_backward(**arguments)
        normalized = batch.batch_norm_forward(**arguments)
        return normalized if function is spec.forward else normalized.y
    if spec.updates:
        return instance.call(spec, function, arguments)
    return rows.call(spec, function, arguments)


def _takes(spec: NormSpec | None, function: Callable[..., Any], counting: Iterable[str]) -> bool:
    """Return whether a function takes the keywords for missing values for lazy arrays."""
    if spec is None or not {"labels", "statistics"}.isdisjoint(counting):
        return False
    return not spec.is_backward(function) or spec.family in ("windows", "decay")
