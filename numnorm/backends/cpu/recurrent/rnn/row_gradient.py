"""The backward pass of one row of one step of a plain recurrent network."""

from collections.abc import Callable
from typing import Any

from numnorm.backends.contract.recurrent import RNNSpec
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.recurrent.common.cell_norm import make_cell_norm
from numnorm.backends.cpu.recurrent.common.steps import prefetch_row
from numnorm.backends.cpu.recurrent.common.zoneout import make_zoneout
from numnorm.backends.cpu.recurrent.kernels.units import make_unit_loop, make_write_summed
from numnorm.backends.cpu.recurrent.rnn.state import make_state
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.functions import unless_zero
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.formulas.cells import tanh_gradient


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
