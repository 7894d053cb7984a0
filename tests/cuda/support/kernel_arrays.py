"""Arrays as arguments of simulated kernels."""

import numpy as np
from simulated_target import register


def addresses(*arrays):
    return [0 if array is None or array.size == 0 else register(array) for array in arrays]


def in_dtype(dtype, *arrays):
    """Return copies of a dtype; None stays None."""
    return [None if a is None else np.array(a, dtype, order="C") for a in arrays]


def off_by_one(array):
    """Return a copy at an address that is no multiple of 16 bytes."""
    memory = np.empty(array.size + 1, array.dtype)
    memory[1:] = array.ravel()
    return memory[1:].reshape(array.shape)
