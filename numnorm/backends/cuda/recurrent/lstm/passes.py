"""LSTM on arrays of a device: its parameters and its `CellKind`."""

from typing import Any

from numnorm.backends.contract.recurrent import LSTMSpec
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.recurrent.common.cell_passes import CellKind, Saved, SpecFacts
from numnorm.backends.cuda.recurrent.common.pass_arrays import (
    Weights,
    added_up,
    array_or_none,
    column_sums,
    make_weights,
    norm_numbers,
    parameter_or,
)
from numnorm.backends.cuda.recurrent.common.step_parameters import Results
from numnorm.backends.cuda.recurrent.lstm.gates import GATES, gate_parts, normalized_units, sites
from numnorm.backends.cuda.recurrent.lstm.step import STEP, LSTMWeights

# The numbers for each unit of the parameters other than the weight matrices.
SIZES = dict.fromkeys(("bias", "beta_x", "beta_h", "gamma_x", "gamma_h"), GATES) | dict.fromkeys(
    ("gamma_c", "beta_c"), 1
)


def weights(spec: LSTMSpec, given: Any, ada: tuple[float, float]) -> Weights:
    """Return the parameters of an LSTM; the betas of the products are added to the bias."""
    like = given.weight_h
    units = like.shape[1]
    four, norm_x = GATES * units, spec.gates if spec.norm_each_product else None
    biases = map(array_or_none, (given.bias, given.beta_x, given.beta_h))
    others = LSTMWeights(
        added_up(like, (four,), *biases),
        parameter_or(1.0, given.gamma_h, spec.gates, 1, like, four),
        parameter_or(1.0, given.gamma_x, norm_x, 1, like, four),
        parameter_or(1.0, given.gamma_c, spec.cell, 1, like, units),
        parameter_or(0.0, given.beta_c, spec.cell, 2, like, units),
    )
    return make_weights(given, others, norm_numbers(spec.cell or spec.gates, ada))


def _facts(spec: LSTMSpec) -> SpecFacts:
    return SpecFacts(
        norms=(spec.gates, spec.cell),
        norm_each_product=spec.norm_each_product,
        normalized=normalized_units(spec, 1),
        sites=sites(spec),
        is_cell_apart=spec.carries_normalized or spec.zoneout,
        other_sections=int(spec.cell is not None and spec.cell.parameters > 0),
    )


def _parameter_sums(
    spec: LSTMSpec, x: DeviceArray, saved: Saved, results: Results
) -> dict[str, Any]:
    """Return the gradients of biases and norms, by name."""
    grads, table, units = {}, saved.table, x.lib.shape(saved.history[0])[1]
    has_gamma = spec.gates is not None and spec.gates.parameters > 0
    if has_gamma:
        grads["gamma_h"], offset = column_sums(
            x, results.gates, saved.z, table, 0, normalized_units(spec, units)
        )
    else:
        _, offset = column_sums(x, results.gates)
    if has_gamma and spec.norm_each_product:
        grads["gamma_x"], _ = column_sums(x, results.gates, saved.xp, table, 1)
    if results.other is not None:
        grads["gamma_c"], grads["beta_c"] = column_sums(
            x, results.other, saved.cell, table, gate_parts(spec).count
        )
    return grads | {"bias": offset, "beta_x": offset, "beta_h": offset}


KIND = CellKind(STEP, GATES, SIZES, _facts, _parameter_sums)
