"""Zoneout: a step keeps a share of each element of the state before it (Krueger et al. 2017)."""

from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.formulas.cells import zoneout_blend, zoneout_gradient


class Zoneout(NamedTuple):
    """Compiled functions of some elements; `mask` holds their shares, or is None without zoneout.

    Attributes
    ----------
    blend : callable
        ``blend(new, before, mask, j, tail)``: the new elements and those before it.
    gradient : callable
        ``gradient(dy, mask, j, tail)``: the gradients of both, the second None without zoneout.
    """

    blend: Callable[..., Any]
    gradient: Callable[..., Any]


def make_zoneout(zoneout: bool, access: VectorAccess) -> Zoneout:
    """Return these functions; without zoneout, nothing is kept."""
    if not zoneout:
        return Zoneout(
            inlined(lambda new, before, mask, j, tail: new),
            inlined(lambda dy, mask, j, tail: (dy, None)),
        )
    read, of_elements, gradient_of = access.read, inlined(zoneout_blend), inlined(zoneout_gradient)

    @inlined
    def blend(new, before, mask, j, tail):
        return of_elements(new, read(before, j, tail), read(mask, j, tail))

    @inlined
    def gradient(dy, mask, j, tail):
        return gradient_of(dy, read(mask, j, tail))

    return Zoneout(blend, gradient)
