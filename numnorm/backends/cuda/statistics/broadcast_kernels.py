"""The kernels of gammas and betas that broadcast against x: outputs, and sums of gradients.

An entry of some axes of x has an index, of which the steps of these axes make the index of an
element in an array that broadcasts: 0 for an axis in which the array has size 1.
"""

import collections
import functools
from typing import Any, NamedTuple

from numnorm.backends.cuda.compiler.element_type import FLOAT64, ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    load_flag,
    make_load_one,
    make_store_one,
)

_THREADS = 128
_ZERO, _ONE = constant(FLOAT64, 0.0), constant(FLOAT64, 1.0)
_load, _store = make_load_one(FLOAT64), make_store_one(FLOAT64)


# Axes


class Axis(NamedTuple):
    """The size of an axis, and the steps along it in two arrays.

    Attributes
    ----------
    size, one, other : index
    """

    size: Any
    one: Any
    other: Any


@functools.cache
def axes_group(count: int) -> Any:
    """Return the class of so many axes, which is a group of a kernel's arguments."""
    return collections.namedtuple(f"Axes{count}", [f"axis{k}" for k in range(count)])


def _axes_kind(count: int) -> Any:
    return axes_group(count), ((Axis, ("index",) * 3),) * count


@functools.cache
def _make_places(count: int) -> Any:
    """Return a device function ``places(index, axes)``: where an entry lies in both arrays."""
    last = count - 1
    if not last:
        return device(lambda index, axes: (index * axes[0].one, index * axes[0].other))
    places_before = _make_places(last)

    @device
    def places(index, axes):
        axis = axes[last]
        before = index // axis.size
        along = index - before * axis.size
        one, other = places_before(before, axes)
        return one + along * axis.one, other + along * axis.other

    return places


# What is left out


class LeftOut(NamedTuple):
    """Which elements of x are left out. Read.

    Attributes
    ----------
    x : elements
        The address is 0 if no NaN is left out.
    keep : bytes
        0 where an element is left out; the address is 0 if there is no mask.
    """

    x: Any
    keep: Any


NOTHING_LEFT_OUT = LeftOut(None, None)
_LEFT_OUT = LeftOut, ("address",) * 2


@functools.cache
def _make_is_left_out(element: ElementType) -> Any:
    """Return a device function ``is_left_out(left_out, index)``."""
    load = make_load_one(element)

    @device
    def is_left_out(left_out, index):
        if left_out.keep != 0 and not load_flag(left_out.keep, index):
            return True
        if left_out.x == 0:
            return False
        value = load(left_out.x, index)
        return value != value

    return is_left_out


# Outputs


def make_gained(
    of: ElementType,
    gamma: ElementType | None,
    beta: ElementType | None,
    x: ElementType,
    into: ElementType,
    axes: int,
) -> Kernel:
    """Return the kernel of ``source * gamma + beta``, computed in the type that it writes.

    It takes the addresses ``source, gamma, beta, result``; what is left out of an x, where the
    source is copied; the number of elements; and all `axes`, with the steps of gamma and of beta.
    Gamma or beta is None if it is not given.
    """
    load, store, kind = make_load_one(of), make_store_one(into), into.compute_type
    of_gamma = make_load_one(gamma or FLOAT64)
    of_beta = make_load_one(beta or FLOAT64)
    scales, shifts = gamma is not None, beta is not None
    places, is_left_out = _make_places(axes), _make_is_left_out(x)

    def kernel(source, gamma, beta, result, left_out, count, axes):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < count:
            value = kind(load(source, i))
            if not is_left_out(left_out, i):
                at, also_at = places(i, axes)
                if scales:
                    value = value * kind(of_gamma(gamma, at))
                if shifts:
                    value = value + kind(of_beta(beta, also_at))
            store(result, i, value)

    arrays = ("address",) * 4
    return Kernel(kernel, (*arrays, _LEFT_OUT, "index", _axes_kind(axes)), _THREADS)


# Sums


class Centre(NamedTuple):
    """The statistics of what is summed up. Read.

    Attributes
    ----------
    mean, rstd : numbers
        The address of the mean is 0 for a norm that is not centred.
    lost : float64 numbers
        What rounding took of the means; the address is 0 if it is not known.
    """

    mean: Any
    rstd: Any
    lost: Any


class SumSizes(NamedTuple):
    """How many sums there are, of how many terms each, and into how many parts they are divided.

    Attributes
    ----------
    sums, terms, parts : index
    neighbours : index
        1 if neighbouring threads have neighbouring sums, or else terms of one sum.
    """

    sums: Any
    terms: Any
    parts: Any
    neighbours: Any


_CENTRE = Centre, ("address",) * 3
_SUM_SIZES = SumSizes, ("index",) * 4


@functools.cache
def _make_terms(x: ElementType, dy: ElementType | None, saved: ElementType) -> Any:
    """Return a device function ``terms(x, dy, centre, at, of_statistic)`` of what is summed up.

    They are ``dy * xhat`` and dy. Without a dy they are the distance from the mean, and 1.
    """
    load, wide = make_load_one(x), FLOAT64.compute_type
    load_dy, load_saved = make_load_one(dy or FLOAT64), make_load_one(saved)

    @device
    def deviation(x, centre, at, of_statistic):
        value = wide(load(x, at))
        if centre.mean != 0:
            value = value - wide(load_saved(centre.mean, of_statistic))
        if centre.lost != 0:
            value = value - _load(centre.lost, of_statistic)
        return value

    @device
    def of_gradient(x, dy, centre, at, of_statistic):
        gradient = wide(load_dy(dy, at))
        rstd = wide(load_saved(centre.rstd, of_statistic))
        return deviation(x, centre, at, of_statistic) * rstd * gradient, gradient

    @device
    def of_distance(x, dy, centre, at, of_statistic):
        return deviation(x, centre, at, of_statistic), _ONE

    return of_distance if dy is None else of_gradient


def make_broadcast_sums(
    x: ElementType, dy: ElementType | None, saved: ElementType, kept: int, summed: int
) -> Kernel:
    """Return the kernel of sums over some axes of x, in float64.

    It stores a table ``(2, parts, sums)`` for both of `_make_terms`: a part has every parts-th
    term. It takes the addresses ``x, dy, table``, what is left out, the statistics, the sizes, and
    the `kept` and the `summed` axes, with their steps in x and in the statistics.
    """
    terms_of, is_left_out = _make_terms(x, dy, saved), _make_is_left_out(x)
    kept_places, summed_places = _make_places(kept), _make_places(summed)

    @device
    def own(thread, sizes):
        """Return the sum and the part of a thread."""
        divisor = sizes.sums if sizes.neighbours != 0 else sizes.parts
        first = thread // divisor
        second = thread - first * divisor
        return (second, first) if sizes.neighbours != 0 else (first, second)

    def kernel(x, dy, table, left_out, centre, sizes, kept, summed):
        thread = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if thread < sizes.sums * sizes.parts:
            number, part = own(thread, sizes)
            origin, of_all = kept_places(number, kept)
            first, second = _ZERO, _ZERO
            # A range of an unknown step takes a division, and in numba-cuda-mlir atomic operations.
            term = part
            while term < sizes.terms:
                offset, along = summed_places(term, summed)
                at = origin + offset
                if not is_left_out(left_out, at):
                    product, plain = terms_of(x, dy, centre, at, of_all + along)
                    first, second = first + product, second + plain
                term += sizes.parts
            cell = part * sizes.sums + number
            _store(table, cell, first)
            _store(table, sizes.sums * sizes.parts + cell, second)

    parameters = (
        *("address",) * 3, _LEFT_OUT, _CENTRE, _SUM_SIZES, _axes_kind(kept), _axes_kind(summed),
    )  # fmt: skip
    return Kernel(kernel, parameters, _THREADS)


def make_lost_means(saved: ElementType) -> Kernel:
    """Return the kernel of what rounding took of each mean; 0 of one that the caller changed.

    It takes the addresses ``table, mean, lost``, the table being that of `make_broadcast_sums`;
    the sizes; and the largest part of a mean that may be lost.
    """
    load_saved, wide = make_load_one(saved), FLOAT64.compute_type

    def kernel(table, mean, lost, sizes, most):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        if i < sizes.sums:
            total, count = _ZERO, _ZERO
            for part in range(sizes.parts):
                total = total + _load(table, part * sizes.sums + i)
                count = count + _load(table, (sizes.parts + part) * sizes.sums + i)
            distance = total / count if count > _ZERO else _ZERO
            is_rounding = abs(distance) <= most * abs(wide(load_saved(mean, i)))
            _store(lost, i, distance if is_rounding else _ZERO)

    return Kernel(kernel, (*("address",) * 3, _SUM_SIZES, "float64"), _THREADS)
