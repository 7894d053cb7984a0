"""The statistics of batch norm: of an array in a file, in one pass over it, and in .npz files."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from numnorm import Moments, batch_moments, chunk_multiple
from numnorm.array_types import NanPolicy
from numnorm.backends.contract.backend import BlockMoments
from numnorm.commands.apply.formats.protocol import Array
from numnorm.commands.outputs import appearing
from numnorm.commands.terminal import CommandError, one_line
from numnorm.norms.batch import folded_moments


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
        write_statistics(file, mean, variance)


def write_statistics(file: BinaryIO, mean: Array, variance: Array) -> None:
    """Write statistics to an open file, as `save_statistics`.

    Parameters
    ----------
    file : BinaryIO
        The file.
    mean, variance : ndarray
        The mean and the biased variance of each channel.
    """
    np.savez(file, mean=mean, var=variance)


def check_statistics_file(path: Path, statistics: tuple[Array, Array] | None) -> None:
    """Raise if a file has other content than these statistics, which a killed run may have left.

    Parameters
    ----------
    path : Path
        The file, which need not exist.
    statistics : tuple of ndarray, optional
        Mean and variance of each channel. Default: none have been taken yet.

    Raises
    ------
    CommandError
        If there is a file with something else.
    """
    if path.exists() and not _holds(path, statistics):
        raise CommandError(f"the file of statistics {path} exists: --force replaces it")


def _holds(path: Path, statistics: tuple[Array, Array] | None) -> bool:
    """Return whether a file has these statistics, to the bit."""
    if statistics is None:
        return False
    try:
        found = load_statistics(path, len(statistics[0]))
    except CommandError:
        return False
    pairs = zip(found, statistics, strict=True)
    return all(saved.tobytes() == taken.tobytes() for saved, taken in pairs)


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
            mean = file["mean"]
            variance = file["var"]
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
    channel_axis: int,
    parts: Iterable[Array],
    done: Callable[[int], None],
    nan_policy: str = "propagate",
) -> tuple[Array, Array]:
    """Return mean and variance of each channel, with the same bits as a call on the whole array.

    If NaN is omitted, several parts give the same numbers up to rounding.

    Parameters
    ----------
    channel_axis : int
        The channel axis, counted from the front.
    parts : iterable of ndarray
        The array in parts, in order, cut as `cuttable_axes` allows.
    done : callable
        Called after each part with its number of elements.
    nan_policy : str, default "propagate"
        As for `batch_moments`.

    Returns
    -------
    tuple of ndarray
        The mean and the biased variance of each channel.

    Raises
    ------
    CommandError
        If there is a NaN, and `nan_policy` is ``"raise"``.
    """
    moments: list[Moments] = []
    for x in parts:
        after = moments.pop() if moments and channel_axis != 0 else None
        moments.append(part_moments(x, channel_axis, nan_policy, after))
        done(x.size)
    return _statistics(moments)


def part_moments(
    x: Array, channel_axis: int, nan_policy: str, after: Moments | None = None
) -> Moments:
    """Return moments of a part of the array, as `batch_moments`.

    Parameters
    ----------
    x : ndarray
        The part.
    channel_axis, nan_policy, after
        As for `batch_moments`.

    Returns
    -------
    Moments
        With a count for each channel if NaN is omitted.

    Raises
    ------
    CommandError
        With the message of `batch_moments`.
    """
    policy = cast(NanPolicy, nan_policy)
    try:
        return batch_moments(x, channel_axis=channel_axis, after=after, nan_policy=policy)
    except ValueError as error:
        raise CommandError(one_line(error)) from error


def merged_statistics(
    channel_axis: int,
    parts: Iterable[tuple[int, BlockMoments | Moments]],
    done: Callable[[int], None],
) -> tuple[Array, Array]:
    """Return mean and variance of each channel, as `stream_statistics`, from moments of parts.

    Parameters
    ----------
    channel_axis : int
        The channel axis, counted from the front.
    parts : iterable of (int, BlockMoments or Moments)
        The number of elements of each box, in order, and the moments of its blocks, or of the box
        where values are missing.
    done : callable
        Called after each part with its number of elements.

    Returns
    -------
    tuple of ndarray
        The mean and the biased variance of each channel.
    """
    moments: list[Moments] = []
    for size, part in parts:
        before = [moments.pop()] if moments and channel_axis != 0 else []
        if isinstance(part, Moments):
            moments.append(before[0].merge(part) if before else part)
        else:
            moments.append(folded_moments([*before, part]))
        done(size)
    return _statistics(moments)


def cuttable_axes(shape: tuple[int, ...], channel_axis: int) -> list[tuple[int, int]]:
    """Return the axis along which the statistics can be taken in parts, as `Job.cuttable_axes`.

    Parameters
    ----------
    shape : tuple of int
        The shape of the whole array.
    channel_axis : int
        Its channel axis, counted from the front.

    Returns
    -------
    list of (int, int)
        The first axis, and where it may be cut.
    """
    # Parts along the first axis have different channels if it is the channel axis. Otherwise they
    # continue the same channels, and must begin at multiples of `chunk_multiple` for equal bytes.
    return [(0, 1 if channel_axis == 0 else chunk_multiple(shape, channel_axis=channel_axis))]


def _statistics(parts: list[Moments]) -> tuple[Array, Array]:
    """Return mean and variance of the channels of all parts."""
    means, m2s = (np.concatenate([part[field] for part in parts]) for field in (1, 2))
    counts = [part.count for part in parts]
    count = counts[0] if np.ndim(counts[0]) == 0 else np.concatenate(counts)
    moments = Moments(count, means, m2s)
    return moments.mean, moments.var()
