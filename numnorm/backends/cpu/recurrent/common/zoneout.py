"""Zoneout: blend the new state with the previous one (Krueger et al. 2017)."""

from collections.abc import Callable
from typing import Any, NamedTuple

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.formulas.cells import zoneout_blend, zoneout_gradient


class Zoneout(NamedTuple):
    """Compiled functions of a vector of units; `mask` is None without zoneout.

    Attributes
    ----------
    blend : callable
        ``blend(new, before, mask, j, tail)``: the blend of the values `new` and an array.
    gradient : callable
        ``gradient(dy, mask, j, tail)``: the gradients of `new` and of `before`, the latter None
        without zoneout.
    """

    blend: Callable[..., Any]
    gradient: Callable[..., Any]


def make_zoneout(zoneout: bool, access: VectorAccess) -> Zoneout:
    """Return the functions of zoneout; without it, `blend` returns `new`."""
    if not zoneout:
        return Zoneout(
            inlined(lambda new, before, mask, j, tail: new),
            inlined(lambda dy, mask, j, tail: (dy, None)),
        )
    read, blend_values, gradient_of = access.read, inlined(zoneout_blend), inlined(zoneout_gradient)

    @inlined
    def blend(new, before, mask, j, tail):
        return blend_values(new, read(before, j, tail), read(mask, j, tail))

    @inlined
    def gradient(dy, mask, j, tail):
        return gradient_of(dy, read(mask, j, tail))

    return Zoneout(blend, gradient)
