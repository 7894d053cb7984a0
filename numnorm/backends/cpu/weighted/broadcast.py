"""What the gradients of gains that broadcast against x take in place of elements left out."""

from collections.abc import Callable

import numpy as np

from numnorm.backends.cpu.memory.host_arrays import Array


def cleared(
    keep: Array,
    dy: Array,
    x: Array,
    statistics: tuple[Array, Array],
    spread: Callable[[Array], Array],
) -> tuple[Array, Array, tuple[Array, Array]]:
    """Return dy and x, which are 0 where an element is left out, and statistics without NaN.

    A row or channel of which nothing is left has a NaN there. In any other with a NaN, all that is
    kept of x becomes NaN: so do its gradients. `spread` gives a statistic the shape of x.
    """
    dy, x = np.where(keep, dy, dy.dtype.type(0)), np.where(keep, x, x.dtype.type(0))
    unknown = np.isnan(statistics[0]) | np.isnan(statistics[1])
    if unknown.any():
        np.copyto(x, x.dtype.type(np.nan), where=keep & spread(unknown))
    mean, rstd = (np.where(np.isnan(statistic), 0.0, statistic) for statistic in statistics)
    return dy, x, (mean, rstd)
