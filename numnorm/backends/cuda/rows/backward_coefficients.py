"""A table of the coefficients of each row that the gradients of its elements need.

A row of the table has eight numbers of the compute type: ``scale, mean_hi, mean_lo, factor`` of
`make_saved_statistics`, the means of g = dL/dxhat and of g * xhat over the row, as `make_means`
returns them, and two zeros. Kernels access it in 16-byte vectors.
"""

import functools
from typing import Any

from numnorm.backends.cuda.compiler.element_type import ElementType, compute_element_type
from numnorm.backends.cuda.compiler.target import constant, device, make_load, make_store
from numnorm.backends.cuda.compiler.vector_access import make_as_tuple

COEFFICIENTS = 8
_USED = 6


@functools.cache
def make_write_coefficients(element: ElementType) -> Any:
    """Return a device function ``write_coefficients(address, row, coefficients, means, buffer)``.

    It stores a row of the table at `address`: the four numbers `coefficients` and the two numbers
    `means`, those of g and of g * xhat. `buffer` is a local array of `COEFFICIENTS` numbers.
    """
    of = compute_element_type(element)
    store, as_tuple, vector, zero = make_store(of), make_as_tuple(of), of.vector, constant(of, 0.0)

    @device
    def write_coefficients(address, row, coefficients, means, buffer):
        for k in range(4):
            buffer[k] = coefficients[k]
        for k in range(2):
            buffer[4 + k], buffer[6 + k] = means[k], zero
        for k in range(0, COEFFICIENTS, vector):
            store(address, row * COEFFICIENTS + k, as_tuple(buffer, k))

    return write_coefficients


@functools.cache
def make_read_coefficients(element: ElementType) -> Any:
    """Return a device function ``read_coefficients(address, row, buffer)``.

    It returns ``(scale, mean_hi, mean_lo, factor), (mean of g, mean of g * xhat)`` from a row of
    the table at `address`. `buffer` is a local array of `COEFFICIENTS` numbers.
    """
    of = compute_element_type(element)
    load, vector = make_load(of, unchanging=True), of.vector

    @device
    def read_coefficients(address, row, buffer):
        for k in range(0, _USED, vector):
            numbers = load(address, row * COEFFICIENTS + k)
            for j in range(vector):
                buffer[k + j] = numbers[j]
        return (buffer[0], buffer[1], buffer[2], buffer[3]), (buffer[4], buffer[5])

    return read_coefficients
