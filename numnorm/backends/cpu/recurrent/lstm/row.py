"""The forward pass of one row of one step of an LSTM."""

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
    """Return a compiled function that stores a vector of the cell before its norm and of o.

    ``new_cell(z, xp, parameters, statistics, c_prev, cell, o_gate, j, tail)``
    """
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
    """Return a compiled function that stores the new state and the carried cell.

    ``new_state(o_gate, cell, parameters, statistics, cells, states, masks, j, tail)``, for a vector
    of units; `cells` and `states` are pairs of rows, the previous and the new one.
    """
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
def _cells(carried, index):
    """Return a row's previous and new carried cell; the same row if cells are not saved."""
    saved = carried.shape[0] > index.batch
    before = carried[index.before if saved else index.b]
    return before, carried[index.batch + index.i if saved else index.b]


@inlined
def _cell_row(cell, index):
    """Return a row's cell before its norm, or its output before a projection."""
    return cell[index.i if cell.shape[0] > index.batch else index.b]


def make_row(
    spec: LSTMSpec, element_type: ElementType
) -> tuple[Callable[..., None], Callable[..., None]]:
    """Return the functions of `CellKind.make_row`: one up to the cell, one up to the state."""
    gate_norm = make_gate_norm(spec, element_type)
    cell_norm = make_cell_norm(spec.cell, element_type)
    new_cell = make_unit_loop(_make_new_cell, spec, element_type)
    new_state = make_unit_loop(_make_new_state, spec, element_type)
    projected = spec.projected

    @inlined
    def to_cell(z, xp, saved, parameters, scalings, masks, o, index):
        c_prev, _ = _cells(saved.carried, index)
        cell = _cell_row(saved.cell, index)
        statistics = gate_norm.compute(z, xp, scalings.first, saved.statistics, index.i)
        new_cell(o.size, (z, xp, parameters, statistics, c_prev, cell, o))

    @inlined
    def to_state(z, xp, saved, parameters, scalings, masks, o, index):
        i, arrays = index.i, saved.statistics
        cells, cell = _cells(saved.carried, index), _cell_row(saved.cell, index)
        h = _cell_row(saved.outputs, index) if projected else saved.state[index.batch + i]
        states = saved.state[index.before], h
        statistics = cell_norm.statistics(cell, scalings.second)
        if arrays.mean_c.size > 0:
            cell_norm.save(statistics, arrays.mean_c, arrays.rstd_c, i)
        row_masks = part(masks.h, i), part(masks.c, i)
        new_state(o.size, (o, cell, parameters, statistics, cells, states, row_masks))

    return to_cell, to_state
