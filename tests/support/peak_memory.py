"""The most memory that a call has at a time."""

import tracemalloc


def peak_of(call):
    """Return the bytes of what a call makes, at their most, and its result.

    Its kernels must be compiled already: Numba takes more memory than arrays of tests.
    """
    tracemalloc.start()
    try:
        result = call()
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()
