"""Packs a batch of sequences of any lengths into rows: step by step, longer sequences first.

The sequences of a step are the first ones of the step before it. No row is padding, so that padding
costs no time and cannot influence a result.
"""

import functools
from typing import Any

import numpy as np

from numnorm.arguments import check_shape
from numnorm.array_likes import as_plain_array
from numnorm.backends.contract.recurrent import PackedSteps, SequenceLayout

Array = np.ndarray[Any, Any]


def sequence_layout(time: int, batch: int, lengths: Any, reverse: bool) -> SequenceLayout:
    """Return the layout of sequences of these lengths; None means that all have `time` steps."""
    if lengths is not None:
        return _layout(time, batch, check_lengths(lengths, time, batch), reverse)
    if reverse:  # not cached: its indices may take much memory
        return _layout(time, batch, np.full(batch, time), reverse)
    return _layout_of_whole(time, batch)


@functools.lru_cache(maxsize=64)
def _layout_of_whole(time: int, batch: int) -> SequenceLayout:
    # Cached because it takes a noticeable part of the time of a short sequence.
    return _layout(time, batch, np.full(batch, time), reverse=False)


def _layout(time: int, batch: int, lengths: Array, reverse: bool) -> SequenceLayout:
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    lengths = lengths[order]
    longest = int(lengths[0]) if lengths.size else 0
    batch_sizes = np.searchsorted(-lengths, -np.arange(longest), side="left").astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(batch_sizes)[:-1])).astype(np.int64)[:longest]
    even = lengths.size == batch and longest > 0 and lengths[-1] == time
    rank = np.concatenate([np.arange(n) for n in batch_sizes]) if longest and not even else None
    indices = None
    if reverse and even:
        indices = (np.arange(time)[::-1, None] * batch + np.arange(batch)).reshape(-1)
    elif rank is not None:
        step = np.repeat(np.arange(longest), batch_sizes)
        index = lengths[rank] - 1 - step if reverse else step
        indices = index * batch + order[rank]
    elif not even:
        indices = np.zeros(0, np.int64)
    last = offsets[lengths - 1] + np.arange(lengths.size) if longest else np.zeros(0, np.int64)
    steps = PackedSteps(offsets, batch_sizes)
    return SequenceLayout(time, batch, None if even else order, indices, steps, last)


def check_lengths(lengths: Any, time: int, batch: int) -> Array:
    """Return the checked lengths as an array of int64."""
    array = as_plain_array("lengths", lengths)
    check_shape("lengths", array.shape, (batch,), "one for each sequence")
    if array.size and array.dtype.kind not in "iu":  # an empty list has dtype float64
        raise TypeError(f"lengths must be integers, got dtype {array.dtype}")
    for bad in array[(array < 0) | (array > time)]:
        raise ValueError(f"lengths must be between 0 and {time}, the length of x, got {bad}")
    return array.astype(np.int64)
