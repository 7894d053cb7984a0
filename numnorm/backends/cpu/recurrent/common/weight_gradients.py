"""What x and the weights of a recurrent cell get, from some of its steps at a time.

The gradients of a cell's products are as large as what the forward pass saved. They are made for
a stretch of steps only, and used up for x and the weights while they are in cache.
"""

from typing import NamedTuple

import numpy as np

from numnorm.backends.contract.recurrent import PackedSteps
from numnorm.backends.cpu.matmul.matmul import add_transposed_matmul, matmul, packed, packed_shape
from numnorm.backends.cpu.matmul.micro_kernel import tiling
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.memory.placement import tables
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.memory_pool import POOL, WORKING_MEMORY

# A stretch has about so many rows, or a single step: what a tile of a transposed product adds
# up before it stores its sums.
_ROWS = tiling().depth


class Stretch(NamedTuple):
    """Some steps: from `begin` to `end`, with the rows from `first` to `last`."""

    begin: int
    end: int
    first: int
    last: int

    @property
    def rows(self) -> int:
        """How many rows its steps have."""
        return self.last - self.first


def _stretches_of(batch_sizes: Array) -> list[Stretch]:
    """Return the stretches of a batch, the last steps first: they follow from the shape alone."""
    ends = np.cumsum(batch_sizes)
    rows = int(ends[-1]) if ends.size else 0
    if rows == 0:
        return []
    number = max(1, rows // _ROWS)
    cuts = np.unique(np.searchsorted(ends, np.arange(1, number + 1) * rows // number) + 1)
    lasts = ends[cuts - 1]
    whole = zip([0, *cuts], cuts, [0, *lasts], lasts, strict=False)
    return [Stretch(*map(int, stretch)) for stretch in whole][::-1]


class ProductGradients:
    """The gradients of x and the weights; every stretch adds its own.

    Parameters
    ----------
    weight_x, weight_h, x : array
    state : array (batch + rows, H)
        Those given first, then those of all steps.
    steps : Steps
    storage : Storage
    """

    def __init__(
        self,
        weight_x: Array,
        weight_h: Array,
        x: Array,
        state: Array,
        steps: PackedSteps,
        element_type: ElementType,
    ) -> None:
        self.steps, self.stretches = steps, _stretches_of(steps.batch_sizes)
        self.most_rows = max((stretch.rows for stretch in self.stretches), default=0)
        (width, inputs), hidden, dtype = (
            weight_x.shape,
            weight_h.shape[1],
            element_type.compute_dtype,
        )
        panels, self._room_x, self._room_h = tables(
            WORKING_MEMORY,
            dtype,
            packed_shape(width, inputs, element_type),
            packed_shape(self.most_rows, inputs, element_type),
            packed_shape(self.most_rows, hidden, element_type),
        )
        self._panels = packed(weight_x, panels, element_type)
        self._x, self._state, self._storage = x, state, element_type
        (self.x,) = tables(POOL, dtype, x.shape)  # the caller gets it
        self.weight_x = np.zeros((width, inputs), dtype)
        self.weight_h = np.zeros((width, hidden), dtype)
        # Where the states begin that each step was handed.
        batch = state.shape[0] - x.shape[0]
        self._before = np.concatenate(([0], batch + steps.offsets))

    def add(self, stretch: Stretch, grads: tuple[Array, Array]) -> None:
        """Take the gradients of the products with x and with the state."""
        element_type, rows = self._storage, slice(stretch.first, stretch.last)
        of_x, of_h = grads[0][: stretch.rows], grads[1][: stretch.rows]
        matmul(of_x, self._panels, self.x[rows], element_type)
        x, before = self._x[rows], self._states_before(stretch)
        add_transposed_matmul(
            of_x, packed(x, self._room_x, element_type), self.weight_x, element_type
        )
        add_transposed_matmul(
            of_h, packed(before, self._room_h, element_type), self.weight_h, element_type
        )

    def of_weights(self) -> dict[str, Array]:
        """Return the gradients of the weights by their names."""
        return {"weight_x": self.weight_x, "weight_h": self.weight_h}

    def _states_before(self, stretch: Stretch) -> Array:
        """Return the state that each row of a stretch was handed."""
        steps = slice(stretch.begin, stretch.end)
        batch_sizes, before = self.steps.batch_sizes[steps], self._before[steps]
        if np.array_equal(np.diff(before), batch_sizes[:-1]):  # one after the other
            return self._state[before[0] : before[0] + stretch.rows]
        return np.concatenate(
            [self._state[b : b + n] for b, n in zip(before, batch_sizes, strict=True)]
        )
