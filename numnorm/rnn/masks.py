"""Masks of dropout and zoneout: the checks of their probabilities, and how they are drawn."""

from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import check_generator, check_number
from numnorm.backends.contract.recurrent import SequenceLayout
from numnorm.rnn.parameters import PROJECTED_LSTM, Kind
from numnorm.rnn.specs import Spec, projected, with_masks

Array = np.ndarray[Any, Any]


class Kept(NamedTuple):
    """A dropout mask.

    Attributes
    ----------
    elements : array of bool
        Which elements are kept.
    factor : float
        They are multiplied by it.
    """

    elements: Array
    factor: float


class Masks(NamedTuple):
    """The masks of a call; None for what there is not.

    Attributes
    ----------
    inputs : Kept or None
    states : array or None
        Of dropout, as the backend takes it.
    zoneout : tuple
        The same, for each state.
    """

    inputs: Kept | None
    states: Any
    zoneout: tuple[Any, ...]


class Probabilities(NamedTuple):
    """The probabilities of the masks of a call: dropout of inputs and of states, and zoneout.

    Attributes
    ----------
    inputs, states : float
    zoneout : tuple of float
        For each state.
    """

    inputs: float
    states: float
    zoneout: tuple[float, ...]


def masked(
    kind: Kind, spec: Spec, dropout: Any, recurrent_dropout: Any, zoneout: Any, rng: Any
) -> tuple[Spec, Probabilities]:
    """Return the spec with masks, and the checked probabilities."""
    of_states = _zoneout_probabilities(kind, zoneout)
    probabilities = Probabilities(
        check_dropout("dropout", dropout, rng),
        check_dropout("recurrent_dropout", recurrent_dropout, rng),
        of_states,
    )
    drops = probabilities.states > 0
    if spec.batch and (any(of_states) or drops):
        name = "zoneout" if any(of_states) else "recurrent_dropout"
        raise ValueError(f"{name} must be 0 with batch norm")
    if kind is PROJECTED_LSTM:
        if any(of_states) or drops:
            name = "zoneout" if any(of_states) else "recurrent_dropout"
            raise ValueError(f"{name} must be 0 with projections")
        if spec.batch:
            raise ValueError("norm must be that of a row with projections, got 'batch'")
        return projected(spec), probabilities
    return with_masks(spec, any(of_states), drops), probabilities


def _zoneout_probabilities(kind: Kind, zoneout: Any) -> tuple[float, ...]:
    """Return the zoneout probability of each state."""
    if type(zoneout) is float and zoneout == 0.0:  # fast, for most calls
        return (0.0,) * len(kind.states)
    values = zoneout if isinstance(zoneout, tuple | list) else (zoneout,) * len(kind.states)
    if len(values) != len(kind.states):
        raise ValueError(
            f"zoneout must be a number, or one for each of {', '.join(kind.states)}, "
            f"got {len(values)} of them"
        )
    return tuple(check_number("zoneout", value, least=0.0, most=1.0) for value in values)


def check_dropout(name: str, value: Any, rng: Any) -> float:
    """Return a probability as a float."""
    if type(value) is float and value == 0.0 and rng is None:  # fast, for most calls
        return 0.0
    probability = check_number(name, value)
    if not 0.0 <= probability < 1.0:
        raise ValueError(f"{name} must be at least 0 and less than 1, got {probability:g}")
    if rng is None and probability:
        raise TypeError(f"rng must be a numpy.random.Generator if {name} is not 0, got None")
    if rng is not None:
        check_generator(rng)
    return probability


def gain(probability: float) -> float:
    """Return the factor of the elements that dropout keeps."""
    return 1.0 / (1.0 - probability)


def drawn_masks(
    probabilities: Probabilities,
    rng: Any,
    layout: SequenceLayout,
    width: int,
    x: Any,
    backend: Any,
) -> Masks:
    """Return the masks of a call, drawn in the order of the attributes."""
    inputs = _drawn(probabilities.inputs, rng, layout.batch, x.shape[1])
    states = _drawn(probabilities.states, rng, layout.batch, width)
    mask = backend.dropout_mask(*states, layout, x) if states else None
    zoneout = _zoneout_masks(probabilities.zoneout, rng, layout, width, x, backend)
    return Masks(inputs, mask, zoneout)


def _drawn(probability: float, rng: Any, batch: int, width: int) -> Kept | None:
    """Return the mask of all steps of a batch, or None if nothing is dropped."""
    if not probability:
        return None
    kept = rng.random((batch, width), np.float32) >= probability
    return Kept(kept, gain(probability))


def _zoneout_masks(
    zoneout: tuple[float, ...], rng: Any, layout: SequenceLayout, width: int, x: Any, backend: Any
) -> tuple[Any, ...]:
    """Return the zoneout mask of each state: drawn, or the probability without a generator."""
    if rng is not None:
        check_generator(rng)
    if not any(zoneout):
        return (None,) * len(zoneout)
    masks: list[Any] = list(zoneout)
    if rng is not None:
        # Step by step, so that neither padding nor chunks change the masks.
        steps = rng.random((layout.time, len(zoneout), layout.batch, width), np.float32)
        masks = [steps[:, i] < probability for i, probability in enumerate(zoneout)]
    return tuple(backend.zoneout_mask(mask, layout, width, x) for mask in masks)
