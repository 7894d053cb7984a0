"""What the gradient of a row's every element needs of the row, in a table for another kernel.

A row has eight numbers of the working type there, read in pieces of 16 bytes: its
``scale, high, low, factor``, the means of ``g`` and ``g * xhat`` as `make_means` gives them, and
two that nobody reads.
"""

import functools
from typing import Any

from numnorm.backends.cuda.compiler.element_type import Element, working_element
from numnorm.backends.cuda.compiler.target import constant, device, make_load, make_store
from numnorm.backends.cuda.compiler.vector_access import make_as_tuple

TERMS = 8
_USED = 6


@functools.cache
def make_write_terms(element: Element) -> Any:
    """Return a device function ``write_terms(address, row, terms, means, places)``.

    `places` are `TERMS` numbers of the thread's own.
    """
    of = working_element(element)
    store, as_tuple, vector, zero = make_store(of), make_as_tuple(of), of.vector, constant(of, 0.0)

    @device
    def write_terms(address, row, terms, means, places):
        for k in range(4):
            places[k] = terms[k]
        for k in range(2):
            places[4 + k], places[6 + k] = means[k], zero
        for k in range(0, TERMS, vector):
            store(address, row * TERMS + k, as_tuple(places, k))

    return write_terms


@functools.cache
def make_read_terms(element: Element) -> Any:
    """Return a device function ``read_terms(address, row, places) -> (terms, means)``."""
    of = working_element(element)
    load, vector = make_load(of, unchanging=True), of.vector

    @device
    def read_terms(address, row, places):
        for k in range(0, _USED, vector):
            found = load(address, row * TERMS + k)
            for j in range(vector):
                places[k + j] = found[j]
        return (places[0], places[1], places[2], places[3]), (places[4], places[5])

    return read_terms
