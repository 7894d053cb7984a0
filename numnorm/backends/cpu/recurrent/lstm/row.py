"""One row of one step of an LSTM."""

from collections.abc import Callable

from numnorm.backends.contract.recurrent import LSTMSpec
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.recurrent.common.cell_norm import make_cell_norm
from numnorm.backends.cpu.recurrent.common.zoneout import make_zoneout
from numnorm.backends.cpu.recurrent.kernels.units import make_unit_loop
from numnorm.backends.cpu.recurrent.lstm.gates import make_gate_norm, make_gates
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.activations import make_tanh
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.formulas.cells import lstm_cell, lstm_state


def _make_new_cell(
    spec: LSTMSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function of some units: the cell before its norm, and the gate o."""
    read, _, write = access
    gates, new = make_gates(spec, element_type, access), inlined(lstm_cell)

    @inlined
    def new_cell(z, xp, parameters, statistics, c_prev, cell, o_gate, j, tail):
        f, i, o, g = gates(z, xp, parameters, statistics, cell.size, j, tail)
        write(cell, j, new(f, i, g, read(c_prev, j, tail)), tail)
        write(o_gate, j, o, tail)

    return new_cell


def _make_new_state(
    spec: LSTMSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function of some units: the state, and the cell that is carried on."""
    read, coefficient, write = access
    apply, real = make_cell_norm(spec.cell, element_type).apply, element_type.compute_type
    tanh, state, carries = make_tanh(real), inlined(lstm_state), spec.carries_normalized
    apart, blend = carries or spec.zoneout, make_zoneout(spec.zoneout, access).blend

    @inlined
    def new_state(o_gate, cell, parameters, statistics, cells, states, masks, j, tail):
        (c_prev, c), (h_prev, h) = cells, states
        gamma = coefficient(parameters.gamma_c, j, tail, real(1))
        beta = coefficient(parameters.beta_c, j, tail, real(0))
        value = read(cell, j, tail)
        normalized = apply(value, statistics, gamma, beta)
        if apart:
            new = normalized if carries else value
            write(c, j, blend(new, c_prev, masks[1], j, tail), tail)
        new = state(read(o_gate, j, tail), tanh(normalized))
        write(h, j, blend(new, h_prev, masks[0], j, tail), tail)

    return new_state


@inlined
def _cells(carried, place):
    """Return the cell that a row was handed, and that which it hands on, maybe in its place."""
    kept = carried.shape[0] > place.batch
    before = carried[place.before if kept else place.b]
    return before, carried[place.batch + place.i if kept else place.b]


@inlined
def _cell_row(cell, place):
    """Return a row of the cells before their norm."""
    return cell[place.i if cell.shape[0] > place.batch else place.b]


def make_row(
    spec: LSTMSpec, element_type: ElementType
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the compiled functions of one row of one step: up to the cell, and from there on."""
    gate_norm, cell_norm = (
        make_gate_norm(spec, element_type),
        make_cell_norm(spec.cell, element_type),
    )
    new_cell = make_unit_loop(
        lambda access: _make_new_cell(spec, element_type, access), element_type
    )
    new_state = make_unit_loop(
        lambda access: _make_new_state(spec, element_type, access), element_type
    )

    @inlined
    def to_cell(z, xp, saved, parameters, scalings, masks, o, place):
        c_prev, _ = _cells(saved.carried, place)
        cell = _cell_row(saved.cell, place)
        statistics = gate_norm.find(z, xp, scalings.first, saved.statistics, place.i)
        new_cell(o.size, (z, xp, parameters, statistics, c_prev, cell, o))

    @inlined
    def to_state(z, xp, saved, parameters, scalings, masks, o, place):
        i, arrays = place.i, saved.statistics
        cells, cell = _cells(saved.carried, place), _cell_row(saved.cell, place)
        states = saved.state[place.before], saved.state[place.batch + i]
        statistics = cell_norm.statistics(cell, scalings.second)
        if arrays.mean_c.size > 0:
            cell_norm.save(statistics, arrays.mean_c, arrays.rstd_c, i)
        shares = part(masks.h, i), part(masks.c, i)
        new_state(o.size, (o, cell, parameters, statistics, cells, states, shares))

    return to_cell, to_state
