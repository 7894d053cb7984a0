"""Backend functions for dropout of inputs and of states, with one mask for all steps."""

import numpy as np

from numnorm.backends.contract.recurrent import SequenceLayout
from numnorm.backends.cpu.memory.host_arrays import Array
from numnorm.backends.cpu.recurrent.sequences import sort_states
from numnorm.backends.cpu.recurrent.stacking import apply_mask


def dropped(rows: Array, kept: Array, factor: float, layout: SequenceLayout) -> Array:
    """Return packed rows times the factor where an element is kept, else 0."""
    mask = np.broadcast_to(kept, (layout.time, *kept.shape))
    return apply_mask(rows, layout.rows(mask), factor)


def dropout_mask(kept: Array, factor: float, layout: SequenceLayout, x: Array) -> Array:
    """Return the factors of the states, in the order of the layout."""
    return np.multiply(sort_states(kept, layout), factor, dtype=x.dtype)
