"""The `CellKind` of LSTMs."""

from typing import Any

import numpy as np

from numnorm.backends.contract.recurrent import LSTMSpec
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.recurrent.common.parameters import added_up, norm_pair
from numnorm.backends.cpu.recurrent.kernels.arguments import Parameters
from numnorm.backends.cpu.recurrent.kernels.kind import CellKind, Norms
from numnorm.backends.cpu.recurrent.lstm.row import make_row
from numnorm.backends.cpu.recurrent.lstm.row_gradient import make_row_gradient


def _norms(spec: LSTMSpec, width: int) -> Norms:
    return (spec.gates, width if spec.separate else 4 * width), (spec.cell, width)


def _statistics(spec: LSTMSpec) -> tuple[int, int, int]:
    gate_norms = 4 if spec.separate else 1
    return gate_norms if spec.gates else 0, int(spec.norm_each_product), int(spec.cell is not None)


def _parameters(spec: LSTMSpec, given: Any, ada: tuple[float, float]) -> Parameters:
    """Return the parameters, with the betas of the products added to the bias."""
    dtype, width = given.weight_h.dtype, given.weight_h.shape[0] // 4
    beta_c = given.beta_c
    if spec.cell is not None and spec.cell.parameters == 2 and beta_c is None:
        beta_c = np.zeros(width, dtype)
    norm_x = spec.gates if spec.norm_each_product else None
    return Parameters(
        added_up(4 * width, dtype, given.bias, given.beta_x, given.beta_h),
        None,
        *norm_pair(spec.gates, given.gamma_h, None, 4 * width, dtype, ada),
        *norm_pair(norm_x, given.gamma_x, None, 4 * width, dtype, ada),
        *norm_pair(spec.cell, given.gamma_c, beta_c, width, dtype, ada),
    )


def _gradients(totals: Array, width: int) -> dict[str, Array]:
    sections = np.cumsum([4, 4, 4, 1]) * width
    offset, gamma_h, gamma_x, gamma_c, beta_c = np.split(totals, sections)
    gradients = {"gamma_x": gamma_x, "gamma_h": gamma_h, "gamma_c": gamma_c, "beta_c": beta_c}
    return gradients | {"bias": offset, "beta_x": offset, "beta_h": offset}


LSTM = CellKind(
    name="lstm",
    gates=4,
    sums=14,
    norms_each_product=lambda spec: spec.norm_each_product,
    # Zoneout passes a part of the gradient to the previous state.
    accumulates=lambda spec: spec.zoneout,
    keeps_cell_apart=lambda spec: spec.carries_normalized or spec.zoneout,
    norms=_norms,
    statistics=_statistics,
    parameters=_parameters,
    gradients=_gradients,
    make_row=make_row,
    make_row_gradient=make_row_gradient,
    projects=lambda spec: spec.projected,
)
