"""The setting of how many threads a call may use."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar

from numnorm.arguments import check_integer

# The most threads that a call may use.
limit: ContextVar[int] = ContextVar("limit", default=sys.maxsize)


def num_threads(count: int) -> AbstractContextManager[None]:
    """Limit the number of threads of calls inside the ``with`` statement.

    The limit applies to arrays on the CPU, in the same thread or asyncio task. Results are the
    same bytes for any number of threads.

    Parameters
    ----------
    count : int
        The largest number of threads, at least 1. With 1, calls start no threads. The innermost
        ``with`` statement counts.

    Returns
    -------
    context manager
        The limit holds inside its ``with`` statement.

    Raises
    ------
    TypeError, ValueError
        If `count` is not an int, or less than 1.

    Notes
    -----
    Without this setting, the number of threads is the least of these: ``NUMBA_NUM_THREADS`` and
    ``numba.set_num_threads``; ``OMP_NUM_THREADS``; the limits of threadpoolctl on OpenMP; and the
    number of processors that the process may use, by its affinity and by the CPU quota of its
    control group. The setting cannot exceed them. Small calls use one thread, and so do large
    calls while other programs keep the processors busy.

    Examples
    --------
    >>> import numpy as np
    >>> import numnorm
    >>> with numnorm.num_threads(1):
    ...     y = numnorm.layer_norm(np.ones((2, 3)))
    >>> y.shape
    (2, 3)
    """
    return _limit_to(check_integer("count", count, 1))


@contextmanager
def _limit_to(count: int) -> Iterator[None]:
    token = limit.set(count)
    try:
        yield
    finally:
        limit.reset(token)
