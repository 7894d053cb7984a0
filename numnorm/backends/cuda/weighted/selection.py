"""Which elements count, and how much: an argument of kernels, and device functions of elements.

Statistics and results are float64 numbers here, as on the CPU: a weight may have any scale.
"""

import functools
from typing import Any, NamedTuple

from numnorm.backends.cuda.compiler.element_type import FLOAT64, ElementType
from numnorm.backends.cuda.compiler.target import constant, device, load_flag, make_load_one

ZERO, ONE, INFINITY, NAN = (constant(FLOAT64, v) for v in (0.0, 1.0, float("inf"), float("nan")))


class Selection(NamedTuple):
    """Which elements count, and how much: arrays for all rows of x, or for each row. Read.

    Attributes
    ----------
    keep : bytes
        0 where an element is left out; the address is 0 if there is no mask.
    keep_step : index
        The distance from a row's bytes to the next row's: 0 if all rows share them.
    weights : numbers
        The weight of each element; the address is 0 if each of them is 1.
    weight_step : index
        The same distance for the weights.
    omit : index
        1 if a NaN is left out, else 0.
    """

    keep: Any
    keep_step: Any
    weights: Any
    weight_step: Any
    omit: Any


class Fill(NamedTuple):
    """The results of what the mask leaves out, and of a NaN that is left out."""

    fill: float
    missing: float


SELECTION = Selection, ("address", "index", "address", "index", "index")
FILL = Fill, ("float64",) * 2


@device
def in_mask(selection, row, column):
    """Return whether the mask keeps an element."""
    if selection.keep == 0:
        return True
    return load_flag(selection.keep, row * selection.keep_step + column)


@device
def is_kept(selection, row, column, value):
    """Return whether an element is not left out."""
    if selection.omit != 0 and value != value:
        return False
    return in_mask(selection, row, column)


@functools.cache
def make_weight_of(of: ElementType) -> Any:
    """Return a device function ``weight_of(selection, row, column)``; `of` is the type of weights.

    What is negative, infinite or NaN is no weight. It becomes NaN, and so do its statistics.
    """
    load = make_load_one(of)
    kind = FLOAT64.compute_type

    @device
    def weight_of(selection, row, column):
        if selection.weights == 0:
            return ONE
        weight = kind(load(selection.weights, row * selection.weight_step + column))
        return weight if weight >= ZERO and weight < INFINITY else NAN

    return weight_of


@device
def quotient(number, divisor):
    """Return ``number / divisor``, NaN unless the divisor is greater than 0."""
    return number / divisor if divisor > ZERO else NAN


@functools.cache
def make_number_of(of: ElementType | None) -> Any:
    """Return a device function ``number_of(parameter, index)`` of a `Parameter`, in float64."""
    kind = FLOAT64.compute_type
    if of is None:
        return device(lambda parameter, index: parameter.number)
    load = make_load_one(of)
    return device(lambda parameter, index: kind(load(parameter.address, index)))
