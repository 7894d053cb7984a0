"""Which norm stands where in a recurrent cell: the published variants."""

import functools
from typing import Any, NamedTuple

from numnorm.arguments import check_choice
from numnorm.backends.contract.norms import Norm
from numnorm.backends.contract.recurrent import CellForm, GRUForm, LSTMForm, RNNForm
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
    """A cell's form.

    Attributes
    ----------
    cell : CellForm
    parameters : frozenset of str
        Those of its norms: names of fields.
    batch : "batch", RecurrentBatchNorm or None
        The norm, if it is over the batch: where the cell's own has it then stands layer norm.
    """

    cell: CellForm
    parameters: frozenset[str]
    batch: Any = None


def lstm_form(norm: Any, variant: Any) -> Form:
    """Return the form of an LSTM."""
    norm = check_choice("norm", norm, ("layer", "rms", "ada", "batch", None))
    return _lstm_form(norm, check_choice("variant", variant, _VARIANTS))


@functools.cache
def _lstm_form(name: str | None, variant: str) -> Form:
    batch = "batch" if name == "batch" else None
    norm = _NORMS["layer" if batch else name]
    gates = None if variant == "cell_only" else norm
    by_product = gates is not None and variant != "per_gate"
    form = LSTMForm(
        gates,
        by_product=by_product,
        separate=gates is not None and variant == "per_gate",
        cell=norm,
        carries_normalized=norm is not None and variant == "normalized_cell",
    )
    sites = (["_x"] if by_product else []) + (["_h"] if gates else []) + (["_c"] if norm else [])
    return Form(form, _parameters(norm, sites), batch)


def gru_form(norm: Any) -> Form:
    """Return the form of a gated recurrent unit."""
    return _gru_form(check_choice("norm", norm, tuple(_NORMS)))


@functools.cache
def _gru_form(name: str | None) -> Form:
    norm = _NORMS[name]
    return Form(GRUForm(norm), _parameters(norm, ["_x", "_h"]))


def rnn_form(norm: Any, nonlinearity: Any) -> Form:
    """Return the form of a plain recurrent network."""
    norm = check_choice("norm", norm, tuple(_NORMS))
    return _rnn_form(norm, check_choice("nonlinearity", nonlinearity, ("tanh", "relu")))


@functools.cache
def _rnn_form(name: str | None, nonlinearity: str) -> Form:
    norm = _NORMS[name]
    return Form(RNNForm(norm, rectified=nonlinearity == "relu"), _parameters(norm, [""]))


@functools.cache
def with_zoneout(form: Form) -> Form:
    """Return the same form with zoneout."""
    return form._replace(cell=form.cell._replace(zoneout=True))


def _parameters(norm: Norm | None, sites: list[str]) -> frozenset[str]:
    kinds = ("gamma", "beta")[: norm.parameters] if norm else ()
    return frozenset(kind + place for kind in kinds for place in sites)
