"""Where the gradients of gamma and beta are summed over rows.

Three forms, told apart by type: no sums at all (None), one number a channel (1-D, added up in
float64 at once), or one an element (2-D). The last would cost the loops a conversion for every
element, so it is summed in the working type first and flushed to float64 every few rows. The
sums of a channel's values are taken in the same two steps.
"""

import numpy as np
from numba.core import types
from numba.extending import overload

from numnorm.backends.cpu.line_heads import LINE

# Few enough that a float32 sum of so many terms is good to its last bits.
ROWS_BETWEEN_FLUSHES = 32


def _is_matrix(kind):
    return isinstance(kind, types.Array) and kind.ndim == 2


def with_parts(totals, parts):
    """Return totals that have all parts: new ones, of zeros, instead of totals without any."""
    if totals is None or totals.shape[0] > 0:
        return totals
    return np.zeros((parts, *totals.shape[1:]))


@overload(with_parts)
def _with_parts(totals, parts):
    if not isinstance(totals, types.Array):
        return lambda totals, parts: totals

    def implementation(totals, parts):
        if totals.shape[0] > 0:
            return totals
        return np.zeros((parts, *totals.shape[1:]))

    return implementation


def working_sums(total, like, head):
    """Return zeros of the type of `like` for a 2-D total, None for the other forms.

    Its first `head` elements lie before a cache line.
    """
    if total is None or total.ndim == 1:
        return None
    return np.zeros(total.shape, type(like))


@overload(working_sums)
def _working_sums(total, like, head):
    if not _is_matrix(total):
        return lambda total, like, head: None
    kind, itemsize = (np.float32, 4) if like == types.float32 else (np.float64, 8)

    def implementation(total, like, head):
        memory = np.zeros(total.size + LINE // itemsize, kind)
        offset = -(memory.ctypes.data + head * itemsize) % LINE // itemsize
        return memory[offset : offset + total.size].reshape(total.shape)

    return implementation


def is_by_channel(total):
    """Return whether a total has one number for a channel."""
    return total is not None and total.ndim == 1


@overload(is_by_channel, inline="always")
def _is_by_channel(total):
    by_channel = isinstance(total, types.Array) and total.ndim == 1
    return lambda total: by_channel


def flush(working, total):
    """Add the working sums to the total and set them to zero."""
    if working is not None:
        total += working
        working[:] = 0


@overload(flush)
def _flush(working, total):
    if not isinstance(working, types.Array):
        return lambda working, total: None

    def vector(working, total):
        for j in range(working.size):
            total[j] += working[j]
            working[j] = 0

    def matrix(working, total):
        for c in range(working.shape[0]):
            flush(working[c], total[c])

    return vector if working.ndim == 1 else matrix


def collect(total, channel, value):
    """Add a channel's sum to a 1-D total."""
    if total is not None and total.ndim == 1:
        total[channel] += value


@overload(collect)
def _collect(total, channel, value):
    if not isinstance(total, types.Array) or total.ndim != 1:
        return lambda total, channel, value: None

    def implementation(total, channel, value):
        total[channel] += value

    return implementation
