"""Dropout of the state in its product with the weights, one mask for all steps (Gal 2016)."""

from collections.abc import Callable
from typing import Any

from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.recurrent.kernels.units import make_unit_loop
from numnorm.backends.cpu.simd.access import VectorAccess
from numnorm.backends.cpu.simd.element_type import ElementType


def make_operand(dropout: bool) -> Callable[..., Any]:
    """Return a compiled ``operand(saved)``: the states that are multiplied by the weights."""
    return inlined((lambda saved: saved.dropped) if dropout else (lambda saved: saved.state))


def _make_drop(
    accumulate: bool, element_type: ElementType, access: VectorAccess
) -> Callable[..., None]:
    read, _, write = access

    @inlined
    def drop(values, mask, result, j, tail):
        value = read(values, j, tail) * read(mask, j, tail)
        write(result, j, read(result, j, tail) + value if accumulate else value, tail)

    return drop


def make_drop(element_type: ElementType, *, accumulate: bool = False) -> Callable[..., None]:
    """Return a compiled ``drop(values, masks, results, at, left, rows)``.

    It multiplies rows from `at` on by the masks of the batch rows from `left` on, and stores them
    as the same rows of the results. With `accumulate` it adds to these.
    """
    of_row = make_unit_loop(_make_drop, accumulate, element_type)

    @inlined
    def drop(values, masks, results, at, left, rows):
        for r in range(rows):
            row = values[at + r], masks[left + r], results[at + r]
            of_row(masks.shape[1], row)

    return drop
