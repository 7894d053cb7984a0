"""The arrays of all cells' passes: weights, states, statistics, rows of steps, gradients' sums."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from numnorm.arguments import Shape
from numnorm.backends.contract.norms import Norm, Scaling
from numnorm.backends.contract.recurrent import PackedSteps
from numnorm.backends.cuda.arrays.device_array import DeviceArray
from numnorm.backends.cuda.arrays.gather_rows import gather_rows, write_rows
from numnorm.backends.cuda.arrays.launch import launch
from numnorm.backends.cuda.compiler.element_type import compute_element_type
from numnorm.backends.cuda.compiler.vector_access import BYTES
from numnorm.backends.cuda.recurrent.common.cell_norm import NUMBERS
from numnorm.backends.cuda.recurrent.common.cell_shape import cell_shape
from numnorm.backends.cuda.recurrent.common.parameter_sums_kernel import (
    blocks_of_columns,
    make_add_sums,
    make_cell_sums,
    parts_of,
)
from numnorm.backends.cuda.recurrent.common.step_parameters import (
    GradientCoefficients,
    ScalingNumbers,
)
from numnorm.backends.cuda.rows.parameter_gradient_kernel import COLUMNS, make_parameter_gradients
from numnorm.backends.cuda.threads.row_shape import RowShape

_added_up = functools.cache(make_add_sums)
_cell_sums = functools.cache(make_cell_sums)
_finish = functools.cache(make_parameter_gradients)


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
    """

    x: Any
    h: Any
    transposed_x: Any
    transposed_h: Any
    others: tuple[Any, ...]
    numbers: tuple[float, float]


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


def make_weights(given: Any, others: tuple[Any, ...], numbers: tuple[float, float]) -> Weights:
    """Return the weights of a cell."""
    x, h, library = given.weight_x.array, given.weight_h.array, given.weight_x.lib
    transposed_x, transposed_h = (library.permuted(a, (1, 0)) for a in (x, h))
    return Weights(x, h, transposed_x, transposed_h, others, numbers)


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
    result, kernel = new(like, shape), _added_up(like.element)
    count = math.prod(shape)
    given = (*values, None, None, None)[:3]
    if count:
        launch(kernel, -(-count // kernel.threads), like, (*given, result), (count,))
    return result


def array_or_none(value: DeviceArray | None) -> Any:
    """Return the library's array, or None."""
    return None if value is None else value.array


def scaling_numbers(scaling: Scaling, width: int) -> ScalingNumbers:
    """Return the numbers of a norm of `width` elements for the forward kernels."""
    eps, divisor = scaling.eps, width - scaling.ddof
    return ScalingNumbers(1.0 / width, 1.0 / divisor, eps, scaling.eps_on_deviation, math.sqrt(eps))


def coefficient_numbers(norm: Norm | None, scaling: Scaling, width: int) -> GradientCoefficients:
    """Return the numbers of a norm of `width` elements for the backward kernels."""
    inv_count = 1.0 / width if norm is not None and norm.formula.centred else 0.0
    return GradientCoefficients(inv_count, 1.0 / (width - scaling.ddof), scaling.eps_on_deviation)


def is_whole(units: int, x: DeviceArray, arrays: tuple[Any, ...]) -> bool:
    """Return whether every gate's units are whole, aligned vectors of 16 bytes in all arrays."""
    if units * x.element.itemsize % BYTES:
        return False
    return not any(x.lib.address(a) % BYTES for a in arrays if a is not None)


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

    def at_rows(self, *rows: int) -> list[int]:
        """Return the address of one row of each array; None (no array) has the address 0."""
        pairs = zip(self._arrays, rows, strict=True)
        return [address + row * size if address else 0 for (address, size), row in pairs]


def column_sums(
    x: DeviceArray,
    grads: Any,
    values: Any = None,
    table: Table | None = None,
    site: int = 0,
    width: int | None = None,
) -> tuple[Any, Any]:
    """Return for each column the sums of grad * xhat and of grad.

    The statistics of the values are in the table from a site on, each for `width` columns; None
    stands for all columns. Without values there is no norm, and the first result is None.
    """
    rows, columns = x.lib.shape(grads)
    normed, count = values is not None, parts_of(rows, columns)
    kernel = _cell_sums(x.element, normed=normed)
    sums = new(x, (2 if normed else 1, count, columns))
    arrays = grads, values, table.array if table else None, sums
    sizes = rows, columns, count, table.sites if table else 0, site, width or columns
    launch(kernel, count * blocks_of_columns(columns), x, arrays, sizes)
    results = [new(x, (columns,)) for _ in range(2 if normed else 1)]
    finish, blocks = _finish(x.element, x.element), -(-columns // COLUMNS)
    launch(finish, len(results) * blocks, x, (sums, *results, None)[:3], (count, columns))
    return (results[0], results[1]) if normed else (None, results[0])


def new_table(x: DeviceArray, rows: int, sites: int) -> Table:
    """Return a new table for the statistics of all rows."""
    return Table(new(x, (rows, sites * NUMBERS)) if sites else None, sites)


def new_states(x: DeviceArray, given: DeviceArray, rows: int) -> Any:
    """Return a new array that begins with the states `given` and has `rows` more rows."""
    states = new(x, (given.shape[0] + rows, given.shape[1]))
    write_rows(given, given.element, given.shape, states)
    return states


def step_ranges(steps: PackedSteps, batch: int) -> list[tuple[int, int, int]]:
    """Return each step's first row, its number of rows, and the row of its first input state.

    The last is an index into the history of states, which begins with the `batch` first states.
    """
    offsets = steps.offsets.tolist()
    before = [0, *(batch + start for start in offsets)][: len(offsets)]
    return [*zip(offsets, steps.batch_sizes.tolist(), before, strict=True)]


def states_before(x: DeviceArray, steps: PackedSteps, state: Any) -> Any:
    """Return each row's input state, from the history of states."""
    library = x.lib
    batch = library.shape(state)[0] - x.shape[0]
    if (steps.batch_sizes == batch).all():  # contiguous
        return library.rows(state, 0, x.shape[0])
    ranges = step_ranges(steps, batch)
    return library.concatenated([library.rows(state, at, at + count) for _, count, at in ranges])


def weight_gradients(
    x: DeviceArray, steps: PackedSteps, state: Any, dxp: Any, dz: Any
) -> dict[str, Any]:
    """Return the gradients of both weight matrices, from the gradients of their products."""
    dxp_t, dz_t = (x.lib.permuted(d, (1, 0)) for d in (dxp, dz))
    return {
        "weight_x": x.lib.matmul(dxp_t, x.array),
        "weight_h": x.lib.matmul(dz_t, states_before(x, steps, state)),
    }


def gradients_without_steps(
    x: DeviceArray, weights: Weights, units: int, sizes: Mapping[str, int]
) -> dict[str, Any]:
    """Return the gradients of all parameters, zeros, for sequences without steps.

    `sizes` gives the numbers for each unit of the parameters other than the weight matrices.
    """
    library = x.lib
    shapes: dict[str, Shape] = {name: (size * units,) for name, size in sizes.items()}
    shapes |= {"weight_x": library.shape(weights.x), "weight_h": library.shape(weights.h)}
    return {name: library.full(x.array, s, x.element.name, 0.0) for name, s in shapes.items()}
