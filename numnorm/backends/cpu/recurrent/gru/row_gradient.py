"""The backward pass of one row of one step of a gated recurrent unit."""

from collections.abc import Callable

from numnorm.backends.contract.recurrent import GRUSpec
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.recurrent.common.steps import prefetch_row
from numnorm.backends.cpu.recurrent.common.zoneout import make_zoneout
from numnorm.backends.cpu.recurrent.gru.gates import make_gates, make_product_norm
from numnorm.backends.cpu.recurrent.kernels.units import make_unit_loop, make_write_summed
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.simd.optional import part
from numnorm.backends.formulas.cells import gru_gradient


def _make_gradient(
    spec: GRUSpec, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    """Return a compiled function that stores the gradients of the gates' inputs and of h_prev.

    ``gradient(rows, parameters, statistics, mask, results, sums, distance, j, tail)``, for a vector
    of units. `rows` are hp, xp, h_prev, dy and dh, which becomes the gradient of h_prev. `results`
    and `sums` are pairs: for z, r and the candidate, and for the candidate's part of hp.
    """
    read, _, write = access
    gates, real = make_gates(spec, element_type, access), element_type.compute_type
    zoneout, zoned = make_zoneout(spec.zoneout, access), spec.zoneout
    cell_gradient, write_summed = inlined(gru_gradient), make_write_summed(access)

    @inlined
    def gradient(rows, parameters, statistics, mask, results, sums, distance, j, tail):
        hp, xp, h_prev, dy, dh = rows
        width = dy.size
        prefetch_row(hp, distance, 3, j)
        prefetch_row(xp, distance, 3, j)
        prefetch_row(h_prev, distance, 1, j)
        prefetch_row(dy, distance, 1, j)
        keep, r, candidate, from_h = gates(hp, xp, parameters, statistics, width, j, tail)
        d_new, d_prev = zoneout.gradient(read(dy, j, tail) + read(dh, j, tail), mask, j, tail)
        dz, dr, d_from_h, d_candidate, d_h_prev = cell_gradient(
            d_new, read(h_prev, j, tail), keep, r, candidate, from_h, real(1)
        )
        if zoned:
            d_h_prev = d_h_prev + d_prev
        write(dh, j, d_h_prev, tail)
        write_summed(results[0], sums[0], j, dz, tail)
        write_summed(results[0], sums[0], j + width, dr, tail)
        write_summed(results[0], sums[0], j + 2 * width, d_candidate, tail)
        write_summed(results[1], sums[1], j, d_from_h, tail)

    return gradient


@inlined
def sections(sums, width):
    """Split a row of `Sums`: both offsets, gamma_h, gamma_x."""
    offsets = sums[: 3 * width], sums[3 * width : 4 * width]
    return offsets, sums[4 * width : 7 * width], sums[7 * width :]


def make_row_gradient(spec: GRUSpec, element_type: ElementType) -> Callable[..., None]:
    """Return the compiled gradient of one row that `CellKind.make_row_gradient` describes."""
    norm = make_product_norm(spec, element_type)
    gradient = make_unit_loop(_make_gradient, spec, element_type)

    @inlined
    def row(saved, parameters, coefficients, masks, gradients, scratch, sums, index):
        i, k, (saved_h, saved_x) = index.i, index.k, norm.arrays(saved.statistics)
        hp, xp, dy, dh = saved.z[i], saved.xp[i], gradients.dy[i], gradients.dh[index.b]
        d_inputs, d_from_h = scratch.gates[index.scratch], scratch.normalized[index.scratch]
        width, mask = dy.size, part(masks.h, i)
        d_offsets, d_gamma_h, d_gamma_x = sections(sums, width)
        rows = hp, xp, saved.state[index.before], dy, dh
        statistics, results = (norm.load(saved_h, i), norm.load(saved_x, i)), (d_inputs, d_from_h)
        gradient(width, (rows, parameters, statistics, mask, results, d_offsets, index.distance))
        d_gates, d_from_x = d_inputs[: 2 * width], d_inputs[2 * width :]
        norm.gradient(
            d_gates, d_from_h, hp, saved_h, i, (parameters.gamma_h, parameters.beta_h),
            coefficients, d_gamma_h, gradients.dz[k],
        )  # fmt: skip
        norm.gradient(
            d_gates, d_from_x, xp, saved_x, i, (parameters.gamma_x, parameters.beta_x),
            coefficients, d_gamma_x, gradients.dxp[k],
        )  # fmt: skip

    return row
