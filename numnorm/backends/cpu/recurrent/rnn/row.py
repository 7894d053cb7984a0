"""The forward pass of one row of one step of a plain recurrent network."""

from collections.abc import Callable

from numnorm.backends.contract.recurrent import RNNSpec
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.recurrent.common.cell_norm import make_cell_norm
from numnorm.backends.cpu.recurrent.common.zoneout import make_zoneout
from numnorm.backends.cpu.recurrent.kernels.units import make_unit_loop, no_second_half
from numnorm.backends.cpu.recurrent.rnn.state import make_state
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part


def _make_new_state(
    spec: RNNSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function that stores the new state of a vector of units.

    ``new_state(z, parameters, statistics, h_prev, h, mask, j, tail)``
    """
    write, state = access.write, make_state(spec, element_type, access)
    blend = make_zoneout(spec.zoneout, access).blend

    @inlined
    def new_state(z, parameters, statistics, h_prev, h, mask, j, tail):
        new = state(z, parameters, statistics, j, tail)
        write(h, j, blend(new, h_prev, mask, j, tail), tail)

    return new_state


def make_row(
    spec: RNNSpec, element_type: ElementType
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the functions of `CellKind.make_row`; the first does all."""
    norm = make_cell_norm(spec.norm, element_type)
    new_state = make_unit_loop(_make_new_state, spec, element_type)

    @inlined
    def row(z, xp, saved, parameters, scalings, masks, scratch, index):
        mean, rstd = saved.statistics.mean_h, saved.statistics.rstd_h
        h_prev, h = saved.state[index.before], saved.state[index.batch + index.i]
        statistics = norm.statistics(z, scalings.first)
        if mean.size > 0:
            norm.save(statistics, mean, rstd, index.i)
        mask = part(masks.h, index.i)
        new_state(h.size, (z, parameters, statistics, h_prev, h, mask))

    return row, no_second_half
