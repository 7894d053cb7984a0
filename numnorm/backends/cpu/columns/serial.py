"""Whole norms over channels as one compiled function, for callers that are compiled themselves.

They run the kernels of `columns.py` without threads, and give the same bytes. Arrays of elements
are flat, and ``shape`` is ``(outer, channels, inner)``; if `across` is true, inner is always 1.
Statistics are float64; gamma and beta have the compute type, or are None.
"""

from typing import Any

import numpy as np
from numba import core
from numba.core import cgutils
from numba.extending import intrinsic

from numnorm.backends.cpu.columns import coefficient_kernels
from numnorm.backends.cpu.columns.moments import unit_of
from numnorm.backends.cpu.columns.moments_kernels import make_fold
from numnorm.backends.cpu.columns.plan import ACROSS, ALONG
from numnorm.backends.cpu.compiler.jit import Function, Kernel, inlined, make_function
from numnorm.backends.cpu.compiler.symbols import Source, make_call_of
from numnorm.backends.cpu.memory.kernel_arrays import (
    contiguous,
    make_aligned_zeros,
    release,
    shaped,
    type_of,
    window,
)
from numnorm.backends.cpu.simd.element_type import element_type_of
from numnorm.backends.cpu.statistics.stored import make_moving_averages, make_restored_means
from numnorm.layouts import block_of

types: Any = core.types
_FAMILIES = {2: ACROSS, 3: ALONG}
_SIZE, _NUMBER, _FLAG, _NONE = types.intp, types.float64, types.boolean, types.none
_block_of, _unit_of = inlined(block_of), inlined(unit_of)
_FLOAT64 = np.dtype(np.float64)
_zeros, _block_zeros = make_aligned_zeros(_FLOAT64, 2), make_aligned_zeros(_FLOAT64, 3)


def _array(dtype: Any, ndim: int = 1) -> Any:
    return types.Array(type_of(dtype), ndim, "C")


_CHANNELS, _TABLE, _BLOCKS = (_array(_FLOAT64, ndim) for ndim in (1, 2, 3))
_ELEMENTS = "elements"  # the type of an array like x


def make_kernel_of(ndim: int, name: str, dtype: str) -> Kernel:
    """Return a kernel for arrays of 2 or 3 axes."""
    kernel: Kernel = getattr(_FAMILIES[ndim], name)(element_type_of(np.dtype(dtype)))
    return kernel


def make_coefficients_of(name: str, dtype: str) -> Function:
    """Return a kernel of coefficients."""
    kernel: Function = getattr(coefficient_kernels, f"make_{name}")(
        element_type_of(np.dtype(dtype))
    )
    return kernel


def _coefficients(name: str, dtype: str, *kinds: Any) -> Function:
    return make_call_of(Source(make_coefficients_of, (name, dtype), kinds))


@intrinsic
def _viewed(typing_context, arguments, shape):
    """Return a tuple in which the flat arrays have this shape."""

    def is_flat(kind):
        return isinstance(kind, types.Array) and kind.ndim == 1

    def viewed(kind):
        return types.Array(kind.dtype, len(shape), "C") if is_flat(kind) else types.unliteral(kind)

    result = types.Tuple([viewed(kind) for kind in arguments])

    def generate(context, builder, signature, values):
        sizes, items = cgutils.unpack_tuple(builder, values[1]), []
        for kind, new, value in zip(
            arguments, result, cgutils.unpack_tuple(builder, values[0]), strict=True
        ):
            if is_flat(kind):
                data = context.make_array(kind)(context, builder, value).data
                items.append(contiguous(context, builder, new, data, sizes))
            else:
                items.append(context.cast(builder, value, kind, new))
        return context.make_tuple(builder, result, items)

    return result(arguments, shape), generate


def _make_run(across: bool, name: str, dtype: str, *kinds: Any) -> Function:
    """Return a compiled ``run(shape, arguments)`` of a kernel in serial."""

    def call_of(ndim):
        known = [_array(dtype, ndim) if kind is _ELEMENTS else kind for kind in kinds]
        kernel_kinds = _SIZE, types.Tuple((*known, _SIZE, _SIZE))
        return make_call_of(Source(make_kernel_of, (ndim, name, dtype), kernel_kinds))

    call_2 = call_of(2)
    launcher = np.int64(0)

    @inlined
    def run_across(shape, arguments):
        call_2((launcher, _viewed(arguments, (shape[0], shape[1]))))

    if across:
        return run_across
    call_3 = call_of(3)

    @inlined
    def run(shape, arguments):
        if shape[2] == 1:
            run_across(shape, arguments)
        else:
            call_3((launcher, _viewed(arguments, shape)))

    return run


def _make_scaled_run(across: bool, name: str, dtype: str, before: Any, after: Any) -> Function:
    """Return a compiled ``run(shape, before, coefficients, scaled, after)`` of a kernel in serial.

    The arguments `before` and `after` the coefficients have these types.
    """
    table = _array(compute_dtype_of(dtype), 2)
    plain = _make_run(across, name, dtype, *before, table, _NONE, *after)
    with_scales = _make_run(across, name, dtype, *before, table, _FLAG, *after)

    @inlined
    def run(shape, before, coefficients, scaled, after):
        if scaled:
            with_scales(shape, (*before, coefficients, scaled, *after))
        else:
            plain(shape, (*before, coefficients, None, *after))

    return run


def compute_dtype_of(dtype: str) -> np.dtype[Any]:
    """Return the dtype of gamma and beta in a kernel for arrays of this dtype."""
    return element_type_of(np.dtype(dtype)).compute_dtype


@inlined
def _block_parts(shape: Any, blocks: int) -> Any:
    """Return the number of parts of a kernel that sums blocks."""
    return blocks if shape[2] == 1 else blocks * shape[1]


@inlined
def _blocks_of(shape: Any) -> Any:
    """Return the size of a block and the number of blocks."""
    block = _block_of(shape[1], shape[2])
    return block, (shape[0] + block - 1) // block


def _make_moments(dtype: str, across: bool) -> Function:
    """Return a compiled ``moments(x, shape, count, total, merge) -> (count, unit)``.

    It stores mean, mean_lo and m2 * unit in the rows of `total`. With `merge`, `total` holds
    the moments of `count` earlier values, and the moments of x are merged into it.
    """
    run = _make_run(across, "moments", dtype, _ELEMENTS, _SIZE, _NUMBER, _BLOCKS)
    fold_kinds = _NUMBER, _TABLE, _NUMBER, _NUMBER, _BLOCKS, _NUMBER, _NUMBER
    fold = make_call_of(Source(make_fold, (), fold_kinds))

    @inlined
    def moments(x, shape, count, total, merge):
        outer, channels, inner = shape
        if x.size == 0:
            return count, 1.0
        block, blocks = _blocks_of(shape)
        parts, block_unit = _block_parts(shape, blocks), _unit_of(block * inner)
        if blocks == 1 and not merge:
            of_block = shaped(total, (3, 1, channels))
            run(shape, (x, block, block_unit, of_block, 0, parts))
            return outer * inner, block_unit
        unit = _unit_of(count + outer * inner)
        if merge:
            for c in range(channels):
                total[2, c] *= unit
        table = _block_zeros((3, blocks, channels), 0)
        run(shape, (x, block, block_unit, table, 0, parts))
        last = float((outer - (blocks - 1) * block) * inner)
        fold((float(count), total, float(block * inner), last, table, unit, block_unit))
        release(table)
        return count + outer * inner, unit

    return moments


def make_moments(dtype: str, across: bool) -> Function:
    """Return ``moments(x, shape, count, mean, m2, mean_lo) -> count``.

    It stores the moments of x in the three arrays. Unless `count` is negative, the arrays hold the
    moments of `count` earlier values, and the moments of x are merged into them.
    """
    moments_of = _make_moments(dtype, across)

    def moments(x, shape, count, mean, m2, mean_lo):
        channels, merge = shape[1], count >= 0
        total = _zeros((3, channels), 0)
        if merge:
            for c in range(channels):
                total[0, c], total[1, c], total[2, c] = mean[c], mean_lo[c], m2[c]
        count, unit = moments_of(x, shape, count if merge else 0, total, merge)
        for c in range(channels):
            mean[c], mean_lo[c], m2[c] = total[0, c], total[1, c], total[2, c] / unit
        release(total)
        return count

    return _function("moments", dtype, across, moments)


def _function(name: str, dtype: str, across: bool, function: Function) -> Function:
    return make_function(f"serial_{name}.{'across' if across else 'any'}.{dtype}", function)


def _make_output(dtype: str, across: bool, gamma: Any, beta: Any) -> Function:
    """Return a compiled ``output(x, shape, statistics, divisor, eps, parameters, y, rstd)``.

    It stores y and rstd. It raises if any m2 is negative.
    """
    compute_dtype = compute_dtype_of(dtype)
    zeros, table = make_aligned_zeros(compute_dtype, 2), _array(compute_dtype, 2)
    run = _make_scaled_run(across, "forward", dtype, [_ELEMENTS], [_ELEMENTS, _SIZE, _SIZE])
    kinds = _CHANNELS, _CHANNELS, _NUMBER, _NUMBER, gamma, beta, _CHANNELS, table
    fill = _coefficients("output_coefficients", dtype, *kinds)

    @inlined
    def output(x, shape, statistics, divisor, eps, parameters, y, rstd):
        mean, m2 = statistics
        gamma, beta = parameters
        coefficients = zeros((4, rstd.size), 0)
        found = fill((mean, m2, divisor, eps, gamma, beta, rstd, coefficients))
        if found != 2:
            run(shape, (x,), coefficients, found == 1, (y, 0, 1, 0, 1))
        release(coefficients)
        if found == 2:
            raise ValueError("running_var must not be negative")

    return output


def make_forward(
    dtype: str, across: bool, gamma: Any, beta: Any, running: tuple[Any, Any]
) -> Function:
    """Return batch norm in training.

    Its arguments are ``x, shape, gamma, beta, running_mean, running_var, weight, correction, eps,
    y, mean, rstd``. It stores the last three, and moves the running statistics, which have the
    Numba types `running`: the number of values minus `correction` divides the variance.
    """
    moments, output = _make_moments(dtype, across), _make_output(dtype, across, gamma, beta)
    kinds = *running, _CHANNELS, _CHANNELS, _NUMBER, _NUMBER
    moves = running[0] is not _NONE
    move = make_call_of(Source(make_moving_averages, (), kinds)) if moves else _nothing

    def forward(
        x, shape, gamma, beta, running_mean, running_var, weight, correction, eps, y, mean, rstd
    ):
        channels = shape[1]
        if moves and shape[0] * shape[2] == correction:
            raise ValueError(
                "x must have at least 2 values in each channel for an unbiased running_var"
            )
        total = _zeros((3, channels), 0)
        count, unit = moments(x, shape, 0, total, False)
        found, m2 = window(total, 0, channels), window(total, 2 * channels, channels)
        divisor = float(count if count > 1 else 1) * unit
        output(x, shape, (found, m2), divisor, eps, (gamma, beta), y, rstd)
        if count > 0:
            divisor = float(count - correction) * unit
            move((running_mean, running_var, found, m2, divisor, weight))
        for c in range(channels):
            mean[c] = total[0, c]
        release(total)

    return _function("forward", dtype, across, forward)


@inlined
def _nothing(arguments: Any) -> None:
    """Stand in for a call that is not needed."""


def make_frozen_forward(dtype: str, across: bool, gamma: Any, beta: Any) -> Function:
    """Return batch norm in inference.

    Its arguments are ``x, shape, gamma, beta, mean, variance, eps, y, rstd``; it stores the last
    two.
    """
    output = _make_output(dtype, across, gamma, beta)

    def forward(x, shape, gamma, beta, mean, variance, eps, y, rstd):
        output(x, shape, (mean, variance), 1.0, eps, (gamma, beta), y, rstd)

    return _function("frozen_forward", dtype, across, forward)


def make_backward(dtype: str, across: bool, gamma: Any, gradient: str) -> Function:
    """Return the gradients of batch norm in training.

    Its arguments are ``dy, x, shape, mean, rstd, gamma, dx, dgamma, dbeta``; it stores the last
    three. The last two have the dtype `gradient`.
    """
    compute_dtype, gradients_kind = compute_dtype_of(dtype), _array(gradient, 2)
    gradient_zeros = make_aligned_zeros(np.dtype(gradient), 2)
    zeros, table = make_aligned_zeros(compute_dtype, 2), _array(compute_dtype, 2)
    centre = _coefficients("centre_coefficients", dtype, _CHANNELS, _CHANNELS, table)
    kinds = gamma, _BLOCKS, _NUMBER, _NUMBER, _FLAG, gradients_kind, table
    fill = _coefficients("gradient_coefficients", dtype, *kinds)
    add = _make_run(across, "sums", dtype, _ELEMENTS, _ELEMENTS, table, _SIZE, _BLOCKS)
    run = _make_scaled_run(across, "dx", dtype, [_ELEMENTS, _ELEMENTS], [_ELEMENTS, _SIZE, _SIZE])
    restore = _nothing
    if compute_dtype == _FLOAT64:
        restored_kinds = _CHANNELS, _SIZE, _CHANNELS, table
        restore = make_call_of(Source(make_restored_means, (), restored_kinds))

    def backward(dy, x, shape, mean, rstd, gamma, dx, dgamma, dbeta):
        outer, channels, inner = shape
        if x.size == 0:
            return _store((dgamma, dbeta), None)
        gradients = gradient_zeros((2, channels), 0)
        block, blocks = _blocks_of(shape)
        coefficients, sums = zeros((8, channels), 0), _block_zeros((2, blocks, channels), 0)
        scaled, lost = centre((mean, rstd, coefficients))
        if lost:
            restore((x, inner, window(sums, 0, channels), coefficients))
        add(shape, (dy, x, coefficients, block, sums, 0, _block_parts(shape, blocks)))
        inverse = 1.0 / (outer * inner)
        scaled = fill((gamma, sums, inverse, inverse, scaled, gradients, coefficients))
        run(shape, (dy, x), coefficients, scaled, (dx, 0, 1, 0, 1))
        _store((dgamma, dbeta), gradients)
        release((coefficients, sums, gradients))

    return _function("backward", dtype, across, backward)


@inlined
def _store(targets: Any, gradients: Any) -> None:
    """Copy the rows of `gradients`; None stands for 0."""
    dgamma, dbeta = targets
    for c in range(dgamma.size):
        dgamma[c] = 0 if gradients is None else gradients[0, c]
        dbeta[c] = 0 if gradients is None else gradients[1, c]


def make_frozen_backward(dtype: str, across: bool, gamma: Any, gradient: str) -> Function:
    """Return the gradients of batch norm in inference, with the arguments of `make_backward`."""
    compute_dtype, gradients_kind = compute_dtype_of(dtype), _array(gradient, 2)
    gradient_zeros = make_aligned_zeros(np.dtype(gradient), 2)
    zeros, table = make_aligned_zeros(compute_dtype, 2), _array(compute_dtype, 2)
    fill = _coefficients("frozen_coefficients", dtype, _CHANNELS, _CHANNELS, gamma, table)
    store = _coefficients("parameter_gradients", dtype, _BLOCKS, table, gradients_kind)
    run = _make_scaled_run(
        across,
        "frozen_statistics",
        dtype,
        [_ELEMENTS, _ELEMENTS],
        [_SIZE, _BLOCKS, _ELEMENTS],
    )

    def backward(dy, x, shape, mean, rstd, gamma, dx, dgamma, dbeta):
        if x.size == 0:
            return _store((dgamma, dbeta), None)
        gradients = gradient_zeros((2, shape[1]), 0)
        block, blocks = _blocks_of(shape)
        coefficients = zeros((6, shape[1]), 0)
        sums = _block_zeros((2, blocks, shape[1]), 0)
        scaled = fill((mean, rstd, gamma, coefficients))
        parts = _block_parts(shape, blocks)
        run(shape, (dy, x), coefficients, scaled, (block, sums, dx, 0, parts))
        store((sums, coefficients, gradients))
        _store((dgamma, dbeta), gradients)
        release((coefficients, sums, gradients))

    return _function("frozen_backward", dtype, across, backward)
