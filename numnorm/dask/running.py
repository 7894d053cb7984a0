"""The running statistics of instance norm, whose arrays a lazy call updates by assignment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from numnorm.arguments import check_float, check_shape
from numnorm.backends.formulas.norms import moved
from numnorm.dask.blocks import each_block, each_object, in_order
from numnorm.dask.parameters import along, as_divided, check_assignable, chunks_of, with_axes
from numnorm.dask.row_axes import Rows
from numnorm.dask.split_rows import merged_moments
from numnorm.layouts import RowLayout


def checked_running(given: tuple[Any, Any], layout: RowLayout) -> Mapping[str, Any]:
    """Return running mean and variance by name; raise unless they can be updated lazily."""
    running = dict(zip(("running_mean", "running_var"), given, strict=True))
    shape, meaning = layout.parameter_shape, layout.parameter_meaning
    check_assignable(running)
    for name, array in running.items():
        check_shape(name, array.shape, shape, meaning)
        check_float(name, array.dtype)
    return running


def update_running(
    running: Mapping[str, Any], x: Any, rows: Rows, correction: int, weight: float
) -> None:
    """Move running statistics to the averages of the samples' means and variances."""
    total = merged_moments(x, rows)
    sums = in_order(each_object(_over_samples, total), (0,), _added)
    for member, array in enumerate(running.values()):
        old = as_divided(along(array, rows.own, x.ndim), x.chunks)
        chunks = chunks_of(old.shape, x.chunks)
        new = each_block(
            _moved, old, sums,
            dtype=array.dtype, chunks=chunks, member=member, correction=correction, weight=weight,
        )  # fmt: skip
        array[...] = with_axes(new, rows.own).rechunk(array.chunks)


def _over_samples(total: Any) -> tuple[Any, ...]:
    """Return the number of samples and the sums of their means and variances, and the width."""
    moments = total[(0,) * total.ndim]
    with np.errstate(all="ignore"):
        fields = moments.mean, moments.m2 / moments.count
        sums = (field.sum(axis=0, keepdims=True) for field in fields)
        return len(moments.mean), *sums, moments.count


def _added(parts: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    *sums, widths = zip(*parts, strict=True)
    return *map(sum, sums), widths[0]


def _moved(old: Any, sums: Any, member: int, correction: int, weight: float) -> Any:
    samples, *each, width = sums[(0,) * sums.ndim]
    with np.errstate(all="ignore"):
        new = each[member] / samples
        if member:
            new = new * (width / (width - correction))
        return moved(old.astype(np.float64), new, weight).astype(old.dtype)
