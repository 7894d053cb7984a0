"""Gated recurrent units on arrays of a device: their parameters and their `CellKind`."""

from typing import Any

from numnorm.backends.contract.recurrent import GRUSpec
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
from numnorm.backends.cuda.recurrent.gru.gates import GATES, sites
from numnorm.backends.cuda.recurrent.gru.step import STEP, GRUWeights

_SIZES = dict.fromkeys(("bias", "beta_x", "beta_h", "gamma_x", "gamma_h"), GATES) | {"bias_h": 1}


def weights(spec: GRUSpec, given: Any, ada: tuple[float, float]) -> Weights:
    """Return the parameters of a gated recurrent unit; the betas are added to the biases."""
    like = given.weight_h
    units = like.shape[1]
    two, three = 2 * units, GATES * units

    def part(value: DeviceArray | None, start: int, stop: int) -> Any:
        return None if value is None else value.lib.rows(value.array, start, stop)

    biases = given.bias, given.beta_x, given.beta_h
    others = GRUWeights(
        added_up(like, (two,), *(part(p, 0, two) for p in biases)),
        added_up(like, (units,), *(part(p, two, three) for p in biases[:2])),
        added_up(like, (units,), array_or_none(given.bias_h), part(given.beta_h, two, three)),
        parameter_or(1.0, given.gamma_h, spec.norm, 1, like, three),
        parameter_or(1.0, given.gamma_x, spec.norm, 1, like, three),
    )
    return make_weights(given, others, norm_numbers(spec.norm, ada))


def _facts(spec: GRUSpec) -> SpecFacts:
    return SpecFacts((spec.norm, spec.norm), True, 2, sites(spec), other_sections=GATES)


def _parameter_sums(
    spec: GRUSpec, x: DeviceArray, saved: Saved, results: Results
) -> dict[str, Any]:
    """Return the gradients of biases and norms, by name."""
    dz, dxp, table = results.gates, results.other, saved.table
    units, gammas = x.lib.shape(saved.history[0])[1], {}
    if spec.norm is not None and spec.norm.parameters > 0:
        # Columns 0 to 2H are z and r, at the first site; 2H to 3H the candidate, at the next site.
        gammas["gamma_h"], beta_h = column_sums(x, dz, saved.z, table, 0, 2 * units)
        gammas["gamma_x"], beta_x = column_sums(x, dxp, saved.xp, table, 2, 2 * units)
    else:
        (_, beta_h), (_, beta_x) = column_sums(x, dz), column_sums(x, dxp)
    bias_h = x.lib.rows(beta_h, 2 * units, GATES * units)
    return gammas | {"bias": beta_x, "beta_x": beta_x, "beta_h": beta_h, "bias_h": bias_h}


KIND = CellKind(STEP, GATES, _SIZES, _facts, _parameter_sums, past_every_step=True)
