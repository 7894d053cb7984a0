"""The groups of arguments that the kernels of rows share.

A kernel takes each group as one parameter: a NamedTuple of addresses and numbers. A caller passes
the same NamedTuple to `launch`, with arrays instead of addresses. The constants and functions
below the groups give the kind of each group, as `Kernel` takes it.
"""

from typing import Any, NamedTuple

from numnorm.backends.cuda.compiler.element_type import ElementType


class Parameter(NamedTuple):
    """Gamma or beta. Read.

    Attributes
    ----------
    address : (channels,) or (channels * segment,)
        The parameter; the address is 0 if the caller gives no array.
    number : number
        Stands for all elements if there is no array.
    """

    address: Any
    number: Any


class RowParameters(NamedTuple):
    """The parameters of a norm. Read.

    Attributes
    ----------
    gamma, beta : Parameter
        A norm with one parameter has a number in place of beta.
    """

    gamma: Parameter
    beta: Parameter


class Addition(NamedTuple):
    """What is added to x before it is normalized; both addresses are 0 if nothing is.

    Attributes
    ----------
    residual : elements
        An array like x. Read.
    total : elements
        The sum of x and the residual. Written; it may be x or the residual.
    """

    residual: Any
    total: Any


class SavedStatistics(NamedTuple):
    """The statistics of each row, for the backward pass.

    Attributes
    ----------
    mean, rstd : (rows,)
        Written by the forward kernels, unless both addresses are 0 (no array); read by the backward
        kernels.
    """

    mean: Any
    rstd: Any


class RowSizes(NamedTuple):
    """How many rows and elements an array has, and how its parameters repeat.

    Attributes
    ----------
    rows : index
        The number of rows.
    width : index
        The number of elements of a row.
    segment : index
        The number of elements of a segment of a row.
    channels : index
        Segment i of the whole array has the parameters of channel i % `channels`.
    """

    rows: Any
    width: Any
    segment: Any
    channels: Any


class RowScaling(NamedTuple):
    """The numbers that turn a row's sums into its mean and deviation.

    Attributes
    ----------
    inv_count : number
        1 / width; in a backward kernel 0 if the mean is detached or not subtracted.
    inv_divisor : number
        1 / (width - ddof); in a backward kernel 0 if the scale is detached.
    eps_on_deviation : number
        What is added to the deviation.
    """

    inv_count: Any
    inv_divisor: Any
    eps_on_deviation: Any


class PartialSums(NamedTuple):
    """Partial sums of the gradients of gamma and beta over rows. Written, and read to add to them.

    Attributes
    ----------
    sums : (parameters, number of partial sums, size of a parameter)
        For gamma the sums of dy * xhat, for beta those of dy; the address is 0 without parameters.
    lost : as `sums`
        What rounding these sums has lost; the address is 0 (no table) for sums over few rows.
    """

    sums: Any
    lost: Any


ADDITION = Addition, ("address",) * 2
STATISTICS = SavedStatistics, ("address",) * 2
SIZES = RowSizes, ("index",) * 4
SUMS = PartialSums, ("address",) * 2


def parameters_kind(element: ElementType) -> Any:
    """Return the kind of `RowParameters` for a kernel of elements of this type."""
    return RowParameters, ((Parameter, ("address", element.compute_name)),) * 2


def scaling_kind(element: ElementType) -> Any:
    """Return the kind of `RowScaling` for a kernel of elements of this type."""
    return RowScaling, (element.compute_name,) * 3
