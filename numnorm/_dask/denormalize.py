"""`denormalize` for arrays of Dask, block by block, and its gradients, sums over blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm._dask.blocks import block_sum, each_block, each_object, rounded, take
from numnorm._dask.parameters import as_divided, made_lazy
from numnorm.arguments import check_float, check_shape, result_dtype
from numnorm.norms.denormalize import (
    PARAMETERS,
    STATISTICS,
    DenormalizedGradients,
    denormalize,
    denormalized,
    gradients_of,
    places_of,
    shapes_of,
)

_FLOAT64 = np.dtype(np.float64)


def call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Return the lazy result of `denormalize` or its gradients, given the arguments by name."""
    axes = arguments.pop("axis"), arguments.pop("channel_axis")
    out = arguments.pop("out", None)
    arrays = made_lazy(arguments, out, optional=("mean", *PARAMETERS))
    y, dx = arrays.pop("y"), arrays.pop("dx", None)
    dtype = result_dtype("y", y.dtype)
    given = {name: array for name, array in arrays.items() if array is not None}
    for name, array in given.items():
        check_float(name, array.dtype)
    places = places_of(y.shape, shapes_of(given), *axes)
    laid = {name: places[name].laid(array) for name, array in given.items()}
    blocks = [as_divided(array, y.chunks) for array in laid.values()]
    names = tuple(given)
    if function is denormalize:
        return each_block(
            _denormalized, y, *blocks, dtype=dtype, chunks=y.chunks, names=names, to=dtype
        )
    check_shape("dx", dx.shape, y.shape, "the shape of y")
    check_float("dx", dx.dtype)
    objects = each_object(_gradients, y, as_divided(dx, y.chunks), *blocks, names=names)
    dy = rounded(take(objects, 0, dtype=_FLOAT64, chunks=y.chunks), dtype)
    found: dict[str, Any] = {}
    for member, name in enumerate(names, 1):
        summed = [axis for axis, n in enumerate(laid[name].shape) if n == 1]
        total = places[name].gathered(block_sum(objects, member, y.chunks, summed))
        found[name] = rounded(total, result_dtype(name, given[name].dtype))
    return DenormalizedGradients(dy, *map(found.get, (*STATISTICS, *PARAMETERS)))


def _denormalized(y: Any, *blocks: Any, names: tuple[str, ...], to: Any) -> Any:
    return denormalized(y.astype(to, copy=False), dict(zip(names, blocks, strict=True)))


def _gradients(y: Any, dx: Any, *blocks: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
    found = gradients_of(dx, y, dict(zip(names, blocks, strict=True)))
    return found["y"], *(found[name] for name in names)
