"""The statistics of batch norm: of an array in a file, in one pass over it, and in .npz files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from numnorm import Moments, batch_moments, stream_step
from numnorm.commands.apply.arrayfile import Array, ArrayFile
from numnorm.commands.apply.blocks import boxes, steps, whole
from numnorm.commands.errors import CommandError, one_line
from numnorm.commands.wholefile import appearing


def save_statistics(path: Path, mean: Array, variance: Array) -> None:
    """Write statistics to an .npz file, as its arrays ``mean`` and ``var``.

    Parameters
    ----------
    path : Path
        The file.
    mean, variance : ndarray
        The mean and the biased variance of each channel.
    """
    with appearing(path) as file:
        np.savez(file, mean=mean, var=variance)


def load_statistics(path: Path, channels: int) -> tuple[Array, Array]:
    """Read statistics that `save_statistics` wrote.

    Parameters
    ----------
    path : Path
        The file.
    channels : int
        The number of channels that it must have.

    Returns
    -------
    tuple of ndarray
        Mean and variance of each channel.

    Raises
    ------
    CommandError
        If it has no such arrays, or of another number of channels, or a negative variance.
    """
    try:
        with open(path, "rb") as archive, np.load(archive, allow_pickle=False) as file:
            mean, variance = file["mean"], file["var"]
    except OSError:
        raise
    except Exception as error:  # an archive that is not valid raises more than ValueError
        raise CommandError(
            f"{path} is not an .npz file with the arrays mean and var: {one_line(error)}"
        ) from error
    for name, values in (("mean", mean), ("var", variance)):
        if values.dtype.kind != "f" or values.shape != (channels,):
            raise CommandError(
                f"{name} in {path} must be {channels} floats, one for each channel, "
                f"got {values.dtype} of shape {values.shape}"
            )
    if (variance < 0).any():
        raise CommandError(f"var in {path} must not be negative, got {variance.min()}")
    return mean.astype(np.float64), variance.astype(np.float64)


def stream_statistics(
    source: ArrayFile, channel_axis: int, budget: int, done: Callable[[int], None]
) -> tuple[Array, Array]:
    """Return mean and variance of each channel, with the same bits as a call on the whole array.

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
    tuple of ndarray
        The mean and the biased variance of each channel.
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
    moments = Moments(parts[0].count, means, m2s)
    return moments.mean, moments.variance()
