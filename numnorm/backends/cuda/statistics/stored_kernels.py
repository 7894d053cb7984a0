"""The kernels of stored statistics: one float64 number for each channel or weight vector."""

import functools
from typing import Any

from numnorm.backends.cuda.compiler.element_type import FLOAT64, ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    make_sqrt,
    make_store_one,
)
from numnorm.backends.cuda.compiler.target import reciprocal as reciprocal_of
from numnorm.backends.formulas.norms import merge_moments, moved

_THREADS = 128
_ZERO, _ONE, _INFINITY, _NAN = (
    constant(FLOAT64, v) for v in (0.0, 1.0, float("inf"), float("nan"))
)
# Below this variance squares lose digits to underflow in float64.
_SMALLEST_VARIANCE = constant(FLOAT64, 1e-301)


def make_reciprocal(of: ElementType) -> Kernel:
    """Return the kernel of the reciprocals of values, and 0 for 0.

    It takes the addresses of values and of the result, which is float64, and ``count``.
    """
    load, store, kind = make_load_one(of), make_store_one(FLOAT64), FLOAT64.compute_type
    inverse = reciprocal_of(FLOAT64)

    def kernel(values, result, count):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            value = kind(load(values, i))
            store(result, i, _ZERO if value == _ZERO else inverse(value))

    return Kernel(kernel, ("address",) * 2 + ("index",), _THREADS)


@functools.cache
def make_inverse_root() -> Any:
    """Return a device function ``inverse_root(variance, eps)``, in float64.

    It returns 1 / sqrt(variance + eps): 0 for a division by 0, and NaN outside the range of
    float64.
    """
    inverse, sqrt = reciprocal_of(FLOAT64), make_sqrt(FLOAT64)

    @device
    def inverse_root(variance, eps):
        total = variance + eps
        lost = total == _INFINITY or (variance > _ZERO and total < _SMALLEST_VARIANCE)
        rstd = _NAN if lost else inverse(sqrt(total))
        return _ZERO if total == _ZERO else rstd

    return inverse_root


def make_reciprocal_deviation(of: ElementType) -> Kernel:
    """Return the kernel of `make_inverse_root` of each variance.

    It takes the addresses of the variances and of the result, which is float64; ``count``; and the
    numbers ``factor``, by which it multiplies the variances first, and ``eps``.
    """
    load, store, kind = make_load_one(of), make_store_one(FLOAT64), FLOAT64.compute_type
    inverse_root = make_inverse_root()

    def kernel(variance, result, count, factor, eps):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            store(result, i, inverse_root(kind(load(variance, i)) * factor, eps))

    return Kernel(kernel, ("address",) * 2 + ("index",) + ("float64",) * 2, _THREADS)


def make_update_running(running: ElementType) -> Kernel:
    """Return the kernel that moves running statistics towards new ones.

    It is the formula `moved` of ``new * factor``, whose weight is ``momentum``. It takes the
    addresses of the running statistics and of the new ones, which are float64; ``count``; and
    ``factor`` and ``momentum``.
    """
    load, store, load_new = make_load_one(running), make_store_one(running), make_load_one(FLOAT64)
    kind, rounded, move = FLOAT64.compute_type, running.compute_type, device(moved)

    def kernel(running, new, count, factor, momentum):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            fresh = load_new(new, i) * factor
            store(running, i, rounded(move(kind(load(running, i)), fresh, momentum)))

    return Kernel(kernel, ("address",) * 2 + ("index",) + ("float64",) * 2, _THREADS)


def make_converted(of: ElementType, into: ElementType) -> Kernel:
    """Return the kernel that converts statistics to another type.

    It takes the addresses of values and of the result; ``count``; and a ``factor`` for the values.
    """
    load, store = make_load_one(of), make_store_one(into)
    wide, kind = FLOAT64.compute_type, into.compute_type

    def kernel(values, result, count, factor):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            store(result, i, kind(wide(load(values, i)) * factor))

    return Kernel(kernel, ("address",) * 2 + ("index", "float64"), _THREADS)


def make_root(of: ElementType) -> Kernel:
    """Return the kernel of the square roots of values.

    It takes the addresses of values and of the result, which is float64; ``count``; and a
    ``factor`` for the values.
    """
    load, store, kind = make_load_one(of), make_store_one(FLOAT64), FLOAT64.compute_type
    sqrt = make_sqrt(FLOAT64)

    def kernel(values, result, count, factor):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            store(result, i, sqrt(kind(load(values, i)) * factor))

    return Kernel(kernel, ("address",) * 2 + ("index", "float64"), _THREADS)


def make_two_moments() -> Kernel:
    """Return the kernel that merges the moments of two sets of values, neither of them empty.

    It takes the addresses ``mean, m2, mean_lo`` of one set, of the other and of the result, all of
    float64; ``channels``; and the numbers of values ``count, other_count``.
    """
    load, store, merge = make_load_one(FLOAT64), make_store_one(FLOAT64), device(merge_moments)

    def kernel(
        mean, m2, mean_lo, other_mean, other_m2, other_lo, merged_mean, merged_m2, merged_lo,
        channels, count, other_count,
    ):  # fmt: skip
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < channels:
            moments = load(mean, i), load(mean_lo, i), load(m2, i)
            other = load(other_mean, i), load(other_lo, i), load(other_m2, i)
            centre, lost, squares = merge(count, moments, other_count, other, _ONE)
            store(merged_mean, i, centre)
            store(merged_lo, i, lost)
            store(merged_m2, i, squares)

    return Kernel(kernel, ("address",) * 9 + ("index",) + ("float64",) * 2, _THREADS)
