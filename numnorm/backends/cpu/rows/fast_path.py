"""Calls of the row kernels whose arrays are just what the kernels take, as most arrays are.

That is found out in compiled code, from the arrays' headers, which then enters a kernel by its
address: a small call is over before Python could have asked half of it. Where an array is
anything else, nothing is done, and `rows` goes on as it does with any array.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numba.core import types

from numnorm.backends.cpu.compiler.jit import MachineCode, entry, inlined, make_call
from numnorm.backends.cpu.memory.alignment import keep_alive
from numnorm.backends.cpu.memory.allocated import make_aligned_zeros
from numnorm.backends.cpu.memory.ndarray_struct import (
    NDARRAY_STRUCT,
    is_apart,
    is_like,
    is_plain,
    make_as_array,
)
from numnorm.backends.cpu.rows.parameter_gradient_kernel import add_parts
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.layouts import RowLayout

# What may stand for a parameter or a mean, and as what it is handed over.
_KINDS = {np.ndarray: NDARRAY_STRUCT, type(None): types.none, float: types.float64}
_WHOLE, _REAL = types.intp, types.float64

FastPath = Callable[..., bool]


def _make_will_do(kind: Any, itemsize: int) -> Callable[..., Any]:
    """Return a compiled ``will_do(value, like, target, nbytes)``, true of what is no array.

    An array will do if it is like another one, and does not overlap a target of so many bytes.
    """

    @inlined
    def array_will_do(value, like, target, nbytes):
        return is_like(value, like) and is_apart(target, nbytes, value, itemsize)

    @inlined
    def always(value, like, target, nbytes):
        return True

    return array_will_do if kind is NDARRAY_STRUCT else always


def _make_of_kernel(kind: Any, real: Any, ndim: int) -> Callable[..., Any]:
    """Return a compiled ``of_kernel(value, shape)``: an array of so many axes, a number or None."""
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


def _make_totals(kind: Any, shared: bool) -> Callable[..., Any]:
    """Return a compiled ``totals(parts, shape)``: zeros for the sums of a gradient's parts."""
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


def _make_enter(kinds: tuple[Any, ...], alone: bool) -> Callable[..., Any]:
    """Return a compiled ``enter(address, arguments, parts)``: all parts of a kernel's work."""
    call = make_call(kinds)

    @inlined
    def serially(address, arguments, parts):
        call(address, ((*arguments, 0, parts),))

    @inlined
    def in_parallel(address, arguments, parts):
        call(address, (parts, arguments))

    return serially if alone else in_parallel


@inlined
def _is_safe(target, nbytes, source, itemsize):
    """Return whether a kernel may write to a target of the size of a source that it reads.

    It reads each element before it writes the same one: they may be in the very same place.
    """
    return target.address == source.address or is_apart(target, nbytes, source, itemsize)


@functools.cache
def _make_forward(
    element_type: ElementType,
    shared: bool,
    kinds: tuple[Any, ...],
    taken: tuple[Any, ...],
    alone: bool,
) -> Any:
    """Return the call for gamma and beta of these kinds, of a kernel that takes these types."""
    enter, ndim = _make_enter(taken, alone), 1 if shared else 2
    rows_of, each_of = make_as_array(element_type.storage_dtype, 2), make_as_array(np.float64, 1)
    itemsize, compute_type = element_type.storage_dtype.itemsize, element_type.compute_type
    gamma_will_do, beta_will_do = (_make_will_do(kind, itemsize) for kind in kinds)
    gamma_of, beta_of = (_make_of_kernel(kind, compute_type, ndim) for kind in kinds)

    def forward(
        address, like, rows, width, segment, channels, eps, eps_on_deviation, count, parts,
        x, gamma, beta, y, mean, rstd, saved,
    ):  # fmt: skip
        nbytes, shape = rows * width * itemsize, (channels, 1 if shared else segment)
        if not (is_plain(x) and is_like(y, x) and _is_safe(y, nbytes, x, itemsize)):
            return False
        if not (gamma_will_do(gamma, like, y, nbytes) and beta_will_do(beta, like, y, nbytes)):
            return False
        arguments = (
            rows_of(x, (rows, width)), gamma_of(gamma, shape), beta_of(beta, shape),
            segment, channels, eps, eps_on_deviation, count, rows_of(y, (rows, width)),
            each_of(mean, (saved,)), each_of(rstd, (saved,)),
            parts,
        )  # fmt: skip
        enter(address, arguments, parts)
        return True

    constants = _WHOLE, NDARRAY_STRUCT, *[_WHOLE] * 4, *[_REAL] * 3, _WHOLE
    name = _name("direct_forward", element_type, shared, alone)
    return entry(
        name,
        forward,
        (
            *constants,
            NDARRAY_STRUCT,
            *kinds,
            NDARRAY_STRUCT,
            NDARRAY_STRUCT,
            NDARRAY_STRUCT,
            _WHOLE,
        ),
    )


@functools.cache
def _make_backward(
    element_type: ElementType,
    shared: bool,
    kinds: tuple[Any, ...],
    taken: tuple[Any, ...],
    alone: bool,
) -> Any:
    """Return the call for a mean, parameters and their gradients of these kinds."""
    enter, ndim = _make_enter(taken, alone), 1 if shared else 2
    rows_of, each_of = make_as_array(element_type.storage_dtype, 2), make_as_array(np.float64, 1)
    itemsize, compute_type = element_type.storage_dtype.itemsize, element_type.compute_type
    mean_will_do, mean_of = _make_will_do(kinds[0], 8), _make_of_kernel(kinds[0], np.float64, 1)
    rstd_will_do = _make_will_do(NDARRAY_STRUCT, 8)
    gamma_will_do, beta_will_do = (_make_will_do(kind, itemsize) for kind in kinds[1:3])
    gamma_of, beta_of = (_make_of_kernel(kind, compute_type, ndim) for kind in kinds[1:3])
    of_gamma, of_beta = (_make_of_kernel(kind, compute_type, 1) for kind in kinds[3:])
    of_gammas, of_betas = (_make_totals(kind, shared) for kind in kinds[3:])

    def backward(
        address, like, each, rows, width, segment, channels, inv_count, inv_divisor,
        eps_on_deviation, parts, dy, x, rstd, dx, mean, gamma, beta, dgamma, dbeta,
    ):  # fmt: skip
        nbytes, shape = rows * width * itemsize, (channels, 1 if shared else segment)
        if not (is_plain(x) and is_like(dy, x) and is_like(dx, x)):
            return False
        if not (_is_safe(dx, nbytes, x, itemsize) and _is_safe(dx, nbytes, dy, itemsize)):
            return False
        if not (mean_will_do(mean, each, dx, nbytes) and rstd_will_do(rstd, each, dx, nbytes)):
            return False
        if not (gamma_will_do(gamma, like, dx, nbytes) and beta_will_do(beta, like, dx, nbytes)):
            return False
        # Where all parts are one call, the kernel has sums of its own, which it adds up itself.
        there = 0 if alone else parts
        dgammas, dbetas = of_gammas(there, shape), of_betas(there, shape)
        sums = of_gamma(dgamma, shape), of_beta(dbeta, shape)
        arguments = (
            rows_of(dy, (rows, width)), rows_of(x, (rows, width)),
            mean_of(mean, (rows, 1)), each_of(rstd, (rows,)),
            gamma_of(gamma, shape), beta_of(beta, shape),
            segment, channels, inv_count, inv_divisor, eps_on_deviation,
            rows_of(dx, (rows, width)),
            dgammas, dbetas, sums[0], sums[1], parts,
        )  # fmt: skip
        enter(address, arguments, parts)
        if not alone:
            add_parts(dgammas, sums[0])
            add_parts(dbetas, sums[1])
        keep_alive((dgammas, dbetas))
        return True

    constants = _WHOLE, NDARRAY_STRUCT, NDARRAY_STRUCT, *[_WHOLE] * 4, *[_REAL] * 3, _WHOLE
    name = _name("direct_backward", element_type, shared, alone)
    return entry(name, backward, (*constants, *[NDARRAY_STRUCT] * 4, *kinds))


def make_fast_forward(
    code: MachineCode | None,
    element_type: ElementType,
    layout: RowLayout,
    numbers: tuple[Any, ...],
    given: tuple[Any, Any],
    taken: tuple[Any, Any],
) -> FastPath | None:
    """Return ``fast_path(x, gamma, beta, y, mean, rstd, saved)``, which returns whether it was done.

    The kernel takes these numbers; x has the dtype and the shape of the layout's arrays, y is any
    array, and mean and rstd are new ones for so many saved statistics. All arrays are of
    numpy.ndarray itself. Parameters are of the classes of those `given`, from which those `taken`
    by the kernel were made; there is no such call where an array was made of what is none.
    """
    kinds = _kinds_of(given, taken)
    if code is None or None in kinds:
        return None
    compiled = _make_forward(element_type, layout.shared, kinds, code.kinds, code.alone)
    like = _like(layout.parameter_shape, element_type.compute_type)
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
    """Return ``fast_path(dy, x, rstd, dx, mean, gamma, beta, dgamma, dbeta)``, likewise.

    A mean and parameters are given; the gradients are new arrays like these.
    """
    kinds = _kinds_of((*given, *gradients), (*taken, *gradients))
    if code is None or None in kinds:
        return None
    compiled = _make_backward(element_type, layout.shared, kinds, code.kinds, code.alone)
    like = _like(layout.parameter_shape, element_type.compute_type)
    each = _like(layout.statistic_shape, np.float64)
    size = layout.rows, layout.width
    return functools.partial(compiled, code.address, like, each, *size, *numbers)


def _name(call: str, element_type: ElementType, shared: bool, alone: bool) -> str:
    return f"{call}.{element_type.name}" + ".shared" * shared + ".parallel" * (not alone)


def _kinds_of(given: tuple[Any, ...], taken: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the kinds of values, None for one that a kernel has not taken as it was given."""
    return tuple(
        _KINDS.get(type(value)) if _is_array_or_none(value) == _is_array_or_none(other) else None
        for value, other in zip(given, taken, strict=True)
    )


def _is_array_or_none(value: Any) -> tuple[bool, bool]:
    return isinstance(value, np.ndarray), value is None


def _like(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Return an array of a dtype and a shape, and of next to no memory."""
    return np.broadcast_to(np.zeros((), dtype), shape)
