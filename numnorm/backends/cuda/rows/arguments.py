"""The groups of arguments that the kernels of rows share.

A kernel takes each group as one parameter: a NamedTuple of addresses and numbers. A caller passes
the same NamedTuple to `launch`, with arrays instead of addresses. The constants and functions
below the groups give the kind of each group, as `Kernel` takes it.
"""

from typing import Any, NamedTuple

from numnorm.backends.cuda.compiler.element_type import ElementType


class Parameter(NamedTuple):
    """Gamma or beta: an array, or one number for all elements where the caller gives no array."""

    address: Any
    number: Any


class RowParameters(NamedTuple):
    """The parameters of a norm."""

    gamma: Parameter
    beta: Parameter


class SavedStatistics(NamedTuple):
    """The statistics of each row that the forward kernels save; both 0 to save none."""

    mean: Any
    rstd: Any


class RowSizes(NamedTuple):
    """How many rows and elements an array has, and how its parameters repeat.

    Each row has `width` elements, in segments of `segment` elements. Segments belong to the
    channels in turn: segment i of the whole array has the parameters of channel i % `channels`.
    """

    rows: Any
    width: Any
    segment: Any
    channels: Any


class RowScaling(NamedTuple):
    """The numbers that turn a row's sums into its mean and deviation.

    `inv_count` is 1 / width and `inv_divisor` is 1 / (width - ddof). A backward kernel takes 0
    instead for a detached statistic.
    """

    inv_count: Any
    inv_divisor: Any
    eps_on_deviation: Any


class PartialSums(NamedTuple):
    """A table of partial sums over rows, and a table of what rounding these sums lost."""

    sums: Any
    lost: Any


STATISTICS = SavedStatistics, ("address",) * 2
SIZES = RowSizes, ("index",) * 4
SUMS = PartialSums, ("address",) * 2


def parameters_kind(element: ElementType) -> Any:
    """Return the kind of `RowParameters` for a kernel of elements of this type."""
    return RowParameters, ((Parameter, ("address", element.compute_name)),) * 2


def scaling_kind(element: ElementType) -> Any:
    """Return the kind of `RowScaling` for a kernel of elements of this type."""
    return RowScaling, (element.compute_name,) * 3
