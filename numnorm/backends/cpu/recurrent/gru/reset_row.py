"""The forward pass of one row of a GRU whose reset gate scales the state before the product."""

from collections.abc import Callable

from numnorm.backends.contract.recurrent import GRUSpec
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.recurrent.common.dropout import make_operand
from numnorm.backends.cpu.recurrent.common.zoneout import make_zoneout
from numnorm.backends.cpu.recurrent.gru.reset_gates import (
    make_candidate,
    make_gates,
    make_part_norm,
)
from numnorm.backends.cpu.recurrent.kernels.units import make_unit_loop
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.formulas.cells import gru_state


def _make_reset_state(
    spec: GRUSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function that stores 1 - z and the state times r of a vector of units.

    ``reset_state(hp, xp, parameters, statistics, operand, keep, reset, j, tail)``
    """
    read, _, write = access
    gates = make_gates(spec, element_type, access)

    @inlined
    def reset_state(hp, xp, parameters, statistics, operand, keep, reset, j, tail):
        one_minus_z, r = gates(hp, xp, parameters, statistics, keep.size, j, tail)
        write(keep, j, one_minus_z, tail)
        write(reset, j, r * read(operand, j, tail), tail)

    return reset_state


def _make_new_state(
    spec: GRUSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function that stores the new state of a vector of units.

    ``new_state(hp, xp, parameters, statistics, h_prev, keep, h, mask, j, tail)``
    """
    read, _, write = access
    candidate = make_candidate(spec, element_type, access)
    blend = make_zoneout(spec.zoneout, access).blend
    state, real = inlined(gru_state), element_type.compute_type

    @inlined
    def new_state(hp, xp, parameters, statistics, h_prev, keep, h, mask, j, tail):
        new = candidate(hp, xp, parameters, statistics, h.size, j, tail)
        new = state(read(keep, j, tail), new, read(h_prev, j, tail), real(1))
        write(h, j, blend(new, h_prev, mask, j, tail), tail)

    return new_state


def make_row(
    spec: GRUSpec, element_type: ElementType
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the functions of `CellKind.make_row`: one up to the reset state, one to the state."""
    norm = make_part_norm(spec, element_type)
    reset_state = make_unit_loop(_make_reset_state, spec, element_type)
    new_state = make_unit_loop(_make_new_state, spec, element_type)
    operand_of = make_operand(spec.recurrent_dropout)

    @inlined
    def to_reset(hp, xp, saved, parameters, scalings, masks, keep, index):
        operand, i = operand_of(saved)[index.before], index.i
        reset = saved.cell[i if saved.cell.shape[0] > index.batch else index.b]
        statistics = norm.compute(hp, xp, scalings.first, saved.statistics, i, 0)
        reset_state(keep.size, (hp, xp, parameters, statistics, operand, keep, reset))

    @inlined
    def to_state(hp, xp, saved, parameters, scalings, masks, keep, index):
        i, h_prev = index.i, saved.state[index.before]
        h, mask = saved.state[index.batch + i], part(masks.h, i)
        statistics = norm.compute(hp, xp, scalings.second, saved.statistics, i, 1)
        new_state(keep.size, (hp, xp, parameters, statistics, h_prev, keep, h, mask))

    return to_reset, to_state
