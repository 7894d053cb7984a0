"""Lazy arrays of Dask, in any chunks: `array_likes.lazily` hands public calls to `call`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numnorm._dask import (
    batch,
    denormalize,
    instance,
    moments,
    moving,
    quantiles,
    residual,
    rows,
)
from numnorm._dask.moments import merge, of_divisor, placed
from numnorm._dask.quantiles import merged_quantiles
from numnorm.array_likes import as_plain_array, library_of
from numnorm.norms import denormalize as inverse
from numnorm.norms.batch import batch_moments
from numnorm.norms.declared import BY_FUNCTION
from numnorm.norms.labels import means_of
from numnorm.norms.quantiles import quantiles as public_quantiles
from numnorm.norms.spec import taken_counting

__all__ = ["call", "merge", "merged_quantiles", "of_divisor", "placed"]


def call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Return the lazy result of a public function.

    Lazy labels are computed here: the shapes of results depend on them.

    Parameters
    ----------
    function : callable
    arguments : dict
        All its arguments by name.
    """
    if function in (inverse.denormalize, inverse.denormalize_backward):
        return denormalize.call(function, arguments)
    if function in residual.NORMS:
        return residual.call(function, arguments)
    counting = taken_counting(arguments)
    labels, means = counting.get("labels"), means_of(counting.get("statistics"))
    library = library_of(labels) or library_of(means)
    if library is not None and library_of(arguments["x"]) is None:
        arguments["x"] = library.from_array(as_plain_array("x", arguments["x"]), chunks=-1)
    if labels is not None and library_of(labels) is not None:
        counting["labels"] = labels.compute()
    spec = BY_FUNCTION.get(function)
    if function is public_quantiles:
        return quantiles.quantiles(**arguments, counting=counting)
    if spec is None:
        assert function is batch_moments
        return moments.batch_moments(**arguments, counting=counting)
    if spec.family in ("windows", "decay"):
        return moving.call(spec, function, arguments, counting)
    if spec.family == "channels":
        return batch.call(spec, function, arguments, counting)
    if spec.updates:
        return instance.call(spec, function, arguments, counting)
    return rows.call(spec, function, arguments, counting)
