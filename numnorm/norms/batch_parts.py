"""Batch norm of data in several arrays: what needs the statistics or the sums of all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from numnorm.arguments import result_dtype
from numnorm.backends import backend_for
from numnorm.backends.contract.norms import ChannelSums, Detached
from numnorm.layouts import column_layout
from numnorm.norms.channel_axes import channel_axes


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
