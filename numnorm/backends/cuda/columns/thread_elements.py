"""Which elements of ``(outer, channels, inner)`` a thread works on, and reductions over its block.

If inner is 1, kernels go across the channels: a thread has its own channels, and every
`shape.teams`-th row of its part. Otherwise kernels go along each channel: a block has one channel,
and its threads divide the elements of each outer entry.

In a reduction over the teams of a block, all teams have the same channels. Each thread has a number
for each of its channels; the numbers of neighbouring threads are neighbours in shared memory. The
reduction is a tree of the teams, the same on any device. Its result is in the elements of the first
team.
"""

import dataclasses
import functools
from typing import Any

from numnorm.backends.cuda.columns.column_shape import ColumnShape
from numnorm.backends.cuda.compiler.element_type import ElementType, compute_element_type
from numnorm.backends.cuda.compiler.target import (
    constant,
    cuda,
    device,
    make_load,
    make_load_one,
    make_store,
    make_store_one,
)
from numnorm.backends.cuda.compiler.vector_access import make_as_tuple
from numnorm.backends.formulas.norms import merge_centred_moments


@functools.cache
def make_work_across(element: ElementType, shape: ColumnShape) -> Any:
    """Return a device function ``work_of(rows, channels, block)`` of a thread's work.

    It returns ``part, channel, first, count``: the number of the part, the thread's first channel,
    its first row, and the number of its rows. The rows are `shape.teams` apart. A thread without
    work has a count of 0.
    """
    lanes, teams = shape.lanes, shape.teams
    slots = shape.vector_length(element)
    span = lanes * slots

    @device
    def work_of(rows, channels, block):
        thread, columns = cuda.threadIdx.x, (channels + span - 1) // span
        part = cuda.blockIdx.x // columns
        channel = (cuda.blockIdx.x - part * columns) * span + thread % lanes * slots
        team = thread // lanes
        left = min(block, rows - part * block) - team
        count = (left + teams - 1) // teams if channel < channels and left > 0 else 0
        return part, channel, part * block + team, count

    return work_of


@functools.cache
def make_read_vector(element: ElementType, shape: ColumnShape) -> Any:
    """Return a device function ``read(address, index, values, slot)`` of one vector."""
    load, load_one = make_load(element), make_load_one(element)
    vector_length = shape.vector_length(element)

    @device
    def read_at_once(address, index, values, slot):
        vector = load(address, index)
        for j in range(vector_length):
            values[slot + j] = vector[j]

    @device
    def read_one_by_one(address, index, values, slot):
        for j in range(vector_length):
            values[slot + j] = load_one(address, index + j)

    return read_at_once if shape.whole and shape.aligned else read_one_by_one


@functools.cache
def make_write_vector(element: ElementType, shape: ColumnShape) -> Any:
    """Return a device function ``write(address, index, values, slot)`` of one vector."""
    store, store_one = make_store(element), make_store_one(element)
    vector_length = shape.vector_length(element)
    as_tuple = make_as_tuple(element)

    @device
    def write_at_once(address, index, values, slot):
        store(address, index, as_tuple(values, slot))

    @device
    def write_one_by_one(address, index, values, slot):
        for j in range(vector_length):
            store_one(address, index + j, values[slot + j])

    return write_at_once if shape.whole and shape.aligned else write_one_by_one


@functools.cache
def make_read_coefficients(element: ElementType, shape: ColumnShape) -> Any:
    """Return a device function ``read_coefficients(coefficients, index, values, slot)``.

    It reads one coefficient of each of a thread's channels from a row of the table, which is
    aligned. `index` belongs to the first channel.
    """
    stored = compute_element_type(element)
    table = dataclasses.replace(shape, aligned=True)
    read = make_read_vector(stored, table)
    step = table.vector_length(stored)
    count = shape.vector_length(element) // step

    @device
    def read_coefficients(coefficients, index, values, slot):
        for k in range(count):
            read(coefficients, index + k * step, values, slot + k * step)

    return read_coefficients


@functools.cache
def make_work_along(shape: ColumnShape) -> Any:
    """Return a device function ``work_of(outer, channels, inner, block, segment)``.

    It returns ``part, channel, first, entries, width``: the numbers of the block's part and
    channel, the index of its first element, the number of its outer entries, and the number of
    elements of each.
    """

    @device
    def work_of(outer, channels, inner, block, segment):
        segments = (inner + segment - 1) // segment
        # Remainders are written as products, because divisions are slow.
        part = cuda.blockIdx.x // channels
        channel, turn = cuda.blockIdx.x - part * channels, part // segments
        entry, start = turn * block, (part - turn * segments) * segment
        first = (entry * channels + channel) * inner + start
        return part, channel, first, min(block, outer - entry), min(segment, inner - start)

    return work_of


@functools.cache
def make_all_inside(element: ElementType, shape: ColumnShape) -> Any:
    """Return a device function ``all_inside(left, base, width)``.

    It returns whether all elements that a thread reads at a time are inside the part, so that the
    thread can skip the check of each element. For whole vectors, which need few checks, it returns
    False.
    """
    last_entry = (shape.ahead - 1) * shape.teams
    last_vector = (shape.vectors - 1) * shape.lanes * shape.vector_length(element)
    if shape.whole:
        return device(lambda left, base, width: False)
    return device(lambda left, base, width: last_entry < left and base + last_vector < width)


@functools.cache
def make_read_along(element: ElementType, shape: ColumnShape) -> Any:
    """Return a device function that reads a thread's vectors of `shape.ahead` outer entries.

    ``read_along(x, first, jump, left, base, width, values)``: the thread's first entry begins at
    index `first`, entries are `jump` apart, and the part has `left` more of them. The first vector
    begins `base` elements into an entry of `width` elements. Values outside of the part become 0.
    """
    read = make_read_vector(element, shape)
    vector_length = shape.vector_length(element)
    ahead, vectors, teams = shape.ahead, shape.vectors, shape.teams
    stride = shape.lanes * vector_length
    zero = constant(element, 0.0)
    all_inside = make_all_inside(element, shape)

    @device
    def read_all(x, first, jump, values):
        for u in range(ahead):
            for p in range(vectors):
                here = first + u * teams * jump + p * stride
                read(x, here, values, (u * vectors + p) * vector_length)

    @device
    def read_some(x, first, jump, left, base, width, values):
        for u in range(ahead):
            start = first + u * teams * jump
            for p in range(vectors):
                here, slot = base + p * stride, (u * vectors + p) * vector_length
                if u * teams < left and here < width:
                    read(x, start + here, values, slot)
                else:
                    for j in range(vector_length):
                        values[slot + j] = zero

    @device
    def read_along(x, first, jump, left, base, width, values):
        if all_inside(left, base, width):
            read_all(x, first + base, jump, values)
        else:
            read_some(x, first, jump, left, base, width, values)

    return read_along


@functools.cache
def make_write_along(element: ElementType, shape: ColumnShape) -> Any:
    """Return a device function ``write_along(y, first, jump, left, base, width, values)``.

    It writes the vectors that `make_read_along` reads.
    """
    write = make_write_vector(element, shape)
    vector_length = shape.vector_length(element)
    ahead, vectors, teams = shape.ahead, shape.vectors, shape.teams
    stride = shape.lanes * vector_length
    all_inside = make_all_inside(element, shape)

    @device
    def write_all(y, first, jump, values):
        for u in range(ahead):
            for p in range(vectors):
                here = first + u * teams * jump + p * stride
                write(y, here, values, (u * vectors + p) * vector_length)

    @device
    def write_some(y, first, jump, left, base, width, values):
        for u in range(ahead):
            start = first + u * teams * jump
            for p in range(vectors):
                here = base + p * stride
                if u * teams < left and here < width:
                    write(y, start + here, values, (u * vectors + p) * vector_length)

    @device
    def write_along(y, first, jump, left, base, width, values):
        if all_inside(left, base, width):
            write_all(y, first + base, jump, values)
        else:
            write_some(y, first, jump, left, base, width, values)

    return write_along


# Reductions over the teams of a block


@functools.cache
def make_fold_sums(shape: ColumnShape, slots: int) -> Any:
    """Return a device function ``fold(first, second)``, which adds over the teams of a block.

    `first` and `second` are shared arrays of sums, each with `slots` numbers for each thread. The
    total of each channel replaces the first team's number in the same array.
    """
    lanes, teams = shape.lanes, shape.teams
    levels = shape.teams.bit_length() - 1
    threads = shape.threads

    @device
    def fold(first, second):
        thread = cuda.threadIdx.x
        for level in range(levels):
            step = teams >> (level + 1)
            cuda.syncthreads()
            if thread // lanes < step:
                for j in range(slots):
                    here = j * threads + thread
                    first[here] += first[here + step * lanes]
                    second[here] += second[here + step * lanes]

    return fold


@functools.cache
def make_fold_moments(shape: ColumnShape, slots: int) -> Any:
    """Return a device function ``fold(counts, means, m2s)``, which merges the moments of all teams.

    The shared float64 arrays have one count for each thread, the same for all of its channels, and
    `slots` means and m2s; the means are distances from a point near them, the same for all teams.
    The merged moments of each channel replace the moments of the first team. If a thread's count is
    0, its mean is not read.
    """
    lanes, teams = shape.lanes, shape.teams
    levels = shape.teams.bit_length() - 1
    threads = shape.threads
    merge = device(merge_centred_moments)

    @device
    def fold(counts, means, m2s):
        thread = cuda.threadIdx.x
        for level in range(levels):
            step = teams >> (level + 1)
            cuda.syncthreads()
            if thread // lanes < step:
                count, others = counts[thread], counts[thread + step * lanes]
                # Teams get rows in turn: only the last teams can have none.
                if others > 0:
                    for j in range(slots):
                        here = j * threads + thread
                        other = here + step * lanes
                        means[here], m2s[here] = merge(
                            count, means[here], m2s[here], others, means[other], m2s[other]
                        )
                    counts[thread] = count + others

    return fold
