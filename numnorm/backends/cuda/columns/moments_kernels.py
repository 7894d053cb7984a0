"""The kernels of the moments (count, mean, m2) of every channel.

One kind computes those of each part of an array, another merges those of the parts.
"""

import functools
from typing import Any

from numnorm.backends.cuda.columns.column_shape import ColumnShape
from numnorm.backends.cuda.columns.thread_elements import (
    make_all_inside,
    make_fold_moments,
    make_read_along,
    make_read_vector,
    make_work_across,
    make_work_along,
)
from numnorm.backends.cuda.compiler.element_type import FLOAT64, ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
    cuda,
    device,
    make_load_one,
    make_store_one,
    reciprocal,
)
from numnorm.backends.cuda.statistics.row_statistics import (
    make_power_of_two,
    make_squared_deviations,
)
from numnorm.backends.cuda.threads.reductions import WARP, make_team_largest, make_team_sum
from numnorm.backends.formulas.norms import merge_moments, split_sum

# Moments from the sums of deviations from a pivot

# It replaces squares that underflow in float64, because 0 would mean a constant channel.
_SMALLEST = constant(FLOAT64, 1e-308)


@functools.cache
def make_centre(element: ElementType) -> Any:
    """Return a device function ``centre(first, second, count) -> (mean_lo, m2)``.

    From the sum of `count` deviations and the sum of their squares it computes their mean,
    `mean_lo`, and the sum of the squared deviations from that mean.
    """
    inverse = reciprocal(element)
    compute_type = element.compute_type
    squared_deviations = make_squared_deviations(element)

    @device
    def centre(first, second, count):
        mean_lo = first * inverse(compute_type(count))
        return mean_lo, squared_deviations(second, first, mean_lo)

    return centre


@functools.cache
def make_is_poor(element: ElementType) -> Any:
    """Return a device function ``is_poor(pivot, m2, count)``: whether squares left the range.

    An `m2` of 0 around a large pivot is exact: the square of the least possible deviation from it
    would not underflow.
    """
    smallest = constant(element, element.smallest_variance)
    compute_type = element.compute_type
    infinity, zero = constant(element, float("inf")), constant(element, 0.0)
    large = constant(element, 1e-14 if element.compute_name == "float32" else 1e-140)

    @device
    def is_poor(pivot, m2, count):
        if smallest * compute_type(count) < m2 and m2 < infinity:
            return False
        return not (m2 == zero and large < abs(pivot))

    return is_poor


@functools.cache
def make_unscaled(element: ElementType) -> Any:
    """Return a device function ``unscaled(mean_hi, mean_lo, m2, scale)``: the three in float64."""
    kind = FLOAT64.compute_type
    one, zero = constant(element, 1.0), constant(FLOAT64, 0.0)

    @device
    def unscaled(mean_hi, mean_lo, m2, scale):
        back = kind(one / scale)  # exact, because the scale is a power of two
        squares = kind(m2) * back * back
        vanished = squares == zero and kind(m2) > zero
        squares = _SMALLEST if vanished else squares
        return kind(mean_hi) * back, kind(mean_lo) * back, squares

    return unscaled


# Moments of each part

# Reductions alternate between two parts of shared memory. The barrier of one reduction ensures that
# all threads have read the results of the reduction before it.
_SMEM_PER_WARP = 2


def _make_pivot_across(element: ElementType, shape: ColumnShape) -> Any:
    """Return a device function ``find_pivot(x, index, step, count, scale, values, pivot)``.

    The pivot of a channel is the mean of a thread's first rows, times the scale. It is computed
    from differences to the first row, so the pivot of a constant channel is exact. It is a mean of
    some of the rows, so the squared deviations from it cannot be much larger than the squared
    deviations from the mean of all rows.
    """
    read = make_read_vector(element, shape)
    slots = shape.vector_length(element)
    ahead = shape.ahead
    zero = constant(element, 0.0)
    inv_count = constant(element, 1 / ahead)

    @device
    def find_pivot(x, index, step, count, scale, values, pivot):
        for u in range(ahead):
            read(x, index + min(u, count - 1) * step, values, u * slots)
        for j in range(slots):
            first, total = values[j] * scale[j], zero
            for u in range(1, ahead):
                total += values[u * slots + j] * scale[j] - first
            pivot[j] = first + total * inv_count

    return find_pivot


def _make_add_across(element: ElementType, shape: ColumnShape, rows: int) -> Any:
    """Return a device function that adds deviations of `rows` rows and their squares to sums.

    ``add(x, index, step, scale, pivot, values, first, second)``: `first` and `second` are arrays
    of sums, one for each channel.
    """
    read = make_read_vector(element, shape)
    slots = shape.vector_length(element)
    zero = constant(element, 0.0)

    @device
    def add(x, index, step, scale, pivot, values, first, second):
        for u in range(rows):
            read(x, index + u * step, values, u * slots)
        for j in range(slots):
            one, two = zero, zero
            for u in range(rows):
                deviation = values[u * slots + j] * scale[j] - pivot[j]
                one += deviation
                two += deviation * deviation
            first[j] += one
            second[j] += two

    return add


def _make_sums_across(element: ElementType, shape: ColumnShape) -> Any:
    """Return a device function of the moments of a thread's rows, times a scale.

    ``moments(x, index, step, count, scale, values, pivot, mean_lo, m2)`` fills the last three
    arrays, one number for each channel. The mean is ``pivot + mean_lo``.
    """
    slots = shape.vector_length(element)
    ahead = shape.ahead
    zero = constant(element, 0.0)
    find_pivot = _make_pivot_across(element, shape)
    centre = make_centre(element)
    add_rows = _make_add_across(element, shape, ahead)
    add_row = _make_add_across(element, shape, 1)

    @device
    def moments(x, index, step, count, scale, values, pivot, mean_lo, m2):
        find_pivot(x, index, step, count, scale, values, pivot)
        for j in range(slots):
            mean_lo[j], m2[j] = zero, zero
        grouped = count - count % ahead
        for k in range(0, grouped, ahead):
            add_rows(x, index + k * step, step, scale, pivot, values, mean_lo, m2)
        for k in range(grouped, count):
            add_row(x, index + k * step, step, scale, pivot, values, mean_lo, m2)
        for j in range(slots):
            mean_lo[j], m2[j] = centre(mean_lo[j], m2[j], count)

    return moments


def _make_rescale_across(element: ElementType, shape: ColumnShape) -> Any:
    """Return a device function ``rescale(x, index, step, count, values, pivot, m2, scale)``.

    It computes the scale of the channels whose squares left the range of the compute type, and
    returns whether any scale is not 1.
    """
    read = make_read_vector(element, shape)
    slots = shape.vector_length(element)
    is_poor, power_of_two = make_is_poor(element), make_power_of_two(element)
    zero, one = constant(element, 0.0), constant(element, 1.0)
    compute_type = element.compute_type

    @device
    def rescale(x, index, step, count, values, pivot, m2, scale):
        poor = 0
        for j in range(slots):
            poor += 1 if is_poor(pivot[j], m2[j], count) else 0
        if poor == 0:
            return False
        largest = cuda.local.array(slots, compute_type)
        for j in range(slots):
            largest[j] = zero
        for k in range(count):
            read(x, index + k * step, values, 0)
            for j in range(slots):
                largest[j] = max(largest[j], abs(values[j]))
        changed = 0
        for j in range(slots):
            if is_poor(pivot[j], m2[j], count):
                scale[j] = power_of_two(largest[j])
                changed += 1 if scale[j] != one else 0
        return changed > 0

    return rescale


def make_moments_across(element: ElementType, shape: ColumnShape) -> Kernel:
    """Return the kernel of the moments of each part of ``x (rows, channels)``.

    It takes the addresses of x and of the float64 arrays ``counts (parts,)`` and ``moments
    (parts, 3, channels)``: the mean, what it lost by rounding, and m2; and ``rows, channels,
    block``.
    """
    slots = shape.vector_length(element)
    compute_type = element.compute_type
    threads = shape.threads
    kind = FLOAT64.compute_type
    value_count = shape.ahead * shape.vector_length(element)
    slot_count = threads * slots
    one = constant(element, 1.0)
    work_of = make_work_across(element, shape)
    teams, lanes = shape.teams, shape.lanes
    sums, rescale = _make_sums_across(element, shape), _make_rescale_across(element, shape)
    fold = make_fold_moments(shape, slots)
    unscaled = make_unscaled(element)
    read = make_read_vector(element, shape)
    split = device(split_sum)
    store = make_store_one(FLOAT64)

    def kernel(x, counts, moments, rows, channels, block):
        counts_here = cuda.shared.array(threads, kind)
        means_here = cuda.shared.array(slot_count, kind)
        m2s_here = cuda.shared.array(slot_count, kind)
        values = cuda.local.array(value_count, compute_type)
        scale = cuda.local.array(slots, compute_type)
        pivot = cuda.local.array(slots, compute_type)
        mean_lo = cuda.local.array(slots, compute_type)
        m2 = cuda.local.array(slots, compute_type)
        thread = cuda.threadIdx.x
        part, channel, row, count = work_of(rows, channels, block)
        index, step = row * channels + channel, teams * channels
        counts_here[thread] = kind(count)
        if count > 0:
            for j in range(slots):
                scale[j] = one
            for again in range(2):
                sums(x, index, step, count, scale, values, pivot, mean_lo, m2)
                if again == 1 or not rescale(x, index, step, count, values, pivot, m2, scale):
                    break
            # The first row of the part is near every team's mean.
            read(x, part * block * channels + channel, values, 0)
            for j in range(slots):
                here = j * threads + thread
                high, low, m2s_here[here] = unscaled(pivot[j], mean_lo[j], m2[j], scale[j])
                means_here[here] = (high - kind(values[j])) + low
        fold(counts_here, means_here, m2s_here)
        if thread < lanes and count > 0:
            for j in range(slots):
                here, to = j * threads + thread, part * 3 * channels + channel + j
                mean, lost = split(kind(values[j]), means_here[here])
                store(moments, to, mean)
                store(moments, to + channels, lost)
                store(moments, to + 2 * channels, m2s_here[here])
            if channel == 0:
                store(counts, part, counts_here[thread])

    return Kernel(kernel, ("address",) * 3 + ("index",) * 3, threads)


def _make_add_along(element: ElementType, shape: ColumnShape) -> Any:
    """Return a device function that adds the deviations of a thread's next vectors to its sums.

    ``add(x, first, jump, left, base, width, scale, pivot, values, one, two)``: `one` and `two` are
    sums of the deviations and of their squares, one for each element of a vector; the other
    arguments are as in `make_read_along`.
    """
    read = make_read_along(element, shape)
    vector_length = shape.vector_length(element)
    ahead, vectors, teams = shape.ahead, shape.vectors, shape.teams
    stride = shape.lanes * vector_length
    all_inside = make_all_inside(element, shape)

    @device
    def add_vector(values, slot, scale, pivot, one, two):
        for j in range(vector_length):
            deviation = values[slot + j] * scale - pivot
            one[j] += deviation
            two[j] += deviation * deviation

    @device
    def add_some(left, base, width, scale, pivot, values, one, two):
        for u in range(ahead):
            for p in range(vectors):
                if u * teams < left and base + p * stride < width:
                    add_vector(values, (u * vectors + p) * vector_length, scale, pivot, one, two)

    @device
    def add(x, first, jump, left, base, width, scale, pivot, values, one, two):
        read(x, first, jump, left, base, width, values)
        if all_inside(left, base, width):
            for k in range(ahead * vectors):
                add_vector(values, k * vector_length, scale, pivot, one, two)
        else:
            add_some(left, base, width, scale, pivot, values, one, two)

    return add


def _make_largest_along(element: ElementType, shape: ColumnShape) -> Any:
    """Return a device function of the largest absolute value that a thread reads.

    ``largest(x, first, jump, entries, width, values)``.
    """
    read = make_read_along(element, shape)
    vector_length = shape.vector_length(element)
    lanes = shape.lanes
    zero = constant(element, 0.0)
    turn, deep = lanes * vector_length * shape.vectors, shape.teams * shape.ahead
    value_count = shape.ahead * shape.vectors * vector_length

    @device
    def largest(x, first, jump, entries, width, values):
        thread, result = cuda.threadIdx.x, zero
        for entry in range(thread // lanes, entries, deep):
            for base in range(thread % lanes * vector_length, width, turn):
                read(x, first + entry * jump, jump, entries - entry, base, width, values)
                for k in range(value_count):
                    result = max(result, abs(values[k]))
        return result

    return largest


def _make_moments_along(element: ElementType, shape: ColumnShape) -> Any:
    """Return a device function of the moments of a block's elements, times a scale.

    ``moments(x, first, jump, entries, width, scale, values, smem)`` returns ``mean_hi, mean_lo,
    m2`` to every thread; the mean is ``mean_hi + mean_lo``.
    """
    add = _make_add_along(element, shape)
    centre = make_centre(element)
    load_one = make_load_one(element)
    vector_length = shape.vector_length(element)
    lanes = shape.lanes
    compute_type = element.compute_type
    turn, deep = lanes * vector_length * shape.vectors, shape.teams * shape.ahead
    team_sum = make_team_sum(shape.threads)
    inverse = reciprocal(element)
    zero = constant(element, 0.0)
    warps = max(1, shape.threads // WARP)

    @device
    def total(sums):
        result = sums[0]
        for j in range(1, vector_length):
            result += sums[j]
        return result

    @device
    def moments(x, first, jump, entries, width, scale, values, smem):
        one = cuda.local.array(vector_length, compute_type)
        two = cuda.local.array(vector_length, compute_type)
        team, start = cuda.threadIdx.x // lanes, cuda.threadIdx.x % lanes * vector_length
        # The first walk is the first turn of each thread, around one element. Its mean is the
        # pivot of the second walk, over all elements; for a constant channel it is exact.
        pivot, sum_of_one = load_one(x, first) * scale, zero
        for walk in range(2):
            for j in range(vector_length):
                one[j], two[j] = zero, zero
            last = min(entries, deep) if walk == 0 else entries
            stop = min(width, turn) if walk == 0 else width
            entry = team  # range() would take more registers
            while entry < last:
                begin, left, base = first + entry * jump, entries - entry, start
                while base < stop:
                    add(x, begin, jump, left, base, width, scale, pivot, values, one, two)
                    base += turn
                entry += deep
            sum_of_one = team_sum(total(one), smem[walk * warps :])
            if walk == 0:
                some = min(entries, deep) * min(width, turn)
                pivot += sum_of_one * inverse(compute_type(some))
        mean_lo, m2 = centre(sum_of_one, team_sum(total(two), smem), entries * width)
        return pivot, mean_lo, m2

    return moments


def make_moments_along(element: ElementType, shape: ColumnShape) -> Kernel:
    """Return the kernel of the moments of each part of ``x (outer, channels, inner)``.

    It takes the addresses of `make_moments_across`, and ``outer, channels, inner, block,
    segment``.
    """
    threads = shape.threads
    one = constant(element, 1.0)
    warps = max(1, threads // WARP)
    compute_type = element.compute_type
    kind = FLOAT64.compute_type
    work_of = make_work_along(shape)
    moments_of = _make_moments_along(element, shape)
    value_count = shape.ahead * shape.vectors * shape.vector_length(element)
    smem_size = _SMEM_PER_WARP * warps
    is_poor, power_of_two = make_is_poor(element), make_power_of_two(element)
    largest = _make_largest_along(element, shape)
    largest_of = make_team_largest(threads)
    unscaled = make_unscaled(element)
    split = device(split_sum)
    store = make_store_one(FLOAT64)

    def kernel(x, counts, moments, outer, channels, inner, block, segment):
        smem = cuda.shared.array(smem_size, compute_type)
        values = cuda.local.array(value_count, compute_type)
        part, channel, first, entries, width = work_of(outer, channels, inner, block, segment)
        jump, scale, to = channels * inner, one, part * 3 * channels + channel
        for again in range(2):
            mean_hi, mean_lo, m2 = moments_of(x, first, jump, entries, width, scale, values, smem)
            if again == 1 or not is_poor(mean_hi, m2, entries * width):
                break
            of_thread = largest(x, first, jump, entries, width, values)
            scale = power_of_two(largest_of(of_thread, smem[warps:]))
            if scale == one:
                break
        if cuda.threadIdx.x == 0:
            high, low, squares = unscaled(mean_hi, mean_lo, m2, scale)
            mean, lost = split(high, low)
            store(moments, to, mean)
            store(moments, to + channels, lost)
            store(moments, to + 2 * channels, squares)
            if channel == 0:
                store(counts, part, kind(entries * width))

    return Kernel(kernel, ("address",) * 3 + ("index",) * 5, threads)


# Merged moments

# A thread loads the moments of this many parts before it merges the first of them.
_AHEAD = 4


def _make_merge_parts() -> Any:
    """Return a device function ``merge_parts(parts, first, last, channels, channel, before)``.

    It merges `before`, a count and ``mean, mean_lo, m2``, with the moments of the parts from
    `first` to `last`, one after the other, and returns the same two. `parts` are the addresses
    ``counts, moments``.
    """
    load = make_load_one(FLOAT64)
    merge = device(merge_moments)
    zero = constant(FLOAT64, 0.0)
    one = constant(FLOAT64, 1.0)
    kind = FLOAT64.compute_type

    @device
    def merge_parts(parts, first, last, channels, channel, before):
        counts, moments = parts
        other_counts = cuda.local.array(_AHEAD, kind)
        other_means = cuda.local.array(_AHEAD, kind)
        other_lows = cuda.local.array(_AHEAD, kind)
        other_m2s = cuda.local.array(_AHEAD, kind)
        count, merged = before
        for start in range(first, last, _AHEAD):
            for u in range(_AHEAD):
                part = min(start + u, last - 1)
                here = part * 3 * channels + channel
                other_counts[u], other_means[u] = load(counts, part), load(moments, here)
                other_lows[u] = load(moments, here + channels)
                other_m2s[u] = load(moments, here + 2 * channels)
            for u in range(_AHEAD):
                if start + u < last:
                    other = other_means[u], other_lows[u], other_m2s[u]
                    if count > zero:
                        other = merge(count, merged, other_counts[u], other, one)
                    merged = other
                    count += other_counts[u]
        return count, merged

    return merge_parts


def _make_fold(shape: ColumnShape) -> Any:
    """Return a device function ``fold(counts, means, lows, m2s)``, which merges all teams.

    The shared arrays have a number for each thread. The result replaces the first team's numbers.
    """
    lanes, teams = shape.lanes, shape.teams
    levels = shape.teams.bit_length() - 1
    merge = device(merge_moments)
    one = constant(FLOAT64, 1.0)

    @device
    def fold(counts, means, lows, m2s):
        here = cuda.threadIdx.x
        for level in range(levels):
            step = teams >> (level + 1)
            cuda.syncthreads()
            if here // lanes < step:
                there = here + step * lanes
                # Teams get parts in turn: only the last teams can have none.
                if counts[there] > 0:
                    means[here], lows[here], m2s[here] = merge(
                        counts[here], (means[here], lows[here], m2s[here]),
                        counts[there], (means[there], lows[there], m2s[there]), one,
                    )  # fmt: skip
                    counts[here] += counts[there]

    return fold


def make_merged_moments(shape: ColumnShape) -> Kernel:
    """Return the kernel that merges the moments of all parts in a fixed order.

    It takes the addresses ``counts, moments`` of the parts; ``mean, m2, mean_lo`` of earlier
    values, and ``merged_mean, merged_m2, merged_lo``, all of float64; ``parts, channels``; and the
    number ``before``, the count of the earlier values, which may be 0. Each lane has one channel.
    Each team merges neighbouring parts one after the other; the first team begins with the earlier
    moments. Then the teams are merged.
    """
    lanes, teams, threads = shape.lanes, shape.teams, shape.threads
    kind = FLOAT64.compute_type
    load, store = make_load_one(FLOAT64), make_store_one(FLOAT64)
    fold = _make_fold(shape)
    merge_parts = _make_merge_parts()
    zero = constant(FLOAT64, 0.0)

    def kernel(
        counts, moments, mean, m2, mean_lo, merged_mean, merged_m2, merged_lo,
        parts, channels, before,
    ):  # fmt: skip
        counts_here = cuda.shared.array(threads, kind)
        means_here = cuda.shared.array(threads, kind)
        lows_here = cuda.shared.array(threads, kind)
        m2s_here = cuda.shared.array(threads, kind)
        thread = cuda.threadIdx.x
        channel, parts_each = cuda.blockIdx.x * lanes + thread % lanes, (parts + teams - 1) // teams
        active = channel < channels
        first = thread // lanes * parts_each
        last = min(first + parts_each, parts) if active else first
        count, earlier = zero, (zero, zero, zero)
        if active and thread < lanes and before > zero:
            count = before
            earlier = load(mean, channel), load(mean_lo, channel), load(m2, channel)
        counts_here[thread], merged = merge_parts(
            (counts, moments), first, last, channels, channel, (count, earlier)
        )
        means_here[thread], lows_here[thread], m2s_here[thread] = merged
        fold(counts_here, means_here, lows_here, m2s_here)
        if thread < lanes and active:
            store(merged_mean, channel, means_here[thread])
            store(merged_lo, channel, lows_here[thread])
            store(merged_m2, channel, m2s_here[thread])

    return Kernel(kernel, ("address",) * 8 + ("index",) * 2 + ("float64",), threads)
