"""Zoneout: a step keeps a share of each element of the state before it (Krueger et al. 2017)."""

from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.simd.access import Access


class Zoneout(NamedTuple):
    """Compiled functions of some elements; `keep` holds their shares, or is None without zoneout.

    Attributes
    ----------
    mixed : callable
        ``mixed(new, before, keep, j, rest)``: the new elements and those before it.
    passed : callable
        ``passed(slope, keep, j, rest)``: what of a gradient reaches the new elements.
    kept : callable
        ``kept(slope, keep, j, rest)``: what of it goes past them, not asked for without zoneout.
    """

    mixed: Callable[..., Any]
    passed: Callable[..., Any]
    kept: Callable[..., Any]


def make_zoneout(zoneout: bool, access: Access) -> Zoneout:
    """Return these functions; without zoneout, nothing is kept."""
    if not zoneout:
        return Zoneout(
            inlined(lambda new, before, keep, j, rest: new),
            inlined(lambda slope, keep, j, rest: slope),
            inlined(lambda slope, keep, j, rest: slope),
        )
    read = access.read

    @inlined
    def mixed(new, before, keep, j, rest):
        share = read(keep, j, rest)
        return (new - share * new) + share * read(before, j, rest)  # exact where all is kept

    @inlined
    def passed(slope, keep, j, rest):
        return slope - read(keep, j, rest) * slope

    @inlined
    def kept(slope, keep, j, rest):
        return read(keep, j, rest) * slope

    return Zoneout(mixed, passed, kept)
