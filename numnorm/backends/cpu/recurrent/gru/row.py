"""The forward pass of one row of one step of a gated recurrent unit."""

from collections.abc import Callable

from numnorm.backends.contract.recurrent import GRUSpec
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.recurrent.common.zoneout import make_zoneout
from numnorm.backends.cpu.recurrent.gru.gates import make_gates, make_product_norm
from numnorm.backends.cpu.recurrent.kernels.units import make_unit_loop, no_second_half
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.formulas.cells import gru_state


def _make_new_state(
    spec: GRUSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function that stores the new state of a vector of units.

    ``new_state(hp, xp, parameters, statistics, h_prev, h, mask, j, tail)``
    """
    read, _, write = access
    gates, blend = make_gates(spec, element_type, access), make_zoneout(spec.zoneout, access).blend
    state, real = inlined(gru_state), element_type.compute_type

    @inlined
    def new_state(hp, xp, parameters, statistics, h_prev, h, mask, j, tail):
        keep, _, candidate, _ = gates(hp, xp, parameters, statistics, h.size, j, tail)
        new = state(keep, candidate, read(h_prev, j, tail), real(1))
        write(h, j, blend(new, h_prev, mask, j, tail), tail)

    return new_state


def make_row(
    spec: GRUSpec, element_type: ElementType
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the functions of `CellKind.make_row`; the first does all."""
    norm = make_product_norm(spec, element_type)
    new_state = make_unit_loop(_make_new_state, spec, element_type)

    @inlined
    def row(hp, xp, saved, parameters, scalings, masks, scratch, index):
        i, (saved_h, saved_x) = index.i, norm.arrays(saved.statistics)
        h_prev, h = saved.state[index.before], saved.state[index.batch + i]
        statistics = norm.compute(hp, scalings, saved_h, i), norm.compute(xp, scalings, saved_x, i)
        new_state(h.size, (hp, xp, parameters, statistics, h_prev, h, part(masks.h, i)))

    return row, no_second_half
