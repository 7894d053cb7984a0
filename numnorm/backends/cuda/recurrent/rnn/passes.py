"""Plain recurrent networks on arrays of a device: their parameters and their `CellKind`."""

from typing import Any

from numnorm.backends.contract.recurrent import RNNSpec
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
from numnorm.backends.cuda.recurrent.rnn.step import GATES, STEP, RNNWeights

_SIZES = dict.fromkeys(("bias", "beta", "gamma"), 1)


def weights(spec: RNNSpec, given: Any, ada: tuple[float, float]) -> Weights:
    """Return the parameters of a plain recurrent network; beta is added to the bias."""
    like = given.weight_h
    units = like.shape[1]
    others = RNNWeights(
        added_up(like, (units,), array_or_none(given.bias), array_or_none(given.beta)),
        parameter_or(1.0, given.gamma, spec.norm, 1, like, units),
    )
    return make_weights(given, others, norm_numbers(spec.norm, ada))


def _facts(spec: RNNSpec) -> SpecFacts:
    return SpecFacts((spec.norm, None), False, GATES, int(spec.norm is not None))


def _parameter_sums(
    spec: RNNSpec, x: DeviceArray, saved: Saved, results: Results
) -> dict[str, Any]:
    """Return the gradients of the bias and the norm's parameters, by name."""
    gammas = {}
    if spec.norm is not None and spec.norm.parameters > 0:
        gammas["gamma"], offset = column_sums(x, results.gates, saved.z, saved.table)
    else:
        _, offset = column_sums(x, results.gates)
    return gammas | {"bias": offset, "beta": offset}


KIND = CellKind(STEP, GATES, _SIZES, _facts, _parameter_sums)
