"""Which norm stands where in a recurrent cell: the published variants."""

import functools
from typing import Any, NamedTuple

from numnorm.arguments import check_choice
from numnorm.backends.contract.norms import Norm
from numnorm.backends.contract.recurrent import CellSpec, GRUSpec, LSTMSpec, RNNSpec
from numnorm.norms.ada import ADA
from numnorm.norms.affine import AFFINE, GAIN

_NORMS = {
    "layer": Norm(AFFINE, parameters=2),
    "rms": Norm(GAIN, parameters=1),
    "ada": ADA,
    None: None,
}
_VARIANTS = ("paper", "normalized_cell", "per_gate", "cell_only")


class Spec(NamedTuple):
    """A cell's form.

    Attributes
    ----------
    cell : CellForm
    parameters : frozenset of str
        Those of its norms: names of fields.
    batch : "batch", RecurrentBatchNorm or None
        The norm, if it is over the batch: where the cell's own has it then stands layer norm.
    """

    cell: CellSpec
    parameters: frozenset[str]
    batch: Any = None


def lstm_spec(norm: Any, variant: Any) -> Spec:
    """Return the form of an LSTM."""
    norm = check_choice("norm", norm, ("layer", "rms", "ada", "batch", None))
    return _lstm_spec(norm, check_choice("variant", variant, _VARIANTS))


@functools.cache
def _lstm_spec(name: str | None, variant: str) -> Spec:
    batch = "batch" if name == "batch" else None
    norm = _NORMS["layer" if batch else name]
    gates = None if variant == "cell_only" else norm
    norm_each_product = gates is not None and variant != "per_gate"
    spec = LSTMSpec(
        gates,
        norm_each_product=norm_each_product,
        separate=gates is not None and variant == "per_gate",
        cell=norm,
        carries_normalized=norm is not None and variant == "normalized_cell",
    )
    sites = (
        (["_x"] if norm_each_product else []) + (["_h"] if gates else []) + (["_c"] if norm else [])
    )
    return Spec(spec, _parameters(norm, sites), batch)


def gru_spec(norm: Any) -> Spec:
    """Return the form of a gated recurrent unit."""
    return _gru_spec(check_choice("norm", norm, tuple(_NORMS)))


@functools.cache
def _gru_spec(name: str | None) -> Spec:
    norm = _NORMS[name]
    return Spec(GRUSpec(norm), _parameters(norm, ["_x", "_h"]))


def rnn_spec(norm: Any, nonlinearity: Any) -> Spec:
    """Return the form of a plain recurrent network."""
    norm = check_choice("norm", norm, tuple(_NORMS))
    return _rnn_spec(norm, check_choice("nonlinearity", nonlinearity, ("tanh", "relu")))


@functools.cache
def _rnn_spec(name: str | None, nonlinearity: str) -> Spec:
    norm = _NORMS[name]
    return Spec(RNNSpec(norm, rectified=nonlinearity == "relu"), _parameters(norm, [""]))


@functools.cache
def with_zoneout(spec: Spec) -> Spec:
    """Return the same form with zoneout."""
    return spec._replace(cell=spec.cell._replace(zoneout=True))


def _parameters(norm: Norm | None, sites: list[str]) -> frozenset[str]:
    kinds = ("gamma", "beta")[: norm.parameters] if norm else ()
    return frozenset(kind + place for kind in kinds for place in sites)
