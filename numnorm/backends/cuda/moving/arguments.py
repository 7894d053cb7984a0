"""The groups of arguments that the kernels of moving norms share, and the elements that count.

All statistics are float64 numbers, as on the CPU. A kernel takes each group as one parameter: a
NamedTuple of addresses and numbers. A caller passes the same NamedTuple to `launch`, with arrays
instead of addresses.
"""

import functools
from typing import Any, NamedTuple

from numnorm.backends.cuda.compiler.element_type import FLOAT64, ElementType
from numnorm.backends.cuda.compiler.target import (
    constant,
    device,
    load_flag,
    make_load_one,
    make_sqrt,
    make_store_one,
    reciprocal,
)

ZERO, ONE, NAN = (constant(FLOAT64, v) for v in (0.0, 1.0, float("nan")))


class Sequences(NamedTuple):
    """An array ``(outer, steps, inner)``: it has ``outer * inner`` channels, each of `steps` steps.

    Attributes
    ----------
    outer, steps, inner : index
        Its shape.
    """

    outer: Any
    steps: Any
    inner: Any


class Missing(NamedTuple):
    """Which steps do not count, and their results.

    Attributes
    ----------
    keep : bytes
        0 where a step is left out, for each element of x; the address is 0 if there is no mask.
    omit : index
        1 if a NaN is left out, else 0.
    fill, fill_missing : number
        The results of what the mask leaves out, and of a NaN that is left out.
    """

    keep: Any
    omit: Any
    fill: Any
    fill_missing: Any


class StepStatistics(NamedTuple):
    """The statistics of each step, for the backward pass.

    Attributes
    ----------
    mean, rstd : numbers of the size of x
        Written by the forward kernels, unless both addresses are 0 (no array); read by the backward
        kernels.
    """

    mean: Any
    rstd: Any


SEQUENCES = Sequences, ("index",) * 3
MISSING = Missing, ("address", "index", "float64", "float64")
STATISTICS = StepStatistics, ("address",) * 2

NOTHING_MISSING = Missing(None, 0, 0.0, 0.0)


# Elements


@device
def place_of(index, length, inner):
    """Return for the index of an array ``(outer, length, inner)`` its entries of all three axes."""
    row = index // inner
    outer = row // length
    return outer, row - outer * length, index - row * inner


@functools.cache
def make_read(element: ElementType) -> Any:
    """Return a device function ``read(address, index)`` of an element in float64."""
    load, wide = make_load_one(element), FLOAT64.compute_type

    @device
    def read(address, index):
        return wide(load(address, index))

    return read


@functools.cache
def make_write(element: ElementType) -> Any:
    """Return a device function ``write(address, index, value)`` that rounds a float64 number."""
    store, rounded = make_store_one(element), element.compute_type

    @device
    def write(address, index, value):
        store(address, index, rounded(value))

    return write


@functools.cache
def make_counts(missing: bool) -> Any:
    """Return a device function ``counts(missing, index, value)``: whether a step counts."""

    @device
    def some(missing, index, value):
        if missing.keep != 0 and not load_flag(missing.keep, index):
            return False
        return missing.omit == 0 or value == value

    return some if missing else device(lambda missing, index, value: True)


@device
def filled(missing, index):
    """Return the result of a step that does not count."""
    if missing.keep != 0 and not load_flag(missing.keep, index):
        return missing.fill
    return missing.fill_missing


@device
def multiply_add(a, b, c):
    """Return ``a * b + c``, which the compiler may round once."""
    return a * b + c


@functools.cache
def make_inverse_root() -> Any:
    """Return a device function ``inverse_root(variance)``: 1 / sqrt(variance), and 0 for 0."""
    inverse, sqrt = reciprocal(FLOAT64), make_sqrt(FLOAT64)

    @device
    def inverse_root(variance):
        return ZERO if variance == ZERO else inverse(sqrt(variance))

    return inverse_root
