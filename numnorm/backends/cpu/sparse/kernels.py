"""Kernels over the stored values of a sparse matrix: sums of each column, and their scaling.

A part of a kernel has a range of compressed rows or columns, from ``bounds[p]`` to
``bounds[p + 1]``. The bounds follow from the matrix alone, so results do not depend on the threads.

Sums are kept in float64 for each group of rows and each column: of the weights, of the weighted
deviations from the column's pivot (0 without pivots) and of their squares, and of the weights of
missing values; with weights also the number of stored values in rows that have weight. Sums of some
values each are added up to the whole sums, so that the rounding of long sums stays small.
"""

import numpy as np

from numnorm.backends.cpu.compiler.jit import Function, Kernel, inlined, make_function, make_kernel
from numnorm.backends.cpu.memory.kernel_arrays import window

# So many values of a compressed column are added up before they are added to the whole sums.
_RUN = 2048


def make_sums_across() -> Kernel:
    """Return the kernel of the sums over compressed rows.

    Its arguments are ``values, indices, ends, weights, codes, omit, pivots, bounds, scratch, sums``
    with `sums` ``(parts, groups, columns, 4 or 5)`` and `scratch` of its shape, both of zeros.
    Weights, codes and pivots may be empty, which stands for 1, 0 and 0; one kernel is compiled for
    all cases.
    """

    @inlined
    def add_plain_row(values, indices, begin, end, of_group, local):
        for k in range(begin, end):
            value, at = np.float64(values[k]), 4 * (of_group + indices[k])
            local[at] += 1.0
            local[at + 1] += value
            local[at + 2] += value * value

    @inlined
    def add_row(values, indices, begin, end, of_group, weight, omit, pivots, width, local):
        for k in range(begin, end):
            value, column = np.float64(values[k]), of_group + indices[k]
            at = column * width
            if width == 5:
                local[at + 4] += 1.0
            if omit and value != value:
                local[at + 3] += weight
            else:
                if pivots.size > 0:
                    value -= pivots[column]
                local[at] += weight
                local[at + 1] += weight * value
                local[at + 2] += weight * value * value

    def kernel(
        values, indices, ends, weights, codes, omit, pivots, bounds, scratch, sums, first, last
    ):
        _, groups, columns, width = sums.shape
        size = groups * columns * width
        plain = width == 4 and not omit and pivots.size == 0
        for p in range(first, last):
            total, local = window(sums, p * size, size), window(scratch, p * size, size)
            begin, rows = bounds[p], bounds[p + 1] - bounds[p]
            # As many values of a column in a block as there are blocks, on average.
            stored = ends[begin + rows] - ends[begin]
            blocks = max(np.int64(1), np.int64(np.sqrt(stored / (groups * columns))))
            for b in range(blocks):
                for i in range(begin + b * rows // blocks, begin + (b + 1) * rows // blocks):
                    weight = weights[i] if weights.size > 0 else 1.0
                    of_group = codes[i] * columns if codes.size > 0 else 0
                    of_row = values, indices, ends[i], ends[i + 1], of_group
                    if plain:
                        add_plain_row(*of_row, local)
                    elif weight > 0.0:
                        add_row(*of_row, weight, omit, pivots, width, local)
                for t in range(size):
                    total[t] += local[t]
                    local[t] = 0.0

    return make_kernel("sparse.sums.across", kernel)


def make_sums_along() -> Kernel:
    """Return the kernel of the sums over compressed columns.

    Its arguments are those of `make_sums_across`, but `sums` has a single part, and `scratch` is
    ``(parts, groups, 4 or 5)``.
    """

    def kernel(
        values, indices, ends, weights, codes, omit, pivots, bounds, scratch, sums, first, last
    ):
        _, groups, columns, width = sums.shape
        size = groups * width
        total = window(sums, 0, size * columns)
        for p in range(first, last):
            local = window(scratch, p * size, size)
            for j in range(bounds[p], bounds[p + 1]):
                begin, end = np.int64(ends[j]), np.int64(ends[j + 1])
                while begin < end:
                    stop = min(end, begin + max(_RUN, 4 * groups))
                    for k in range(begin, stop):
                        i = indices[k]
                        weight = weights[i] if weights.size > 0 else 1.0
                        group = codes[i] if codes.size > 0 else 0
                        at = group * width
                        if weight > 0.0:
                            value = np.float64(values[k])
                            if width == 5:
                                local[at + 4] += 1.0
                            if omit and value != value:
                                local[at + 3] += weight
                            else:
                                if pivots.size > 0:
                                    value -= pivots[group * columns + j]
                                local[at] += weight
                                local[at + 1] += weight * value
                                local[at + 2] += weight * value * value
                    for group in range(groups):
                        for t in range(width):
                            total[(group * columns + j) * width + t] += local[group * width + t]
                            local[group * width + t] = 0.0
                    begin = stop

    return make_kernel("sparse.sums.along", kernel)


def make_plain_sums_along() -> Kernel:
    """Return the kernel of `make_sums_along` for one group without weights.

    Its arguments are ``values, ends, omit, pivots, bounds, sums``. Four sums at once take as long
    as one.
    """

    @inlined
    def deviation(value, pivot, omit):
        return 0.0 if omit and value != value else np.float64(value) - pivot

    def kernel(values, ends, omit, pivots, bounds, sums, first, last):
        columns = sums.shape[2]
        total = window(sums, 0, 4 * columns)
        for p in range(first, last):
            for j in range(bounds[p], bounds[p + 1]):
                pivot = pivots[j] if pivots.size > 0 else 0.0
                begin, end = np.int64(ends[j]), np.int64(ends[j + 1])
                missing = 0
                if omit:
                    for k in range(begin, end):
                        missing += values[k] != values[k]
                total[4 * j] = end - begin - missing
                total[4 * j + 3] = missing
                while begin < end:
                    stop = min(end, begin + _RUN)
                    a, b, c, d = 0.0, 0.0, 0.0, 0.0
                    aa, bb, cc, dd = 0.0, 0.0, 0.0, 0.0
                    for k in range(begin, stop - 3, 4):
                        one = deviation(values[k], pivot, omit)
                        two = deviation(values[k + 1], pivot, omit)
                        three = deviation(values[k + 2], pivot, omit)
                        four = deviation(values[k + 3], pivot, omit)
                        a, b, c, d = a + one, b + two, c + three, d + four
                        aa, bb = aa + one * one, bb + two * two
                        cc, dd = cc + three * three, dd + four * four
                    for k in range(stop - (stop - begin) % 4, stop):
                        one = deviation(values[k], pivot, omit)
                        a, aa = a + one, aa + one * one
                    total[4 * j + 1] += (a + c) + (b + d)
                    total[4 * j + 2] += (aa + cc) + (bb + dd)
                    begin = stop

    return make_kernel("sparse.plain_sums.along", kernel)


def make_first_across() -> Function:
    """Return the function that finds the first value of columns in compressed rows.

    Its arguments are ``values, indices, ends, weights, codes, pivots, columns``; it replaces each
    NaN of `pivots` by the first stored value of the group and column that counts, if there is one.
    """

    def first(values, indices, ends, weights, codes, pivots, columns):
        left = 0
        for t in range(pivots.size):
            left += pivots[t] != pivots[t]
        for i in range(ends.size - 1):
            if left == 0:
                break
            if weights.size == 0 or weights[i] > 0.0:
                of_group = codes[i] * columns if codes.size > 0 else 0
                for k in range(ends[i], ends[i + 1]):
                    column, value = of_group + indices[k], np.float64(values[k])
                    if pivots[column] != pivots[column] and value == value:
                        pivots[column] = value
                        left -= 1

    return make_function("sparse.first.across", first)


def make_first_along() -> Function:
    """Return the function of `make_first_across` for compressed columns."""

    def first(values, indices, ends, weights, codes, pivots, columns):
        for j in range(columns):
            left = 0
            for t in range(j, pivots.size, columns):
                left += pivots[t] != pivots[t]
            for k in range(ends[j], ends[j + 1]):
                if left == 0:
                    break
                i = indices[k]
                if weights.size == 0 or weights[i] > 0.0:
                    column = codes[i] * columns + j if codes.size > 0 else j
                    value = np.float64(values[k])
                    if pivots[column] != pivots[column] and value == value:
                        pivots[column] = value
                        left -= 1

    return make_function("sparse.first.along", first)


def make_scaled_across() -> Kernel:
    """Return the kernel that scales compressed rows.

    Its arguments are ``values, indices, ends, codes, scale, most, y, bounds`` with `scale`
    ``(groups, columns)``; `y` gets the values times their scale, between -most and most.
    """

    def kernel(values, indices, ends, codes, scale, most, y, bounds, first, last):
        groups, columns = scale.shape
        factors = window(scale, 0, groups * columns)
        for p in range(first, last):
            for i in range(bounds[p], bounds[p + 1]):
                of_group = codes[i] * columns if codes.size > 0 else 0
                for k in range(ends[i], ends[i + 1]):
                    value = np.float64(values[k]) * factors[of_group + indices[k]]
                    value = most if value > most else value
                    y[k] = -most if value < -most else value

    return make_kernel("sparse.scaled.across", kernel)


def make_scaled_along() -> Kernel:
    """Return the kernel of `make_scaled_across` for compressed columns."""

    def kernel(values, indices, ends, codes, scale, most, y, bounds, first, last):
        groups, columns = scale.shape
        factors = window(scale, 0, groups * columns)
        for p in range(first, last):
            for j in range(bounds[p], bounds[p + 1]):
                for k in range(ends[j], ends[j + 1]):
                    of_group = codes[indices[k]] * columns if codes.size > 0 else 0
                    value = np.float64(values[k]) * factors[of_group + j]
                    value = most if value > most else value
                    y[k] = -most if value < -most else value

    return make_kernel("sparse.scaled.along", kernel)
