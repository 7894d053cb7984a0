"""Fast paths of the row norms, for arrays that the kernels can take as they are.

Compiled code checks the arrays by their PyArrayObject structs, and then calls the kernel by its
address. The same checks in Python would take longer than the work on a small array. If any array
differs, the fast path does nothing, and `rows` takes its general path.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types

from numnorm.backends.cpu.compiler.jit import MachineCode, entry, inlined, make_call
from numnorm.backends.cpu.memory.kernel_arrays import make_aligned_zeros, release
from numnorm.backends.cpu.memory.ndarray_struct import (
    NDARRAY_STRUCT,
    is_apart,
    is_like,
    is_plain,
    make_as_array,
)
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.layouts import RowLayout

# The classes of a parameter or a mean, and the types that the compiled code takes them as.
_KINDS = {np.ndarray: NDARRAY_STRUCT, type(None): types.none, float: types.float64}
_WHOLE, _REAL = types.intp, types.float64

FastPath = Callable[..., bool]


def make_fits(kind: Any, itemsize: int) -> Callable[..., Any]:
    """Return a compiled ``fits(value, like, target, nbytes)``: whether a kernel can take the value.

    An array fits if it has the dtype and shape of `like`, and does not overlap the `nbytes` bytes
    of the target. None and numbers always fit.
    """

    @inlined
    def array_fits(value, like, target, nbytes):
        return is_like(value, like) and is_apart(target, nbytes, value, itemsize)

    @inlined
    def always(value, like, target, nbytes):
        return True

    return array_fits if kind is NDARRAY_STRUCT else always


def make_argument(kind: Any, real: Any, ndim: int) -> Callable[..., Any]:
    """Return a compiled ``argument(value, shape)``: the value as a kernel takes it.

    It is an array of `ndim` axes, a number or None.
    """
    as_array = make_as_array(real, ndim)

    @inlined
    def vector(value, shape):
        return as_array(value, (shape[0] * shape[1],))

    @inlined
    def number(value, shape):
        return real(value)

    @inlined
    def nothing(value, shape):
        return None

    if kind is NDARRAY_STRUCT:
        return vector if ndim == 1 else as_array
    return number if kind is _REAL else nothing


def make_totals(kind: Any, shared: bool) -> Callable[..., Any]:
    """Return a compiled ``totals(parts, shape)``: zeros for the sums of a gradient's parts.

    For no part it is room alone: a plain call that does all parts makes room of its own and adds
    the sums up itself.
    """
    zeros = make_aligned_zeros(np.float64, 2 if shared else 3)

    @inlined
    def vectors(parts, shape):
        return zeros((parts, shape[0]), 0)

    @inlined
    def matrices(parts, shape):
        return zeros((parts, shape[0], shape[1]), 0)

    @inlined
    def nothing(parts, shape):
        return None

    if kind is not NDARRAY_STRUCT:
        return nothing
    return vectors if shared else matrices


@inlined
def is_safe(target, nbytes, source, itemsize):
    """Return whether a kernel that reads the source may write the target, of the same size.

    It reads each element before it writes it, so they may be the same memory, but not overlap.
    """
    return target.address == source.address or is_apart(target, nbytes, source, itemsize)


@functools.cache
def _make_forward(
    element_type: ElementType,
    shared: bool,
    kinds: tuple[Any, ...],
    taken: tuple[Any, ...],
) -> Any:
    """Return the compiled call for gamma and beta of these kinds, of a kernel of these types."""
    enter, ndim = make_call(taken), 1 if shared else 2
    rows_of, each_of = make_as_array(element_type.storage_dtype, 2), make_as_array(np.float64, 1)
    itemsize, compute_type = element_type.storage_dtype.itemsize, element_type.compute_type
    gamma_fits, beta_fits = (make_fits(kind, itemsize) for kind in kinds)
    gamma_of, beta_of = (make_argument(kind, compute_type, ndim) for kind in kinds)

    def forward(
        address, like, rows, width, segment, channels, eps, eps_on_deviation, count, parts,
        x, gamma, beta, y, mean, rstd, saved,
    ):  # fmt: skip
        nbytes, shape = rows * width * itemsize, (channels, 1 if shared else segment)
        if not (is_plain(x) and is_like(y, x) and is_safe(y, nbytes, x, itemsize)):
            return False
        if not (gamma_fits(gamma, like, y, nbytes) and beta_fits(beta, like, y, nbytes)):
            return False
        arguments = (
            rows_of(x, (rows, width)), gamma_of(gamma, shape), beta_of(beta, shape),
            segment, channels, eps, eps_on_deviation, count, rows_of(y, (rows, width)),
            each_of(mean, (saved,)), each_of(rstd, (saved,)),
            parts, 0, parts,
        )  # fmt: skip
        enter(address, (0, arguments))
        return True

    constants = _WHOLE, NDARRAY_STRUCT, *[_WHOLE] * 4, *[_REAL] * 3, _WHOLE
    name = entry_name("direct_forward", element_type, shared)
    arrays = NDARRAY_STRUCT, *kinds, *[NDARRAY_STRUCT] * 3
    return entry(name, forward, (*constants, *arrays, _WHOLE))


@functools.cache
def _make_backward(
    element_type: ElementType,
    shared: bool,
    kinds: tuple[Any, ...],
    taken: tuple[Any, ...],
) -> Any:
    """Return the compiled call for a mean, gamma, beta, dgamma and dbeta of these kinds."""
    enter, ndim = make_call(taken), 1 if shared else 2
    rows_of, each_of = make_as_array(element_type.storage_dtype, 2), make_as_array(np.float64, 1)
    itemsize, compute_type = element_type.storage_dtype.itemsize, element_type.compute_type
    mean_fits, mean_of = make_fits(kinds[0], 8), make_argument(kinds[0], np.float64, 1)
    rstd_fits = make_fits(NDARRAY_STRUCT, 8)
    gamma_fits, beta_fits = (make_fits(kind, itemsize) for kind in kinds[1:3])
    gamma_of, beta_of = (make_argument(kind, compute_type, ndim) for kind in kinds[1:3])
    dgamma_of, dbeta_of = (make_argument(kind, compute_type, 1) for kind in kinds[3:])
    gamma_totals, beta_totals = (make_totals(kind, shared) for kind in kinds[3:])

    def backward(
        address, like, each, rows, width, segment, channels, inv_count, inv_divisor,
        eps_on_deviation, parts, dy, x, rstd, dx, mean, gamma, beta, dgamma, dbeta,
    ):  # fmt: skip
        nbytes, shape = rows * width * itemsize, (channels, 1 if shared else segment)
        if not (is_plain(x) and is_like(dy, x) and is_like(dx, x)):
            return False
        if not (is_safe(dx, nbytes, x, itemsize) and is_safe(dx, nbytes, dy, itemsize)):
            return False
        if not (mean_fits(mean, each, dx, nbytes) and rstd_fits(rstd, each, dx, nbytes)):
            return False
        if not (gamma_fits(gamma, like, dx, nbytes) and beta_fits(beta, like, dx, nbytes)):
            return False
        dgammas, dbetas = gamma_totals(0, shape), beta_totals(0, shape)
        results = dgamma_of(dgamma, shape), dbeta_of(dbeta, shape)
        arguments = (
            rows_of(dy, (rows, width)), rows_of(x, (rows, width)),
            mean_of(mean, (rows, 1)), each_of(rstd, (rows,)),
            gamma_of(gamma, shape), beta_of(beta, shape),
            segment, channels, inv_count, inv_divisor, eps_on_deviation,
            rows_of(dx, (rows, width)),
            dgammas, dbetas, results[0], results[1], parts, 0, parts,
        )  # fmt: skip
        enter(address, (0, arguments))
        release((dgammas, dbetas))
        return True

    constants = _WHOLE, NDARRAY_STRUCT, NDARRAY_STRUCT, *[_WHOLE] * 4, *[_REAL] * 3, _WHOLE
    name = entry_name("direct_backward", element_type, shared)
    return entry(name, backward, (*constants, *[NDARRAY_STRUCT] * 4, *kinds))


def make_fast_forward(
    code: MachineCode | None,
    element_type: ElementType,
    layout: RowLayout,
    numbers: tuple[Any, ...],
    given: tuple[Any, Any],
    taken: tuple[Any, Any],
) -> FastPath | None:
    """Return ``fast_path(x, gamma, beta, y, mean, rstd, saved)``, or None.

    It returns whether it was done. `numbers` are the kernel's other arguments. x has the dtype and
    the shape of the layout, y is any array, and mean and rstd are new arrays of `saved` elements.
    All arrays are of the class numpy.ndarray itself. gamma and beta have the same classes as the
    `given` ones; `taken` are the given ones as the kernel takes them. If another object was
    converted to an array, the result is None: there is no fast path.
    """
    kinds = kinds_of(given, taken)
    if code is None or None in kinds:
        return None
    compiled = _make_forward(element_type, layout.shared, kinds, code.kinds)
    like = like_of(layout.parameter_shape, element_type.compute_type)
    return functools.partial(compiled, code.address, like, layout.rows, layout.width, *numbers)


def make_fast_backward(
    code: MachineCode | None,
    element_type: ElementType,
    layout: RowLayout,
    numbers: tuple[Any, ...],
    given: tuple[Any, Any, Any],
    taken: tuple[Any, Any, Any],
    gradients: tuple[Any, Any],
) -> FastPath | None:
    """Return ``fast_path(dy, x, rstd, dx, mean, gamma, beta, dgamma, dbeta)``, or None.

    It is the same for mean, gamma and beta; dgamma and dbeta are new arrays like `gradients`.
    """
    kinds = kinds_of((*given, *gradients), (*taken, *gradients))
    if code is None or None in kinds:
        return None
    compiled = _make_backward(element_type, layout.shared, kinds, code.kinds)
    like = like_of(layout.parameter_shape, element_type.compute_type)
    each = like_of(layout.statistic_shape, np.float64)
    size = layout.rows, layout.width
    return functools.partial(compiled, code.address, like, each, *size, *numbers)


def entry_name(call: str, element_type: ElementType, shared: bool) -> str:
    """Return the name by which a compiled call is cached."""
    return f"{call}.{element_type.name}" + ".shared" * shared


def kinds_of(given: tuple[Any, ...], taken: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the kinds of values, None for one that had to be converted for the kernel."""
    return tuple(
        _KINDS.get(type(value)) if _is_array_or_none(value) == _is_array_or_none(other) else None
        for value, other in zip(given, taken, strict=True)
    )


def _is_array_or_none(value: Any) -> tuple[bool, bool]:
    return isinstance(value, np.ndarray), value is None


def like_of(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Return an array of a dtype and a shape that has memory for one element only."""
    return np.broadcast_to(np.zeros((), dtype), shape)
