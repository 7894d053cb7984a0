"""Arrays that simulated kernels are launched with."""

import numpy as np
from simulated_target import register


def addresses(*arrays):
    return [0 if array is None or array.size == 0 else register(array) for array in arrays]


def in_dtype(dtype, *arrays):
    """Copies of a dtype; nothing stays nothing."""
    return [None if a is None else np.array(a, dtype, order="C") for a in arrays]


def off_by_one(array):
    """The same values at an address that is no multiple of 16 bytes."""
    memory = np.empty(array.size + 1, array.dtype)
    memory[1:] = array.ravel()
    return memory[1:].reshape(array.shape)
