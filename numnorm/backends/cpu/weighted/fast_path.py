"""The fast path of rows that are masked or have weights: see `rows.fast_path`."""

import functools
from typing import Any

import numpy as np
from numba.core import types

from numnorm.backends.cpu.compiler.jit import MachineCode, entry, inlined, make_call
from numnorm.backends.cpu.memory.kernel_arrays import release
from numnorm.backends.cpu.memory.ndarray_struct import (
    NDARRAY_STRUCT,
    is_like,
    is_plain,
    make_as_array,
)
from numnorm.backends.cpu.rows.backward_kernel import add_parts
from numnorm.backends.cpu.rows.fast_path import (
    FastPath,
    entry_name,
    is_safe,
    kinds_of,
    like_of,
    make_argument,
    make_fits,
    make_totals,
)
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.weighted.row_forward import Mask
from numnorm.layouts import RowLayout

_WHOLE, _REAL = types.intp, types.float64


def _make_flat(kind: Any, dtype: Any) -> Any:
    """Return a compiled ``flat(values, size)``: the elements of an array, or None."""
    as_array = make_as_array(dtype, 1)

    @inlined
    def flat(values, size):
        return as_array(values, (size,))

    @inlined
    def nothing(values, size):
        return None

    return flat if kind is NDARRAY_STRUCT else nothing


@functools.cache
def _make_forward(
    element_type: ElementType, shared: bool, kinds: tuple[Any, ...], omit: bool, taken: Any
) -> Any:
    """Return the compiled call for keep, weights, gamma and beta, of a kernel of `taken`."""
    enter, ndim = make_call(taken), 1 if shared else 2
    rows_of, each_of = make_as_array(element_type.storage_dtype, 2), make_as_array(np.float64, 1)
    itemsize, compute_type = element_type.storage_dtype.itemsize, element_type.compute_type
    real_size = element_type.compute_dtype.itemsize
    keep_fits, keep_of = make_fits(kinds[0], 1), _make_flat(kinds[0], np.uint8)
    weights_fit, weights_of = make_fits(kinds[1], 8), _make_flat(kinds[1], np.float64)
    gamma_fits, beta_fits = (make_fits(kind, real_size) for kind in kinds[2:])
    gamma_of, beta_of = (make_argument(kind, compute_type, ndim) for kind in kinds[2:])
    omits = 1 if omit else None

    def forward(
        address, like, like_keep, like_weights, rows, width, step, weight_step, segment, channels,
        eps, eps_on_deviation, share, more, parts,
        x, keep, weights, gamma, beta, y, mean, rstd, saved, fill, fill_missing,
    ):  # fmt: skip
        nbytes, shape = rows * width * itemsize, (channels, 1 if shared else segment)
        if not (is_plain(x) and is_like(y, x) and is_safe(y, nbytes, x, itemsize)):
            return False
        if not keep_fits(keep, like_keep, y, nbytes):
            return False
        if not weights_fit(weights, like_weights, y, nbytes):
            return False
        if not (gamma_fits(gamma, like, y, nbytes) and beta_fits(beta, like, y, nbytes)):
            return False
        arguments = (
            rows_of(x, (rows, width)), keep_of(keep, rows * width), step,
            weights_of(weights, rows * width), weight_step, omits,
            gamma_of(gamma, shape), beta_of(beta, shape),
            segment, channels, eps, eps_on_deviation, share, more, fill, fill_missing,
            rows_of(y, (rows, width)), each_of(mean, (saved,)), each_of(rstd, (saved,)),
            parts, 0, parts,
        )  # fmt: skip
        enter(address, (0, arguments))
        return True

    constants = _WHOLE, *[NDARRAY_STRUCT] * 3, *[_WHOLE] * 6, *[_REAL] * 4, _WHOLE
    arrays = NDARRAY_STRUCT, *kinds, *[NDARRAY_STRUCT] * 3
    name = entry_name("direct_masked_forward", element_type, shared) + ".omit" * omit
    return entry(name, forward, (*constants, *arrays, _WHOLE, _REAL, _REAL))


@functools.cache
def _make_backward(
    element_type: ElementType, kinds: tuple[Any, ...], omit: bool, taken: Any
) -> Any:
    """Return the compiled call for keep, weights, mean, gamma, beta, dgamma and dbeta."""
    enter = make_call(taken)
    rows_of, each_of = make_as_array(element_type.storage_dtype, 2), make_as_array(np.float64, 1)
    itemsize, compute_type = element_type.storage_dtype.itemsize, element_type.compute_type
    keep_fits, keep_of = make_fits(kinds[0], 1), _make_flat(kinds[0], np.uint8)
    weights_fit, weights_of = make_fits(kinds[1], 8), _make_flat(kinds[1], np.float64)
    mean_fits, mean_of = make_fits(kinds[2], 8), make_argument(kinds[2], np.float64, 1)
    rstd_fits = make_fits(NDARRAY_STRUCT, 8)
    gamma_fits = make_fits(kinds[3], element_type.compute_dtype.itemsize)
    gamma_of, beta_of = (make_argument(kind, compute_type, 2) for kind in kinds[3:5])
    dgamma_of, dbeta_of = (make_argument(kind, element_type.storage_dtype, 1) for kind in kinds[5:])
    gamma_totals, beta_totals = (make_totals(kind, False) for kind in kinds[5:])
    omits = 1 if omit else None

    def backward(
        address, like, like_keep, like_weights, each, rows, width, step, weight_step,
        mean_flows, scale_flows, share, more, eps_on_deviation, parts,
        dy, x, rstd, dx, keep, weights, mean, gamma, beta, dgamma, dbeta,
    ):  # fmt: skip
        nbytes, shape = rows * width * itemsize, (1, width)
        if not (is_plain(x) and is_like(dy, x) and is_like(dx, x)):
            return False
        if not (is_safe(dx, nbytes, x, itemsize) and is_safe(dx, nbytes, dy, itemsize)):
            return False
        if not keep_fits(keep, like_keep, dx, nbytes):
            return False
        if not weights_fit(weights, like_weights, dx, nbytes):
            return False
        if not (mean_fits(mean, each, dx, nbytes) and rstd_fits(rstd, each, dx, nbytes)):
            return False
        if not gamma_fits(gamma, like, dx, nbytes):
            return False
        dgammas, dbetas = gamma_totals(parts, shape), beta_totals(parts, shape)
        arguments = (
            rows_of(dy, (rows, width)), rows_of(x, (rows, width)),
            keep_of(keep, rows * width), step,
            weights_of(weights, rows * width), weight_step, omits,
            mean_of(mean, (rows, 1)), each_of(rstd, (rows,)),
            gamma_of(gamma, shape), beta_of(beta, shape),
            mean_flows, scale_flows, share, more, eps_on_deviation,
            rows_of(dx, (rows, width)), dgammas, dbetas, parts, 0, parts,
        )  # fmt: skip
        enter(address, (0, arguments))
        add_parts(dgammas, dgamma_of(dgamma, shape))
        add_parts(dbetas, dbeta_of(dbeta, shape))
        release((dgammas, dbetas))
        return True

    constants = _WHOLE, *[NDARRAY_STRUCT] * 4, *[_WHOLE] * 4, *[_REAL] * 5, _WHOLE
    name = entry_name("direct_masked_backward", element_type, False) + ".omit" * omit
    return entry(name, backward, (*constants, *[NDARRAY_STRUCT] * 4, *kinds))


def make_fast_masked_forward(
    code: MachineCode | None,
    element_type: ElementType,
    layout: RowLayout,
    shape: tuple[int, ...],
    numbers: tuple[Any, ...],
    mask: Mask,
    given: tuple[Any, Any, Any, Any],
    taken: tuple[Any, Any],
) -> FastPath | None:
    """Return ``fast_path(x, keep, weights, gamma, beta, y, mean, rstd, saved, fill, missing)``.

    It is None without one: see `rows.fast_path.make_fast_forward`. `shape` is that of x, which keep
    must have too, and weights unless all rows share them.
    """
    kinds = kinds_of(given, (mask.keep, mask.weights, *taken))
    if code is None or None in kinds or not _has_weights_of_all(mask, given[1], layout):
        return None
    compiled = _make_forward(element_type, layout.shared, kinds, bool(mask.omit), code.kinds)
    likes, size = _likes(element_type, layout, shape, given[1]), _size(mask, layout)
    return functools.partial(compiled, code.address, *likes, *size, *numbers)


def make_fast_masked_backward(
    code: MachineCode | None,
    element_type: ElementType,
    layout: RowLayout,
    shape: tuple[int, ...],
    numbers: tuple[Any, ...],
    mask: Mask,
    given: tuple[Any, Any, Any, Any, Any],
    taken: tuple[Any, Any, Any],
    gradients: tuple[Any, Any],
) -> FastPath | None:
    """Return ``fast_path(dy, x, rstd, dx, keep, weights, mean, gamma, beta, dgamma, dbeta)``.

    It is the same for rows of one segment; dgamma and dbeta are new arrays like `gradients`.
    """
    kinds = kinds_of((*given, *gradients), (mask.keep, mask.weights, *taken, *gradients))
    if code is None or None in kinds or not _has_weights_of_all(mask, given[1], layout):
        return None
    # NumPy adds up many parts of one element in another order.
    if layout.width == 1:
        return None
    compiled = _make_backward(element_type, kinds, bool(mask.omit), code.kinds)
    likes, size = _likes(element_type, layout, shape, given[1]), _size(mask, layout)
    each = like_of(layout.statistic_shape, np.float64)
    return functools.partial(compiled, code.address, *likes, each, *size, *numbers)


def _has_weights_of_all(mask: Mask, weights: Any, layout: RowLayout) -> bool:
    """Return whether weights, if any, have a number for each element of one row or of all rows."""
    rows = layout.rows if mask.weight_step else 1
    return weights is None or weights.size == rows * layout.width


def _likes(
    element_type: ElementType, layout: RowLayout, shape: tuple[int, ...], weights: Any
) -> tuple[Any, Any, Any]:
    """Return arrays that gamma, keep and weights must be like."""
    return (
        like_of(layout.parameter_shape, element_type.compute_type),
        like_of(shape, np.bool_),
        like_of(() if weights is None else weights.shape, np.float64),
    )


def _size(mask: Mask, layout: RowLayout) -> tuple[int, int, int, int]:
    """Return the shape of the rows, and the steps of a mask of all elements and of the weights."""
    step = 0 if mask.keep is None else layout.width
    return layout.rows, layout.width, step, mask.weight_step
