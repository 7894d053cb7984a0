"""The functions of a norm for kernels that users write: ``forward``, ``xhat``, ``backward``.

Their arguments depend on the norm's parameters and statistics.
"""

import functools
from typing import Any

from numnorm.backends.contract.norms import Detached, Norm
from numnorm.backends.cuda.compiler.element_type import ELEMENT_TYPES
from numnorm.backends.cuda.compiler.target import constant, device
from numnorm.backends.cuda.device_functions.backward import make_team_backward, make_team_xhat
from numnorm.backends.cuda.device_functions.forward import TeamRow, make_team_forward


def team_row(norm: Norm, dtype: str, team: int, slots: int, ddof: int) -> TeamRow:
    """Return the row that device functions are compiled for."""
    return TeamRow(norm, ELEMENT_TYPES[dtype], team, slots, ddof)


@functools.cache
def make_row_functions(
    row: TeamRow, detached: Detached, eps_on_deviation: bool = False, factor_flows: bool = False
) -> tuple[Any, Any, Any]:
    """Return ``forward, xhat, backward`` for the norm of a row.

    Parameters
    ----------
    row : TeamRow
        The norm, and the threads that hold the row.
    detached : Detached
        The statistics that the gradient does not flow through.
    eps_on_deviation : bool
        For a norm without parameters: whether eps is added to the deviation, not the variance.
    factor_flows : bool
        For a norm without parameters: whether the gradient flows through the factor 1 - k * xhat.
    """
    if row.norm.parameters == 0:
        return _with_numbers(row, detached, eps_on_deviation, factor_flows)
    return (_with_gain if row.norm.parameters == 1 else _with_gain_and_bias)(row, detached)


def _with_gain_and_bias(row: TeamRow, detached: Detached) -> tuple[Any, Any, Any]:
    normalize, gradient = make_team_forward(row), make_team_backward(row, detached)
    zero = constant(row.element, 0.0)

    @device
    def forward(values, width, gamma, beta, eps):
        return normalize(values, width, gamma, beta, eps, zero)

    @device
    def backward(grads, xhats, width, gamma, rstd):
        gradient(grads, xhats, width, gamma, None, rstd, zero)

    return forward, make_team_xhat(row), backward


def _with_gain(row: TeamRow, detached: Detached) -> tuple[Any, Any, Any]:
    normalize, gradient = make_team_forward(row), make_team_backward(row, detached)
    normalized, zero = make_team_xhat(row), constant(row.element, 0.0)

    @device
    def forward(values, width, gamma, eps):
        return normalize(values, width, gamma, None, eps, zero)[1]

    @device
    def xhat(values, width, rstd):
        normalized(values, width, zero, rstd)

    @device
    def backward(grads, xhats, width, gamma, rstd):
        gradient(grads, xhats, width, gamma, None, rstd, zero)

    return forward, xhat, backward


def _with_numbers(
    row: TeamRow, detached: Detached, eps_on_deviation: bool, factor_flows: bool
) -> tuple[Any, Any, Any]:
    normalize, gradient = make_team_forward(row), make_team_backward(row, detached)
    zero, compute_type = constant(row.element, 0.0), row.element.compute_type
    # The derivative of (1 - k * xhat) * xhat is 1 - 2 * k * xhat. With a constant factor it is
    # 1 - k * xhat.
    times = constant(row.element, 2.0 if factor_flows else 1.0)

    @device
    def forward(values, width, scale, k, eps):
        if eps_on_deviation:
            return normalize(values, width, scale, k, zero, eps)
        return normalize(values, width, scale, k, eps, zero)

    @device
    def backward(grads, xhats, width, scale, k, eps, rstd):
        on_deviation = compute_type(eps) if eps_on_deviation else zero
        gradient(grads, xhats, width, scale, compute_type(k) * times, rstd, on_deviation)

    return forward, make_team_xhat(row), backward
