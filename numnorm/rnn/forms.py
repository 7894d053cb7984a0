"""Which norm stands where in a recurrent cell: the published variants."""

import functools
from typing import Any, NamedTuple

from numnorm.arguments import check_choice
from numnorm.backends.contract import CellForm, Norm
from numnorm.norms.ada import ADA
from numnorm.norms.affine import AFFINE, GAIN

_NORMS = {
    "layer": Norm(AFFINE, parameters=2),
    "rms": Norm(GAIN, parameters=1),
    "ada": ADA,
    None: None,
}
_VARIANTS = ("paper", "normalized_cell", "per_gate", "cell_only")


class Form(NamedTuple):
    """A cell's form, and the parameters that it may have: names of fields."""

    cell: CellForm
    parameters: frozenset[str]


def lstm_form(norm: Any, variant: Any) -> Form:
    """Return the form of an LSTM."""
    norm = check_choice("norm", norm, tuple(_NORMS))
    return _lstm_form(norm, check_choice("variant", variant, _VARIANTS))


@functools.cache
def _lstm_form(name: str | None, variant: str) -> Form:
    norm = _NORMS[name]
    gates = None if variant == "cell_only" else norm
    by_product = gates is not None and variant != "per_gate"
    form = CellForm(
        gates,
        by_product=by_product,
        separate=gates is not None and variant == "per_gate",
        cell=norm,
        carries_normalized=norm is not None and variant == "normalized_cell",
    )
    places = (["x"] if by_product else []) + (["h"] if gates else []) + (["c"] if norm else [])
    kinds = ("gamma", "beta")[: norm.parameters] if norm else ()
    return Form(form, frozenset(f"{kind}_{place}" for kind in kinds for place in places))
