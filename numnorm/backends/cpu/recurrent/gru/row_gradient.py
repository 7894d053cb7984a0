"""The gradient of one row of one step of a gated recurrent unit."""

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
    """Return a compiled function of some units: what enters the gates, and the state before."""
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
        of_new, of_old = zoneout.gradient(read(dy, j, tail) + read(dh, j, tail), mask, j, tail)
        dz, dr, d_from_h, d_candidate, past = cell_gradient(
            of_new, read(h_prev, j, tail), keep, r, candidate, from_h, real(1)
        )
        if zoned:
            past = past + of_old
        write(dh, j, past, tail)
        write_summed(results[0], sums[0], j, dz, tail)
        write_summed(results[0], sums[0], j + width, dr, tail)
        write_summed(results[0], sums[0], j + 2 * width, d_candidate, tail)
        write_summed(results[1], sums[1], j, d_from_h, tail)

    return gradient


@inlined
def _sections(sums, width):
    """Return a row's sums: of both offsets, and of the gammas of hp and xp."""
    offsets = sums[: 3 * width], sums[3 * width : 4 * width]
    return offsets, sums[4 * width : 7 * width], sums[7 * width :]


def make_row_gradient(spec: GRUSpec, element_type: ElementType) -> Callable[..., None]:
    """Return a compiled function of the gradient of one row of one step."""
    norm = make_product_norm(spec, element_type)
    gradient = make_unit_loop(
        lambda access: _make_gradient(spec, element_type, access), element_type
    )

    @inlined
    def row(saved, parameters, coefficients, masks, gradients, scratch, sums, place):
        i, k, (of_h, of_x) = place.i, place.k, norm.arrays(saved.statistics)
        hp, xp, dy, dh = saved.z[i], saved.xp[i], gradients.dy[i], gradients.dh[place.b]
        entering, candidate_h = scratch.gates[place.scratch], scratch.normalized[place.scratch]
        width = dy.size
        of_offsets, of_gamma_h, of_gamma_x = _sections(sums, width)
        rows = hp, xp, saved.state[place.before], dy, dh
        statistics, results = (norm.again(of_h, i), norm.again(of_x, i)), (entering, candidate_h)
        gradient(
            width,
            (
                rows, parameters, statistics, part(masks.h, i), results, of_offsets,
                place.distance,
            ),
        )  # fmt: skip
        both, candidate = entering[: 2 * width], entering[2 * width :]
        norm.gradient(
            both, candidate_h, hp, of_h, i, (parameters.gamma_h, parameters.beta_h),
            coefficients, of_gamma_h, gradients.dz[k],
        )  # fmt: skip
        norm.gradient(
            both, candidate, xp, of_x, i, (parameters.gamma_x, parameters.beta_x),
            coefficients, of_gamma_x, gradients.dxp[k],
        )  # fmt: skip

    return row
