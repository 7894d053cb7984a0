"""The gradients of x and of the weights of a recurrent cell, for a chunk of steps at a time.

The gradients of the products would be as large as what the forward pass saved. So they are
computed for one chunk of steps and multiplied with x, states and weights while in cache.
"""

from typing import NamedTuple

import numpy as np

from numnorm.backends.contract.recurrent import PackedSteps
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.memory.placement import tables
from numnorm.backends.cpu.recurrent.matmul.matmul import (
    add_transposed_matmul,
    matmul,
    packed,
    packed_shape,
)
from numnorm.backends.cpu.recurrent.matmul.micro_kernel import tiling
from numnorm.backends.cpu.recurrent.matmul.packed_matrices import matrix_panels
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.memory_pool import POOL, WORKING_MEMORY

# The approximate rows of a chunk: the depth that a transposed product sums before it stores.
_ROWS = tiling().depth


class StepChunk(NamedTuple):
    """The steps from `begin` to `end`, and their rows from `first` to `last`."""

    begin: int
    end: int
    first: int
    last: int

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return self.last - self.first


def _chunks_of(batch_sizes: Array) -> list[StepChunk]:
    """Return the chunks of a batch, the last steps first; they depend on the shape alone."""
    ends = np.cumsum(batch_sizes)
    rows = int(ends[-1]) if ends.size else 0
    if rows == 0:
        return []
    number = max(1, rows // _ROWS)
    cuts = np.unique(np.searchsorted(ends, np.arange(1, number + 1) * rows // number) + 1)
    lasts = ends[cuts - 1]
    chunks = zip([0, *cuts], cuts, [0, *lasts], lasts, strict=False)
    return [StepChunk(*map(int, chunk)) for chunk in chunks][::-1]


class ProductGradients:
    """The gradients of x and the weights, to which each chunk adds.

    Parameters
    ----------
    weight_x, weight_h, x : array
    state : array (batch + rows, H)
        The initial states, then those of all steps.
    reset : array (rows, H) or None
        The states whose product is the last H columns, if a GRU's reset gate scales them.
    steps : PackedSteps
    element_type : ElementType
    """

    def __init__(
        self,
        weight_x: Array,
        weight_h: Array,
        x: Array,
        state: Array,
        reset: Array | None,
        steps: PackedSteps,
        element_type: ElementType,
    ) -> None:
        self.steps, self.chunks = steps, _chunks_of(steps.batch_sizes)
        self.most_rows = max((chunk.rows for chunk in self.chunks), default=0)
        (width, inputs), hidden = weight_x.shape, weight_h.shape[1]
        dtype = element_type.compute_dtype
        panels, self._scratch_x, self._scratch_h = tables(
            WORKING_MEMORY,
            dtype,
            packed_shape(width, inputs, element_type),
            packed_shape(self.most_rows, inputs, element_type),
            packed_shape(self.most_rows, hidden, element_type),
        )
        self._panels = packed(weight_x, panels, element_type)
        self._x, self._state, self._reset, self._element_type = x, state, reset, element_type
        (self.x,) = tables(POOL, dtype, x.shape)  # the caller gets it
        self.weight_x = np.zeros((width, inputs), dtype)
        self.weight_h = np.zeros((width, hidden), dtype)
        self.projection: Array | None = None
        # The index of each step's first previous state.
        batch = state.shape[0] - x.shape[0]
        self._before = np.concatenate(([0], batch + steps.offsets))

    def add(self, chunk: StepChunk, grads: tuple[Array, Array]) -> None:
        """Add what a chunk's gradients of the products with x and with the state contribute."""
        element_type, rows = self._element_type, slice(chunk.first, chunk.last)
        dxp, dz = grads[0][: chunk.rows], grads[1][: chunk.rows]
        matmul(dxp, self._panels, self.x[rows], element_type)
        x, before = self._x[rows], self._states_before(chunk)
        x = packed(x, self._scratch_x, element_type)
        add_transposed_matmul(dxp, x, self.weight_x, element_type)
        if self._reset is None:
            self._add_weight_h(dz, before, self.weight_h)
            return
        middle = 2 * self.weight_h.shape[1]
        self._add_weight_h(dz[:, :middle], before, self.weight_h[:middle])
        self._add_weight_h(dz[:, middle:], self._reset[rows], self.weight_h[middle:])

    def _add_weight_h(self, dz: Array, states: Array, result: Array) -> None:
        states = packed(states, self._scratch_h, self._element_type)
        add_transposed_matmul(np.ascontiguousarray(dz), states, result, self._element_type)

    def add_projection(self, chunk: StepChunk, projected: Array, outputs: Array) -> None:
        """Add what a chunk's gradients of the projections of these outputs contribute."""
        dstate, outputs = projected[: chunk.rows], outputs[chunk.first : chunk.last]
        if self.projection is None:
            self.projection = np.zeros((dstate.shape[1], outputs.shape[1]), dstate.dtype)
        panels = matrix_panels(outputs)
        add_transposed_matmul(dstate, panels, self.projection, self._element_type)

    def of_weights(self) -> dict[str, Array]:
        """Return the gradients of the weights by name."""
        gradients = {"weight_x": self.weight_x, "weight_h": self.weight_h}
        return gradients if self.projection is None else gradients | {"projection": self.projection}

    def _states_before(self, chunk: StepChunk) -> Array:
        """Return the previous state of each row of a chunk."""
        steps = slice(chunk.begin, chunk.end)
        batch_sizes, before = self.steps.batch_sizes[steps], self._before[steps]
        if np.array_equal(np.diff(before), batch_sizes[:-1]):  # contiguous
            return self._state[before[0] : before[0] + chunk.rows]
        return np.concatenate(
            [self._state[b : b + n] for b, n in zip(before, batch_sizes, strict=True)]
        )
