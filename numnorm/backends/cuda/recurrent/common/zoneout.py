"""Zoneout: a step keeps a share of each element of the state before it (Krueger et al. 2017)."""

from typing import Any

from numnorm.backends.cuda.compiler.target import device


@device
def mixed(new: Any, before: Any, share: Any) -> Any:
    """Return the new element and the one before it, by the share that is kept."""
    return (new - share * new) + share * before  # exact where all is kept


@device
def passed(slope: Any, share: Any) -> Any:
    """Return what of a gradient reaches the new element."""
    return slope - share * slope
