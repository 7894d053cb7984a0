"""Where the gradients of gamma and beta are summed over rows.

Three forms, told apart by type: no sums at all (None), one number a channel (1-D, added up in
float64 at once), or one an element (2-D). The last would cost the loops a conversion for every
element, so it is summed in the working type first and flushed to float64 every few rows. The
sums of a channel's values are taken in the same two steps.
"""

import numpy as np
from numba.core import types
from numba.extending import overload

from numnorm.backends.cpu.memory.allocated import make_aligned_zeros
from numnorm.backends.cpu.memory.borrowed import shaped

# Few enough that a float32 sum of so many terms is good to its last bits.
ROWS_BETWEEN_FLUSHES = 32


def _is_matrix(kind):
    return isinstance(kind, types.Array) and kind.ndim == 2


def with_parts(totals, parts, result, once):
    """Return totals that have all parts: new ones, of zeros, instead of totals without any.

    Where the sums of elements are flushed but `once` they are made in the `result` instead, if
    there is one, and the totals have no elements.
    """
    if totals is None or totals.shape[0] > 0:
        return totals
    return np.zeros((parts, *totals.shape[1:]))


@overload(with_parts)
def _with_parts(totals, parts, result, once):
    if not isinstance(totals, types.Array):
        return lambda totals, parts, result, once: totals
    zeros = make_aligned_zeros(np.float64, totals.ndim)

    def of_channels(totals, parts, result, once):
        return totals if totals.shape[0] > 0 else zeros((parts, totals.shape[1]), 0)

    def of_elements(totals, parts, result, once):
        if totals.shape[0] > 0:
            return totals
        if once and result.size > 0:
            return shaped(totals, (parts, 0, 0))
        return zeros((parts, totals.shape[1], totals.shape[2]), 0)

    return of_channels if totals.ndim == 2 else of_elements


def compute_sums(total, like, peel, result, shape):
    """Return zeros of the type of `like` for a 2-D total, None for the other forms.

    Its first `peel` elements lie before a cache line. Instead of a total without elements, the
    sums are made in the `result`.
    """
    if total is None or total.ndim == 1:
        return None
    return np.zeros(shape, type(like))


@overload(compute_sums)
def _compute_sums(total, like, peel, result, shape):
    if not _is_matrix(total):
        return lambda total, like, peel, result, shape: None
    zeros = make_aligned_zeros(np.float32 if like == types.float32 else np.float64, 2)

    def implementation(total, like, peel, result, shape):
        if total.size > 0:
            return zeros(shape, peel)
        for j in range(result.size):
            result[j] = 0
        return shaped(result, shape)

    return implementation


def is_by_channel(total):
    """Return whether a total has one number for a channel."""
    return total is not None and total.ndim == 1


@overload(is_by_channel, inline="always")
def _is_by_channel(total):
    by_channel = isinstance(total, types.Array) and total.ndim == 1
    return lambda total: by_channel


def flush(compute_type, total):
    """Add the working sums to the total and set them to zero."""
    if compute_type is not None:
        total += compute_type
        compute_type[:] = 0


@overload(flush)
def _flush(compute_type, total):
    if not isinstance(compute_type, types.Array):
        return lambda compute_type, total: None

    def vector(compute_type, total):
        for j in range(compute_type.size):
            total[j] += compute_type[j]
            compute_type[j] = 0

    def matrix(compute_type, total):
        for c in range(total.shape[0]):
            flush(compute_type[c], total[c])

    return vector if compute_type.ndim == 1 else matrix


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
