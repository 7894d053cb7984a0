"""Accumulators for the gradients of gamma and beta over rows.

The totals have one of three forms, chosen by type: None, one number a channel (1-D) or one an
element (2-D). The numbers of channels are added in float64 at once. For elements the loops would
have to convert each one, so they add to partial sums in the compute type, which are flushed to the
float64 totals every few rows. The columns use the same two steps for sums of channels.
"""

import numpy as np
from numba.core import types

from numnorm.backends.cpu.compiler.jit import overloaded, shared
from numnorm.backends.cpu.memory.kernel_arrays import as_flat, make_aligned_zeros, shaped


def _is_matrix(kind):
    return isinstance(kind, types.Array) and kind.ndim == 2


def with_parts(totals, parts, result, once):
    """Return the totals, or new zeros for all parts if the totals have no parts.

    Exception: if the sums of elements are flushed only `once` and `result` is not empty, no totals
    are needed. The sums are built directly in `result`, and empty totals are returned.
    """
    if totals is None or totals.shape[0] > 0:
        return totals
    return np.zeros((parts, *totals.shape[1:]))


@overloaded(with_parts)
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


def partial_sums(total, like, peel, result, shape):
    """Return zeros of the type of `like` for a 2-D total, None for the other forms.

    Their first `peel` elements lie before a cache line. If the total is empty, the partial sums
    are `result` itself, reshaped and set to zero; without such totals `result` is None.
    """
    if total is None or total.ndim == 1:
        return None
    return np.zeros(shape, type(like))


@overloaded(partial_sums)
def _partial_sums(total, like, peel, result, shape):
    if not _is_matrix(total):
        return lambda total, like, peel, result, shape: None
    zeros = make_aligned_zeros(np.float32 if like == types.float32 else np.float64, 2)
    if result == types.none:
        return lambda total, like, peel, result, shape: zeros(shape, peel)

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


@overloaded(is_by_channel)
def _is_by_channel(total):
    by_channel = isinstance(total, types.Array) and total.ndim == 1
    return lambda total: by_channel


def flush(partial, total):
    """Add the partial sums to the total and set them to zero."""
    if partial is not None:
        total += partial
        partial[:] = 0


@shared
def _flush_all(partial, total):
    # The total is empty if the partial sums are the result: see `partial_sums`.
    for j in range(total.size):
        total[j] += partial[j]
        partial[j] = 0


@overloaded(flush)
def _flush(partial, total):
    if not isinstance(partial, types.Array):
        return lambda partial, total: None
    if partial.ndim == 1:
        return lambda partial, total: _flush_all(partial, total)
    return lambda partial, total: _flush_all(as_flat(partial), as_flat(total))


def collect(total, channel, value):
    """Add a channel's sum to a 1-D total."""
    if total is not None and total.ndim == 1:
        total[channel] += value


@overloaded(collect)
def _collect(total, channel, value):
    if not isinstance(total, types.Array) or total.ndim != 1:
        return lambda total, channel, value: None

    def implementation(total, channel, value):
        total[channel] += value

    return implementation
