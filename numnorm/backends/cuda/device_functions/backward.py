"""The device functions of the gradient of a row in place, for kernels that users write."""

import functools
from typing import Any

from numnorm.backends.contract.norms import Detached
from numnorm.backends.cuda.compiler.element_type import FLOAT64
from numnorm.backends.cuda.compiler.target import constant, cuda, device, reciprocal
from numnorm.backends.cuda.device_functions.forward import TeamRow, make_parameter
from numnorm.backends.cuda.statistics.row_normalizer import normalized
from numnorm.backends.cuda.statistics.saved import make_means, make_split_statistics
from numnorm.backends.cuda.threads.group_reductions import make_team_two_sums
from numnorm.backends.formulas.norms import input_gradient


@functools.cache
def make_team_xhat(row: TeamRow) -> Any:
    """Return a device function ``xhat(values, width, mean, rstd)``: x becomes xhat, in place."""
    element, team, slots = row.element, row.team, row.slots
    split, wide = make_split_statistics(row.norm.formula, element, FLOAT64), FLOAT64.compute_type

    @device
    def xhat(values, width, mean, rstd):
        at = cuda.threadIdx.x % team
        scale, mean_hi, mean_lo, factor = split(wide(mean), wide(rstd))
        for k in range(slots):
            if at + k * team < width:
                values[k] = normalized(values[k] * scale, mean_hi, mean_lo, factor)

    return xhat


@functools.cache
def make_team_backward(row: TeamRow, detached: Detached) -> Any:
    """Return a device function that turns dy into dx, in place, from xhat.

    ``backward(grads, xhats, width, gamma, beta, rstd, eps_on_deviation)``; `grads` are dy.
    """
    element, team, slots, ddof = row.element, row.team, row.slots, row.ddof
    split, means_of = make_split_statistics(row.norm.formula, element, FLOAT64), make_means(element)
    team_two_sums, inverse = make_team_two_sums(team), reciprocal(element)
    gamma_of, beta_of = make_parameter(row, 1.0), make_parameter(row, 0.0)
    grad_of, gradient = device(row.norm.formula.backward), device(input_gradient)
    compute_type, wide, warps = element.compute_type, FLOAT64.compute_type, row.warps
    zero, none, smem_size = constant(element, 0.0), constant(FLOAT64, 0.0), max(1, 2 * warps)
    through_mean = row.norm.formula.centred and not detached.mean
    through_scale = not detached.scale

    @device
    def backward(grads, xhats, width, gamma, beta, rstd, eps_on_deviation):
        smem = cuda.shared.array(smem_size, compute_type)
        at = cuda.threadIdx.x % team
        sum_g, sum_g_xhat = zero, zero
        for k in range(slots):
            column = at + k * team
            if column < width:
                g = grad_of(grads[k], xhats[k], gamma_of(gamma, column), beta_of(beta, column))
                sum_g += g
                sum_g_xhat += g * xhats[k]
                grads[k] = g
        if warps > 0:
            # Another thread may still read the sums of the row before.
            cuda.syncthreads()
        sum_g, sum_g_xhat = team_two_sums(sum_g, sum_g_xhat, smem)
        scale, _, _, factor = split(none, wide(rstd))
        inv_count = inverse(compute_type(max(width, 1))) if through_mean else zero
        inv_divisor = inverse(compute_type(max(width - ddof, 1))) if through_scale else zero
        mean_g, mean_g_xhat = means_of(
            sum_g, sum_g_xhat, scale, factor, inv_count, inv_divisor, compute_type(eps_on_deviation)
        )
        for k in range(slots):
            if at + k * team < width:
                grads[k] = gradient(grads[k], xhats[k], mean_g, mean_g_xhat, factor) * scale

    return backward
