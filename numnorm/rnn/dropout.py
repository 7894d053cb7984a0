"""Dropout masks: their checks, and how they are drawn."""

from typing import Any, NamedTuple

import numpy as np

from numnorm.arguments import check_generator, check_number

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


def drawn(probability: float, rng: Any, batch: int, width: int) -> Kept | None:
    """Return the mask of all steps of a batch, or None if nothing is dropped."""
    if not probability:
        return None
    kept = rng.random((batch, width), np.float32) >= probability
    return Kept(kept, gain(probability))


def gain(probability: float) -> float:
    """Return the factor of the elements that dropout keeps."""
    return 1.0 / (1.0 - probability)
