"""A batch of sequences of any lengths as rows: step by step, those of longer sequences first.

The rows of a step are the first of the step before it, and no row is padding: it costs nothing,
and cannot influence a result.
"""

import functools
from typing import Any

import numpy as np

from numnorm.arguments import as_plain_array, check_shape
from numnorm.backends.contract.recurrent import PackedSteps, SequenceLayout

Array = np.ndarray[Any, Any]


def sequence_layout(time: int, batch: int, lengths: Any, reverse: bool) -> SequenceLayout:
    """Return the layout of sequences of these lengths; None stands for all of the time."""
    if lengths is not None:
        return _layout(time, batch, check_lengths(lengths, time, batch), reverse)
    if reverse:  # its places may be many
        return _layout(time, batch, np.full(batch, time), reverse)
    return _layout_of_whole(time, batch)


@functools.lru_cache(maxsize=64)
def _layout_of_whole(time: int, batch: int) -> SequenceLayout:
    # Each call of a short sequence would spend a twentieth of its time on it.
    return _layout(time, batch, np.full(batch, time), reverse=False)


def _layout(time: int, batch: int, counted: Array, reverse: bool) -> SequenceLayout:
    order = np.argsort(-counted, kind="stable")
    order = order[counted[order] > 0]
    sort_states = counted[order]
    longest = int(sort_states[0]) if sort_states.size else 0
    batch_sizes = np.searchsorted(-sort_states, -np.arange(longest), side="left").astype(np.int64)
    offsets = np.concatenate(([0], np.cumsum(batch_sizes)[:-1])).astype(np.int64)[:longest]
    even = sort_states.size == batch and longest > 0 and sort_states[-1] == time
    rank = np.concatenate([np.arange(n) for n in batch_sizes]) if longest and not even else None
    indices = None
    if reverse and even:
        indices = (np.arange(time)[::-1, None] * batch + np.arange(batch)).reshape(-1)
    elif rank is not None:
        step = np.repeat(np.arange(longest), batch_sizes)
        moment = sort_states[rank] - 1 - step if reverse else step
        indices = moment * batch + order[rank]
    elif not even:
        indices = np.zeros(0, np.int64)
    last = (
        offsets[sort_states - 1] + np.arange(sort_states.size) if longest else np.zeros(0, np.int64)
    )
    return SequenceLayout(
        time, batch, None if even else order, indices, PackedSteps(offsets, batch_sizes), last
    )


def check_lengths(lengths: Any, time: int, batch: int) -> Array:
    """Return the lengths as an array of integers."""
    array = as_plain_array("lengths", lengths)
    check_shape("lengths", array.shape, (batch,), "one for each sequence")
    if array.size and array.dtype.kind not in "iu":  # an empty list has no integers
        raise TypeError(f"lengths must be integers, got dtype {array.dtype}")
    for bad in array[(array < 0) | (array > time)]:
        raise ValueError(f"lengths must be between 0 and {time}, the length of x, got {bad}")
    return array.astype(np.int64)
