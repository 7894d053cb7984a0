"""Batch norm of data in several arrays: what needs the statistics or the sums of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numnorm.arguments import result_dtype
from numnorm.backends import backend_for, backend_of
from numnorm.backends.contract.backend import BlockMoments
from numnorm.backends.contract.norms import ChannelSums, Detached
from numnorm.layouts import column_layout
from numnorm.norms.channel_axes import channel_axes
from numnorm.norms.moments import Moments


def block_moments(x: Any, channel_axis: Any, all_channels: int) -> BlockMoments:
    """Return the moments of each block of a part of the data, which is not on a device.

    Parameters
    ----------
    x, channel_axis
        As for `batch_moments`.
    all_channels : int
        The number of channels of all data.
    """
    axes = channel_axes(x, channel_axis)
    if axes is not None:
        blocks = block_moments(axes.x, axes.axis, all_channels)
        table = blocks.table
        return blocks._replace(table=table.reshape(*table.shape[:2], *axes.shape))
    backend: Any
    backend, x = backend_for(x, "x")
    parts: BlockMoments = backend.block_moments(
        x, column_layout(x.shape, channel_axis, all_channels)
    )
    return parts


def folded_moments(parts: Sequence[BlockMoments | Moments]) -> Moments:
    """Return the moments of all data, merged in order from parts that are not on a device."""
    backend: Any = backend_of(np.ndarray)
    return Moments(*backend.folded_moments(parts))


def part_gradient(
    dy: Any, x: Any, mean: Any, rstd: Any, gamma: Any, channel_axis: Any, sums: ChannelSums
) -> Any:
    """Return dx of a part of the data.

    Parameters
    ----------
    dy, x, mean, rstd, gamma, channel_axis
        As for `batch_norm_backward`. A gain does not broadcast.
    sums : ChannelSums
        Of all data; `products` is dgamma.
    """
    axes = channel_axes(x, channel_axis)
    if axes is not None:
        mean, rstd, gamma = (axes.flat("gamma", array) for array in (mean, rstd, gamma))
        sums = ChannelSums(sums[0], *(axes.flat("dy", total) for total in sums[1:]))
        dx = part_gradient(axes.fold("dy", dy), axes.x, mean, rstd, gamma, axes.axis, sums)
        return axes.write(dx, None, None)
    backend, x = backend_for(x, "x")
    layout = column_layout(x.shape, channel_axis)
    mean, rstd = mean.astype(np.float64), rstd.astype(np.float64)
    if "float64" not in (result_dtype("dy", dy.dtype).name, x.dtype.name):
        with np.errstate(all="ignore"):
            lost = (mean - mean.astype(np.float32)) * rstd
            sums = sums._replace(products=sums.products + lost * sums.dy)
    given = dy, x, mean, rstd, gamma, layout, Detached(), None
    return backend.column_backward(*given, sums)[0]


def moved_statistic(old: Any, new: Any, divisor: int, weight: float) -> Any:
    """Return a running statistic of channels, moved towards ``new / divisor`` as batch norm does.

    Parameters
    ----------
    old, new : array
        With one axis; `new` is of float64.
    divisor : int
        The divisor of `new`.
    weight : float
        The weight of `new`.
    """
    backend, _ = backend_for(old, "running_var")
    running = old.copy(), old.copy()
    backend.update_running(running, new, new, divisor, weight)
    return running[1]
