"""The statistics of batch norm for an array in a file, computed in one pass over it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from numnorm import Moments, batch_moments, stream_step
from numnorm.commands.apply.arrayfile import ArrayFile
from numnorm.commands.apply.blocks import boxes, steps, whole


def stream_moments(
    source: ArrayFile, channel_axis: int, budget: int, done: Callable[[int], None]
) -> Moments:
    """Return the moments of each channel, bit for bit those of one call on the whole array.

    Parameters
    ----------
    source : ArrayFile
        The array.
    channel_axis : int
        Its channel axis, counted from the front.
    budget : int
        The number of elements to read at a time.
    done : callable
        Called after each part with its number of elements.

    Returns
    -------
    Moments
        Count, mean and sum of squared deviations.
    """
    # Parts along the first axis have different channels if it is the channel axis. Otherwise they
    # continue the same channels, and must begin at multiples of `stream_step` for equal bytes.
    separate = channel_axis == 0
    multiple = 1 if separate else stream_step(source.shape, channel_axis=channel_axis)
    step = steps(source.shape, [(0, multiple)], budget)
    parts: list[Moments] = []
    for box in boxes(whole(source.shape), step):
        x = source.read(box)
        if separate or not parts:
            parts.append(batch_moments(x, channel_axis=channel_axis))
        else:
            parts = [batch_moments(x, channel_axis=channel_axis, after=parts[0])]
        done(x.size)
    means, m2s = (np.concatenate([part[field] for part in parts]) for field in (1, 2))
    return Moments(parts[0].count, means, m2s)
