"""The `CellKind` of plain recurrent networks."""

from typing import Any

import numpy as np

from numnorm.backends.contract.recurrent import RNNSpec
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.recurrent.common.parameters import added_up, norm_pair
from numnorm.backends.cpu.recurrent.kernels.arguments import Parameters
from numnorm.backends.cpu.recurrent.kernels.kind import CellKind, Norms
from numnorm.backends.cpu.recurrent.rnn.row import make_row
from numnorm.backends.cpu.recurrent.rnn.row_gradient import make_row_gradient


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
