"""The plain recurrent network: forward and backward pass of one row of one step, and `CellKind`."""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.recurrent import RNNSpec
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.recurrent.arguments import (
    CellKind,
    Norms,
    Parameters,
    added_up,
    norm_pair,
)
from numnorm.backends.cpu.recurrent.cell_norm import make_cell_norm, make_normalized
from numnorm.backends.cpu.recurrent.units import (
    make_unit_loop,
    make_write_summed,
    make_zoneout,
    no_second_half,
    prefetch_row,
)
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.activations import make_activation
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.functions import unless_zero
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.formulas.cells import tanh_gradient


def make_state(
    spec: RNNSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., Any]:
    """Return a compiled ``state(z, parameters, statistics, j, tail)``, without zoneout."""
    read, normalized = access.read, make_normalized(spec.norm, element_type, access)
    activation = make_activation(spec.rectified, element_type.compute_type)

    @inlined
    def state(z, parameters, statistics, j, tail):
        value = normalized(z, statistics, parameters.gamma_h, parameters.beta_h, j, tail)
        return activation(value + read(parameters.offset, j, tail))

    return state


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


def _make_activation_gradient(spec: RNNSpec, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``gradient(dy, y)`` of the activation's argument, from its result y."""
    if spec.rectified:
        return unless_zero
    gradient, real = inlined(tanh_gradient), element_type.compute_type
    return inlined(lambda dy, y: gradient(dy, y, real(1)))


def _make_gradient(
    spec: RNNSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function that stores the gradient of the activation's input.

    ``gradient(z, parameters, statistics, dy, dh, mask, result, sums, distance, j, tail)``, for a
    vector of units. With zoneout it replaces dh by what passes to the previous state.
    """
    read, _, write = access
    state = make_state(spec, element_type, access)
    activation_gradient = _make_activation_gradient(spec, element_type)
    zoneout, zoned = make_zoneout(spec.zoneout, access), spec.zoneout
    write_summed = make_write_summed(access)

    @inlined
    def gradient(z, parameters, statistics, dy, dh, mask, result, sums, distance, j, tail):
        prefetch_row(z, distance, 1, j)
        prefetch_row(dy, distance, 1, j)
        d_new, d_prev = zoneout.gradient(read(dy, j, tail) + read(dh, j, tail), mask, j, tail)
        if zoned:
            write(dh, j, d_prev, tail)
        value = activation_gradient(d_new, state(z, parameters, statistics, j, tail))
        write_summed(result, sums, j, value, tail)

    return gradient


def make_row_gradient(spec: RNNSpec, element_type: ElementType) -> Callable[..., None]:
    """Return the compiled gradient of one row that `CellKind.make_row_gradient` describes."""
    norm = make_cell_norm(spec.norm, element_type)
    gradient = make_unit_loop(_make_gradient, spec, element_type)

    @inlined
    def row(saved, parameters, coefficients, masks, gradients, scratch, sums, index):
        i, mean, rstd = index.i, saved.statistics.mean_h, saved.statistics.rstd_h
        z, dy, dh = saved.z[i], gradients.dy[i], gradients.dh[index.b]
        d_input, width, mask = scratch.gates[index.scratch], dh.size, part(masks.h, i)
        statistics = norm.saved(mean, rstd, i)
        d_offset, d_gamma = sums[:width], sums[width:]
        gradient(
            width, (z, parameters, statistics, dy, dh, mask, d_input, d_offset, index.distance)
        )
        norm.gradient(
            d_input, z, mean, rstd, i, parameters.gamma_h, parameters.beta_h,
            coefficients.first, (d_gamma, None), gradients.dz[index.k],
        )  # fmt: skip

    return row


def _norms(spec: RNNSpec, width: int) -> Norms:
    return (spec.norm, width), (None, width)


def _parameters(spec: RNNSpec, given: Any, ada: tuple[float, float]) -> Parameters:
    """Return the parameters, with beta added to the bias."""
    dtype, width = given.weight_h.dtype, given.weight_h.shape[1]
    gamma_h, beta_h = norm_pair(spec.norm, given.gamma, None, width, dtype, ada)
    offset = added_up(width, dtype, given.bias, given.beta)
    return Parameters(offset, gamma_h=gamma_h, beta_h=beta_h)


def _gradients(totals: Array, width: int) -> dict[str, Array]:
    offset, gamma = np.split(totals, 2)
    return {"bias": offset, "beta": offset, "gamma": gamma}


RNN = CellKind(
    name="rnn",
    gates=1,
    sums=2,
    norms_each_product=lambda spec: False,
    # Zoneout passes a part of the gradient to the previous state.
    accumulates=lambda spec: spec.zoneout,
    keeps_cell_apart=lambda spec: False,
    norms=_norms,
    statistics=lambda spec: (int(spec.norm is not None), 0, 0),
    parameters=_parameters,
    gradients=_gradients,
    make_row=make_row,
    make_row_gradient=make_row_gradient,
)
