"""Elements that a weighting leaves out: where they are, and their results."""

from collections.abc import Callable

import numpy as np

from numnorm.backends.contract.weighting import Weighting
from numnorm.backends.cpu.memory.host_arrays import Array


def kept_by(weighting: Weighting, x: Array) -> Array:
    """Return a mask of the shape of x, False where an element is left out."""
    return _kept(weighting, x, _missing(weighting, x))


def filling_of(weighting: Weighting, x: Array) -> Callable[[Array], Array]:
    """Return a function that stores the fill values in a result, and returns the result.

    What `keep` leaves out gets another value than a NaN that is left out. The result may be in the
    memory of x or of the mask.
    """
    return _filling(weighting, _missing(weighting, x))


def selected_by(weighting: Weighting, x: Array) -> tuple[Array, Callable[[Array], Array]]:
    """Return the results of `kept_by` and of `filling_of`, and look for NaN once."""
    missing = _missing(weighting, x)
    return _kept(weighting, x, missing), _filling(weighting, missing)


def _missing(weighting: Weighting, x: Array) -> Array | None:
    return np.isnan(x) if weighting.omit else None


def _kept(weighting: Weighting, x: Array, missing: Array | None) -> Array:
    keep = True if weighting.keep is None else weighting.keep
    if missing is not None:
        return keep & ~missing
    # A copy: a result may be written over the mask.
    return np.broadcast_to(np.array(keep), x.shape)


def _filling(weighting: Weighting, missing: Array | None) -> Callable[[Array], Array]:
    out = None if weighting.keep is None else ~weighting.keep

    def fill(y: Array) -> Array:
        with np.errstate(all="ignore"):  # a fill value may leave the range of the dtype
            if missing is not None:
                np.copyto(y, weighting.fill_missing, where=missing, casting="unsafe")
            if out is not None:
                np.copyto(y, weighting.fill, where=out, casting="unsafe")
        return y

    return fill
