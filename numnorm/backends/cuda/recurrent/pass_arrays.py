"""The arrays of all cells' passes: weights, states, statistics, rows of steps."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from numnorm.arguments import Shape
from numnorm.backends.contract.norms import Norm, Scaling
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.gather_rows import gather_rows, write_rows
from numnorm.backends.cuda.arrays.launch import launch_threads
from numnorm.backends.cuda.compiler.element_type import (
    VECTOR_BYTES,
    ElementType,
    compute_element_type,
)
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.recurrent.cell_norm import NUMBERS
from numnorm.backends.cuda.recurrent.step_kernels import GradientCoefficients, ScalingNumbers
from numnorm.backends.cuda.threads.reductions import WARP, make_joined, two_sum
from numnorm.backends.cuda.threads.row_shape import RowShape

_THREADS = 128  # of a block that adds up arrays

# Steps run one after the other, on few rows. To use many threads, each has one vector of 16 bytes
# of each gate, and blocks are small. A thread of the widest team has as many vectors as it takes,
# which need not fit its registers.
_TEAMS = (1, 2, 4, 8, 16, WARP, 64, 128, 256, 512)


def cell_shape(units: int, element: ElementType, *, whole: bool) -> RowShape:
    """Return the shape for cells; `whole` says that each gate's units fill vectors of 16 bytes."""
    needed = -(-units // element.vector)
    team = next((team for team in _TEAMS if team >= needed), _TEAMS[-1])
    # Powers of two, for fewer kernels.
    vectors = 1 << (-(-needed // team) - 1).bit_length()
    return RowShape(team, max(1, WARP // team), vectors, whole)


def make_add_sums(element: ElementType) -> Kernel:
    """Return the kernel that adds up to three arrays.

    It takes the addresses ``a, b, c, result``, where the address 0 means no array, and ``count``.
    """
    load_one, store_one = make_load_one(element), make_store_one(element)
    zero = constant(element, 0.0)
    joined = make_joined(element, element)

    @device
    def load(address, i):
        return load_one(address, i) if address != 0 else zero

    def kernel(a, b, c, result, count):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            total, lost = two_sum(load(a, i), load(b, i))
            total, more = two_sum(total, load(c, i))
            store_one(result, i, joined(total, lost + more))

    return Kernel(kernel, ("address",) * 4 + ("index",), _THREADS)


sums_kernel = functools.cache(make_add_sums)


def make_dropped(element: ElementType) -> Kernel:
    """Return the kernel that multiplies states, or their gradients, by their dropout mask.

    It takes the addresses ``states, mask, result``, and ``count``.
    """
    load_one, store_one = make_load_one(element), make_store_one(element)

    def kernel(states, mask, result, count):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            store_one(result, i, load_one(states, i) * load_one(mask, i))

    return Kernel(kernel, ("address",) * 3 + ("index",), _THREADS)


dropped_kernel = functools.cache(make_dropped)


class Weights(NamedTuple):
    """The parameters of a recurrent cell, arrays of its library.

    Attributes
    ----------
    x, h : array
        The weight matrices.
    transposed_x, transposed_h : array
    others : tuple
        The kernels' other parameters; None for an array that is missing.
    numbers : tuple of float
        The fields of `AdaNumbers`.
    projection, transposed_projection : array or None
        The weights of an LSTM's projections.
    """

    x: Any
    h: Any
    transposed_x: Any
    transposed_h: Any
    others: tuple[Any, ...]
    numbers: tuple[float, float]
    projection: Any = None
    transposed_projection: Any = None


class Table(NamedTuple):
    """The statistics of all rows, ``(rows, sites * NUMBERS)``."""

    array: Any
    sites: int


def copied(x: DeviceArray) -> Any:
    """Return a copy of a C-contiguous array, in its compute dtype."""
    return gather_rows(x, compute_element_type(x.element), x.shape)


def new(x: DeviceArray, shape: Shape) -> Any:
    """Return a new array of the compute dtype of x, not initialized."""
    return x.lib.empty(x.array, shape, x.element.compute_name)


def make_weights(parameters: Any, others: tuple[Any, ...], numbers: tuple[float, float]) -> Weights:
    """Return the weights of a cell."""
    x = parameters.weight_x.array
    h = parameters.weight_h.array
    library = parameters.weight_x.lib
    transposed_x, transposed_h = (library.permuted(a, (1, 0)) for a in (x, h))
    weights = Weights(x, h, transposed_x, transposed_h, others, numbers)
    projection = array_or_none(getattr(parameters, "projection", None))
    if projection is None:
        return weights
    transposed = library.permuted(projection, (1, 0))
    return weights._replace(projection=projection, transposed_projection=transposed)


def norm_numbers(norm: Norm | None, ada: tuple[float, float]) -> tuple[float, float]:
    """Return the fields of `AdaNumbers`: the two numbers `ada` for AdaNorm, else 1 and 0."""
    return ada if norm is not None and norm.parameters == 0 else (1.0, 0.0)


def parameter_or(
    missing: float, value: DeviceArray | None, norm: Norm | None, count: int, like: DeviceArray,
    size: int,
) -> Any:  # fmt: skip
    """Return a norm's parameter as an array, filled with `missing` if its value is None.

    Return None for a norm that has fewer than `count` parameters.
    """
    if norm is None or norm.parameters < count:
        return None
    if value is not None:
        return value.array
    return like.lib.full(like.array, (size,), like.element.name, missing)


def added_up(like: DeviceArray, shape: Shape, *values: Any) -> Any:
    """Return the sum of up to three arrays of the library; None stands for 0."""
    result = new(like, shape)
    kernel = sums_kernel(like.element)
    count = math.prod(shape)
    three = (*values, None, None, None)[:3]
    if count:
        launch_threads(kernel, count, like, (*three, result), (count,))
    return result


def dropped(x: DeviceArray, states: Any, mask: Any) -> Any:
    """Return states, or their gradients, times the first rows of a mask; None is no mask."""
    if mask is None:
        return states
    shape = x.lib.shape(states)
    result, count, kernel = new(x, shape), math.prod(shape), dropped_kernel(x.element)
    launch_threads(kernel, count, x, (states, mask, result), (count,))
    return result


def array_or_none(value: DeviceArray | None) -> Any:
    """Return the library's array, or None."""
    return None if value is None else value.array


def scaling_numbers(scaling: Scaling, width: int) -> ScalingNumbers:
    """Return the numbers of a norm of `width` elements for the forward kernels."""
    eps = scaling.eps
    divisor = width - scaling.ddof
    return ScalingNumbers(1.0 / width, 1.0 / divisor, eps, scaling.eps_on_deviation, math.sqrt(eps))


def coefficient_numbers(norm: Norm | None, scaling: Scaling, width: int) -> GradientCoefficients:
    """Return the numbers of a norm of `width` elements for the backward kernels."""
    inv_count = 1.0 / width if norm is not None and norm.formula.centred else 0.0
    return GradientCoefficients(inv_count, 1.0 / (width - scaling.ddof), scaling.eps_on_deviation)


def is_whole(units: int, x: DeviceArray, arrays: tuple[Any, ...]) -> bool:
    """Return whether every gate's units are whole, aligned vectors of 16 bytes in all arrays."""
    if units * x.element.itemsize % VECTOR_BYTES:
        return False
    return not any(x.lib.address(a) % VECTOR_BYTES for a in arrays if a is not None)


def shape_for(units: int, x: DeviceArray, *arrays: Any) -> RowShape:
    """Return the shape of a step's kernel for these arrays."""
    # The step's product is a new array, so it is aligned.
    return cell_shape(units, x.element, whole=is_whole(units, x, arrays))


def addresses(x: DeviceArray, arrays: Sequence[Any]) -> list[int]:
    """Return the address of each array; None (no array) has the address 0."""
    return [0 if array is None else x.lib.address(array) for array in arrays]


class StepArrays:
    """The addresses of rows in arrays that all steps use.

    It reads the arrays' addresses only once: a library that computes in the background makes the
    host wait for an address.
    """

    def __init__(self, x: DeviceArray, *arrays: Any) -> None:
        itemsize = x.element.itemsize
        sizes = [0 if a is None else math.prod(x.lib.shape(a)[1:]) * itemsize for a in arrays]
        self._arrays = [*zip(addresses(x, arrays), sizes, strict=True)]

    def at_rows(self, *rows: Any) -> list[Any]:
        """Return the addresses of rows of each array, one row for each step.

        None (no array) has the address 0.
        """
        pairs = zip(self._arrays, rows, strict=True)
        return [address + row * size if address else 0 for (address, size), row in pairs]


def new_table(x: DeviceArray, rows: int, sites: int) -> Table:
    """Return a new table for the statistics of all rows."""
    return Table(new(x, (rows, sites * NUMBERS)) if sites else None, sites)


def new_states(x: DeviceArray, first: DeviceArray, rows: int) -> Any:
    """Return a new array that begins with the states `first` and has `rows` more rows."""
    states = new(x, (first.shape[0] + rows, first.shape[1]))
    write_rows(first, first.element, first.shape, states)
    return states
