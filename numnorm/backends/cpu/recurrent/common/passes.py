"""What the passes of all recurrent cells share: their products, their steps and their sums."""

from typing import Any, NamedTuple

import numpy as np

from numnorm.backends.contract.norms import Norm, Scaling
from numnorm.backends.cpu.compiler.jit import Twins
from numnorm.backends.cpu.compiler.parallel import run, threads
from numnorm.backends.cpu.matmul.matmul import packed, packed_shape
from numnorm.backends.cpu.matmul.packed_matrices import matrix_panels
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.memory.placement import tables
from numnorm.backends.cpu.recurrent.common.weight_gradients import ProductGradients
from numnorm.backends.cpu.simd.element_type import Storage
from numnorm.memory_pool import WORKING_MEMORY

# A thread takes so many rows of a batch at least: its products are faster with more.
LEAST_ROWS = 4
# The sums for the parameters are taken for so many groups of rows at most.
_MOST_GROUPS = 64
# Three groups of LEAST_ROWS would be two for one of two threads; six of these are three for both.
_ROWS_OF_SIX = 2


class Weights(NamedTuple):
    """The parameters of a recurrent cell in the working dtype.

    Attributes
    ----------
    x, h : array
    panels_x, panels_h : array or None
        The transposed weights packed, if that is worth keeping.
    others : tuple
        What the kernels take besides; gammas and betas may be None or numbers.
    """

    x: Array
    h: Array
    panels_x: Array | None
    panels_h: Array | None
    others: tuple[Any, ...]


def make_weights(given: Any, others: tuple[Any, ...], keep: bool) -> Weights:
    """Return the weights of a cell, packed if they are to be kept."""
    x, h = given.weight_x, given.weight_h
    if not keep:
        return Weights(x, h, None, None, others)
    return Weights(x, h, matrix_panels(x.T), matrix_panels(h.T), others)


def added_up(size: int, dtype: Any, *values: Array | None) -> Array:
    """Return the sum of the values that there are: what is only added is added once."""
    total = np.zeros(size)
    for value in values:
        if value is not None:
            total += value
    return total.astype(dtype)


def norm_pair(
    norm: Norm | None, gamma: Any, beta: Any, size: int, dtype: Any, ada: tuple[float, float]
) -> tuple[Any, Any]:
    """Return gamma and beta as the kernels take those of this norm."""
    if norm is None:
        return None, None
    if norm.parameters == 0:
        return dtype.type(ada[0]), dtype.type(ada[1])
    return np.ones(size, dtype) if gamma is None else gamma, beta


def panels(weights: Weights, storage: Storage, *shapes: tuple[int, ...]) -> list[Array]:
    """Return the transposed weights packed, and uninitialized arrays of some shapes beside them."""
    dtype = storage.working_dtype
    if weights.panels_x is not None and weights.panels_h is not None:
        rooms = tables(WORKING_MEMORY, dtype, *shapes) if shapes else []
        return [weights.panels_x, weights.panels_h, *rooms]
    (width, inputs), (_, hidden) = weights.x.shape, weights.h.shape
    sizes = packed_shape(inputs, width, storage), packed_shape(hidden, width, storage)
    room_x, room_h, *rooms = tables(WORKING_MEMORY, dtype, *sizes, *shapes)
    return [packed(weights.x.T, room_x, storage), packed(weights.h.T, room_h, storage), *rooms]


def statistics(*sizes: int) -> tuple[Array, ...]:
    """Return room for mean and rstd of rows, so many for each norm."""
    return tuple(np.empty(size) for size in sizes for _ in range(2))


def scaling_numbers(scaling: Scaling, width: int) -> tuple[float, float, float]:
    """Return how the forward kernels take the scaling of rows of some width."""
    return scaling.eps, scaling.eps_on_deviation, float(width - scaling.ddof)


def flow_numbers(norm: Norm | None, scaling: Scaling, width: int) -> tuple[float, float, float]:
    """Return how the backward kernels take it."""
    centred = norm is not None and norm.formula.centred
    return 1.0 / width if centred else 0.0, 1.0 / (width - scaling.ddof), scaling.eps_on_deviation


class Groups(NamedTuple):
    """The sums for the parameters, a few rows of the batch at a time: they follow from the shape.

    Attributes
    ----------
    sums, totals : array (groups, numbers)
        In the working dtype and in float64.
    size : int
        How many rows a group has.
    """

    sums: Array
    totals: Array
    size: int


def groups_of(batch: int, numbers: int, storage: Storage) -> Groups:
    """Return the sums of a batch, all 0."""
    size = max(LEAST_ROWS, -(-batch // _MOST_GROUPS))
    if -(-batch // size) == 3:
        size = _ROWS_OF_SIX
    totals = np.zeros((-(-batch // size), numbers))
    return Groups(totals.astype(storage.working_dtype), totals, size)


def run_steps(kernel: Twins, arguments: tuple[Any, ...], rows: int, width: int, most: int) -> None:
    """Run a kernel of all steps: no result depends on how many parts a batch is cut into."""
    parts = min(threads(), most) if most > 1 else 1
    if rows:  # the kernels ask for the rows of the first step
        run(kernel, (*arguments, parts), rows * width * width // 64, parts)


def run_back(
    kernel: Twins,
    arguments: tuple[Any, ...],
    slopes: tuple[Array, Array],
    groups: Groups,
    gradients: ProductGradients,
) -> None:
    """Run a backward kernel of all steps, stretch by stretch.

    It leaves the gradients of a stretch's products with x and with the state in the `slopes`.
    """
    number, _ = groups.sums.shape
    most = min(number, number * groups.size // LEAST_ROWS)
    for stretch in gradients.stretches:
        here = *gradients.steps, stretch.begin, stretch.end, *arguments
        run_steps(kernel, here, stretch.rows, gradients.weight_h.shape[1], most)
        gradients.add(stretch, slopes)
