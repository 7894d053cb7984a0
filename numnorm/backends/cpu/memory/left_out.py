"""Elements that a weighting leaves out: where they are, and their results."""

from collections.abc import Callable

import numpy as np

from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cpu.memory.host_arrays import Array


def kept_by(weighting: Weighting, x: Array) -> Array:
    """Return a mask of the shape of x, False where an element is left out."""
    keep = True if weighting.keep is None else weighting.keep
    if weighting.omit:
        return keep & ~np.isnan(x)
    # A copy: a result may be written over the mask.
    return np.broadcast_to(np.array(keep), x.shape)


def filling_of(weighting: Weighting, x: Array) -> Callable[[Array], Array]:
    """Return a function that stores the fill values in a result, and returns the result.

    What `keep` leaves out gets another value than a NaN that is left out. The result may be in the
    memory of x or of the mask.
    """
    out = None if weighting.keep is None else ~weighting.keep
    missing = np.isnan(x) if weighting.omit else None

    def fill(y: Array) -> Array:
        if missing is not None:
            np.copyto(y, weighting.fill_missing, where=missing, casting="unsafe")
        if out is not None:
            np.copyto(y, weighting.fill, where=out, casting="unsafe")
        return y

    return fill
