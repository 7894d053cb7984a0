"""The `CellKind` of gated recurrent units."""

from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.recurrent import GRUSpec
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.recurrent import gru_reset_rows, gru_rows
from numnorm.backends.cpu.recurrent.arguments import (
    CellKind,
    Norms,
    Parameters,
    added_up,
    norm_pair,
)
from numnorm.backends.cpu.simd.element_type import ElementType


def _norms(spec: GRUSpec, width: int) -> Norms:
    return (spec.norm, 2 * width), (spec.norm, width)


def _statistics(spec: GRUSpec) -> tuple[int, int, int]:
    return (0, 0, 0) if spec.norm is None else (2, 2, 0)


def _parameters(spec: GRUSpec, given: Any, ada: tuple[float, float]) -> Parameters:
    """Return the parameters, with the betas added to the biases."""
    dtype, width = given.weight_h.dtype, given.weight_h.shape[1]
    gates_h, candidate_h = None, None
    if given.beta_h is not None:
        gates_h = np.concatenate([given.beta_h[: 2 * width], np.zeros(width)])
        candidate_h = given.beta_h[2 * width :]
    return Parameters(
        added_up(3 * width, dtype, given.bias, given.beta_x, gates_h),
        added_up(width, dtype, given.bias_h, candidate_h),
        *norm_pair(spec.norm, given.gamma_h, None, 3 * width, dtype, ada),
        *norm_pair(spec.norm, given.gamma_x, None, 3 * width, dtype, ada),
    )


def _gradients(totals: Array, width: int) -> dict[str, Array]:
    offset, offset_h, gamma_h, gamma_x = np.split(totals, np.cumsum([3, 1, 3]) * width)
    gradients = {"bias": offset, "bias_h": offset_h, "gamma_h": gamma_h, "gamma_x": gamma_x}
    beta_h = np.concatenate([offset[: 2 * width], offset_h])
    return gradients | {"beta_x": offset, "beta_h": beta_h}


def _make_row(
    spec: GRUSpec, element_type: ElementType
) -> tuple[Callable[..., None], Callable[..., None]]:
    return (gru_rows if spec.reset_after else gru_reset_rows).make_row(spec, element_type)


def _make_row_gradient(spec: GRUSpec, element_type: ElementType) -> Callable[..., None]:
    rows = gru_rows if spec.reset_after else gru_reset_rows
    return rows.make_row_gradient(spec, element_type)


GRU = CellKind(
    name="gru",
    gates=3,
    sums=10,
    norms_each_product=lambda spec: True,
    accumulates=lambda spec: True,
    keeps_cell_apart=lambda spec: not spec.reset_after,
    norms=_norms,
    statistics=_statistics,
    parameters=_parameters,
    gradients=_gradients,
    make_row=_make_row,
    make_row_gradient=_make_row_gradient,
    resets_before=lambda spec: not spec.reset_after,
    make_second_gradient=gru_reset_rows.make_second_gradient,
)
