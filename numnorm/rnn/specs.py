"""Specs of recurrent cells: which norm applies where, for the published variants."""

import functools
from typing import Any, NamedTuple, get_args

from numnorm.arguments import check_choice, check_flag
from numnorm.array_types import LSTMVariant, Nonlinearity
from numnorm.backends.contract.norms import Norm
from numnorm.backends.contract.recurrent import CellSpec, GRUSpec, LSTMSpec, RNNSpec
from numnorm.norms.ada import ADA
from numnorm.norms.affine import AFFINE, GAIN


class _CellNorm(Norm):
    """A norm of cells. It is copied and pickled by name, as kernels are found by the object."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (next(name for name, norm in _NORMS.items() if norm is self),)


def _named(name: str) -> Norm | None:
    return _NORMS[name]


_NORMS = {
    "layer": _CellNorm(AFFINE, parameters=2),
    "rms": _CellNorm(GAIN, parameters=1),
    "ada": _CellNorm(ADA.formula, parameters=0),
    None: None,
}

# The choices of each option of a cell, the default first.
NORMS = tuple(_NORMS)
VARIANTS = get_args(LSTMVariant)
RESETS = (True, False)
NONLINEARITIES = get_args(Nonlinearity)


class Spec(NamedTuple):
    """The spec of a cell, and what the checks of a call need beside it.

    Attributes
    ----------
    cell : CellSpec
        The spec for the backend.
    parameters : frozenset of str
        The names of the parameters of its norms.
    batch : "batch", RecurrentBatchNorm or None
        The norm if it is over the batch; `cell` then has layer norm at the same sites.
    """

    cell: CellSpec
    parameters: frozenset[str]
    batch: Any = None

    @property
    def normalizes(self) -> bool:
        """Whether the cell has a norm."""
        norm = self.cell.cell if isinstance(self.cell, LSTMSpec) else self.cell.norm
        return norm is not None

    @property
    def resets_after(self) -> bool:
        """Whether the cell is a GRU whose reset gate scales the product, not the state."""
        return isinstance(self.cell, GRUSpec) and self.cell.reset_after


def lstm_spec(norm: Any, variant: Any) -> Spec:
    """Return the spec of an LSTM."""
    norm = check_choice("norm", norm, ("layer", "rms", "ada", "batch", None))
    return _lstm_spec(norm, check_choice("variant", variant, VARIANTS))


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
    sites = {"_x": norm_each_product, "_h": gates, "_c": norm}
    return Spec(spec, _parameters(norm, [site for site, used in sites.items() if used]), batch)


def gru_spec(norm: Any, reset_after: Any = True) -> Spec:
    """Return the spec of a gated recurrent unit."""
    norm = check_choice("norm", norm, NORMS)
    return _gru_spec(norm, check_flag("reset_after", reset_after))


@functools.cache
def _gru_spec(name: str | None, reset_after: bool) -> Spec:
    norm = _NORMS[name]
    return Spec(GRUSpec(norm, reset_after=reset_after), _parameters(norm, ["_x", "_h"]))


def rnn_spec(norm: Any, nonlinearity: Any) -> Spec:
    """Return the spec of a plain recurrent network."""
    norm = check_choice("norm", norm, NORMS)
    return _rnn_spec(norm, check_choice("nonlinearity", nonlinearity, NONLINEARITIES))


@functools.cache
def _rnn_spec(name: str | None, nonlinearity: str) -> Spec:
    norm = _NORMS[name]
    return Spec(RNNSpec(norm, rectified=nonlinearity == "relu"), _parameters(norm, [""]))


def projected(spec: Spec) -> Spec:
    """Return the spec of the same LSTM with projections."""
    cell: Any = spec.cell
    return spec._replace(cell=cell._replace(projected=True))


def with_masks(spec: Spec, zoneout: bool, dropout: bool) -> Spec:
    """Return the same spec with zoneout, dropout of the state, or both."""
    if not (zoneout or dropout):
        return spec
    return _with_masks(type(spec.cell).__name__, spec, zoneout, dropout)


@functools.cache
def _with_masks(kind: str, spec: Spec, zoneout: bool, dropout: bool) -> Spec:
    # The name is part of the key, as tuples of different kinds may be equal.
    return spec._replace(cell=spec.cell._replace(zoneout=zoneout, recurrent_dropout=dropout))


def _parameters(norm: Norm | None, sites: list[str]) -> frozenset[str]:
    kinds = ("gamma", "beta")[: norm.parameters] if norm else ()
    return frozenset(kind + site for kind in kinds for site in sites)
