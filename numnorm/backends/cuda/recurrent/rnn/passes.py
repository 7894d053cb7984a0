"""Plain recurrent networks on arrays of a device: their parameters, and what the passes need."""

from typing import Any

from numnorm.backends.contract.norms import Norm
from numnorm.backends.contract.recurrent import RNNForm
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.recurrent.common.cell_passes import CellKind, Saved
from numnorm.backends.cuda.recurrent.common.passes import (
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


def weights(form: RNNForm, given: Any, ada: tuple[float, float]) -> Weights:
    """Return the parameters of a plain recurrent network; beta joins the bias."""
    like = given.weight_h
    units = like.shape[1]
    others = RNNWeights(
        added_up(like, (units,), array_or_none(given.bias), array_or_none(given.beta)),
        parameter_or(1.0, given.gamma, form.norm, 1, like, units),
    )
    return make_weights(given, others, norm_numbers(form.norm, ada))


class RNNKind(CellKind):
    """A plain recurrent network, which has no other norm."""

    step, gates, sizes = STEP, GATES, dict.fromkeys(("bias", "beta", "gamma"), 1)

    def norms(self, form: RNNForm) -> tuple[Norm | None, Norm | None]:
        """Return that of the sum of both products."""
        return form.norm, None

    def by_product(self, form: RNNForm) -> bool:
        """Return that it is taken of the sum."""
        return False

    def normalized_units(self, form: RNNForm, units: int) -> int:
        """Return all units."""
        return units

    def places(self, form: RNNForm) -> int:
        """Return how many statistics a row has."""
        return int(form.norm is not None)

    def parameter_sums(
        self, form: RNNForm, x: DeviceArray, saved: Saved, results: Results
    ) -> dict[str, Any]:
        """Return the gradients of the bias and the norm's parameters, by name."""
        found = {}
        if form.norm is not None and form.norm.parameters > 0:
            found["gamma"], offset = column_sums(x, results.gates, saved.z, saved.table)
        else:
            _, offset = column_sums(x, results.gates)
        return found | {"bias": offset, "beta": offset}


KIND = RNNKind()
