"""The fast path of rows of which elements are left out: see `rows.fast_path`."""

import functools
from typing import Any

import numpy as np
from numba.core import types

from numnorm.backends.cpu.compiler.jit import MachineCode, entry, inlined, make_call
from numnorm.backends.cpu.memory.ndarray_struct import (
    NDARRAY_STRUCT,
    is_apart,
    is_like,
    is_plain,
    make_as_array,
)
from numnorm.backends.cpu.rows.fast_path import (
    FastPath,
    entry_name,
    is_safe,
    kinds_of,
    like_of,
    make_argument,
    make_fits,
)
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.layouts import RowLayout

_WHOLE, _REAL = types.intp, types.float64


def _make_keep(kind: Any) -> tuple[Any, Any]:
    """Return compiled ``fits(keep, like, target, nbytes)`` and ``keep_of(keep, size)``."""
    as_bytes = make_as_array(np.uint8, 1)

    @inlined
    def fits(keep, like, target, nbytes):
        return is_like(keep, like) and is_apart(target, nbytes, keep, 1)

    @inlined
    def always(keep, like, target, nbytes):
        return True

    @inlined
    def keep_of(keep, size):
        return as_bytes(keep, (size,))

    @inlined
    def nothing(keep, size):
        return None

    return (fits, keep_of) if kind is NDARRAY_STRUCT else (always, nothing)


@functools.cache
def _make_forward(
    element_type: ElementType, shared: bool, kinds: tuple[Any, ...], omit: bool, taken: Any
) -> Any:
    """Return the compiled call for keep, gamma and beta of these kinds, of a kernel of `taken`."""
    enter, ndim = make_call(taken), 1 if shared else 2
    rows_of, each_of = make_as_array(element_type.storage_dtype, 2), make_as_array(np.float64, 1)
    itemsize, compute_type = element_type.storage_dtype.itemsize, element_type.compute_type
    keep_fits, keep_of = _make_keep(kinds[0])
    gamma_fits, beta_fits = (make_fits(kind, itemsize) for kind in kinds[1:])
    gamma_of, beta_of = (make_argument(kind, compute_type, ndim) for kind in kinds[1:])
    omits = 1 if omit else None

    def forward(
        address, like, like_keep, rows, width, step, segment, channels, eps, eps_on_deviation,
        share, more, parts, x, keep, gamma, beta, y, mean, rstd, saved, fill, fill_missing,
    ):  # fmt: skip
        nbytes, shape = rows * width * itemsize, (channels, 1 if shared else segment)
        if not (is_plain(x) and is_like(y, x) and is_safe(y, nbytes, x, itemsize)):
            return False
        if not keep_fits(keep, like_keep, y, nbytes):
            return False
        if not (gamma_fits(gamma, like, y, nbytes) and beta_fits(beta, like, y, nbytes)):
            return False
        arguments = (
            rows_of(x, (rows, width)), keep_of(keep, rows * width), step, omits,
            gamma_of(gamma, shape), beta_of(beta, shape),
            segment, channels, eps, eps_on_deviation, share, more, fill, fill_missing,
            rows_of(y, (rows, width)), each_of(mean, (saved,)), each_of(rstd, (saved,)),
            parts, 0, parts,
        )  # fmt: skip
        enter(address, (0, arguments))
        return True

    constants = _WHOLE, NDARRAY_STRUCT, NDARRAY_STRUCT, *[_WHOLE] * 5, *[_REAL] * 4, _WHOLE
    arrays = NDARRAY_STRUCT, *kinds, *[NDARRAY_STRUCT] * 3
    name = entry_name("direct_masked_forward", element_type, shared) + ".omit" * omit
    return entry(name, forward, (*constants, *arrays, _WHOLE, _REAL, _REAL))


def make_fast_masked_forward(
    code: MachineCode | None,
    element_type: ElementType,
    layout: RowLayout,
    shape: tuple[int, ...],
    numbers: tuple[Any, ...],
    omit: bool,
    given: tuple[Any, Any, Any],
    taken: tuple[Any, Any, Any],
) -> FastPath | None:
    """Return ``fast_path(x, keep, gamma, beta, y, mean, rstd, saved, fill, fill_missing)``.

    It is None without one: see `rows.fast_path.make_fast_forward`. `shape` is that of x, which keep
    must have too.
    """
    kinds = kinds_of(given, taken)
    if code is None or None in kinds:
        return None
    compiled = _make_forward(element_type, layout.shared, kinds, omit, code.kinds)
    likes = like_of(layout.parameter_shape, element_type.compute_type), like_of(shape, np.bool_)
    step = 0 if given[0] is None else layout.width
    size = layout.rows, layout.width, step
    return functools.partial(compiled, code.address, *likes, *size, *numbers)
