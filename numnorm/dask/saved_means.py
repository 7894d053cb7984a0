"""What a saved mean lost when it was rounded, which the sums over all blocks restore."""

from __future__ import annotations

from typing import Any

import numpy as np

# Rounding changes a saved mean by no more than this share of it.
_MOST_LOST = 2.0**-50


def lost_of(deviations: Any, count: int, mean: Any) -> Any:
    """Return the true mean less the saved one; 0 where the caller changed the saved one.

    Parameters
    ----------
    deviations : array
        The sums of x less the saved mean.
    count : int
        The number of elements of each sum.
    mean : array
        The saved mean.
    """
    with np.errstate(all="ignore"):
        lost = deviations / count
        return np.where(np.abs(lost) <= _MOST_LOST * np.abs(mean), lost, 0.0)
