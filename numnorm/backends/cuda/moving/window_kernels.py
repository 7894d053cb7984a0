"""The kernels of moving windows, and of their gradients.

A thread has one step of one channel, and adds up its window. Nothing is ever subtracted from a sum,
and a sum is taken around a value of the window, so an offset costs no digits, and what left the
window leaves no trace. Time is divided into chunks of equal length for long windows. A first kernel
adds up each chunk. A window then takes the chunks that lie wholly in it, moved to its own pivot,
and the single steps before and behind them. With chunks of about the root of the window, a thread
adds up at most three times that root.

For the gradients, the windows that hold a step lie one behind the other. Sums over them are taken
in the same way. A chunk is shorter than half a window, so the windows of all its steps hold its
first value that counts. That is the pivot of its sums: the mean of none of these windows is many of
its deviations away from it.
"""

import functools
from typing import Any, NamedTuple

from numnorm.backends.cuda.compiler.element_type import FLOAT64, ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    cuda,
    device,
    make_load_one,
    make_store_one,
)
from numnorm.backends.cuda.compiler.target import reciprocal as reciprocal_of
from numnorm.backends.cuda.moving.arguments import (
    MISSING,
    NAN,
    ONE,
    SEQUENCES,
    STATISTICS,
    ZERO,
    filled,
    make_counts,
    make_inverse_root,
    make_read,
    make_write,
    multiply_add,
    place_of,
)
from numnorm.backends.cuda.statistics.row_statistics import make_squared_deviations
from numnorm.backends.formulas.moving import moved_sums

_THREADS = 128


class Windows(NamedTuple):
    """The windows of the steps, and the chunks of time.

    The window of step t ends with step ``t - shift``, but not before `begin` or behind the last
    step.

    Attributes
    ----------
    window, shift, begin : index
        The number of steps of a window, and where they lie.
    chunk : index
        The number of steps of a chunk.
    chunks : index
        The number of whole chunks of a channel.
    first : index
        The first step with a result. Those before it are of earlier chunks of a stream.
    """

    window: Any
    shift: Any
    begin: Any
    chunk: Any
    chunks: Any
    first: Any


class Scaling(NamedTuple):
    """What is done with the statistics.

    Attributes
    ----------
    centred, scaled : number
        1 or 0 for whether the mean is subtracted, and whether to divide.
    eps : number
        Added to the variance.
    """

    centred: Any
    scaled: Any
    eps: Any


WINDOWS = Windows, ("index",) * 6
SCALING = Scaling, ("float64",) * 3

# Rows of the table of chunks, each with a number for each chunk of each channel. Of the values: the
# pivot, the sums of the deviations and of their squares, and how many count. Of the gradients: the
# pivot, and the three sums of `make_terms`.
ROWS = 4


# Places


@device
def _thread():
    return cuda.blockIdx.x * _THREADS + cuda.threadIdx.x


@device
def _window_of(step, windows, steps):
    """Return the first step of a window, and the one after the last."""
    stop = min(max(step - windows.shift, windows.begin), steps - 1) + 1
    return max(stop - windows.window, 0), stop


@device
def _windows_with(step, windows, steps):
    """Return the first step whose window holds a step, and the one after the last."""
    low = step + windows.shift if step > windows.begin else 0
    high = step + windows.window + windows.shift if step + windows.window < steps else steps
    return low, high


@device
def _inside(start, stop, windows):
    """Return the first whole chunk of a range of steps, and the one after the last.

    They are equal if there is none.
    """
    first = (start + windows.chunk - 1) // windows.chunk
    last = min(stop // windows.chunk, windows.chunks)
    return first, max(first, last)


@device
def _around(stop, first, last, windows):
    """Return where the steps before the whole chunks stop, and where those behind them start."""
    if first == last:
        return stop, stop
    return first * windows.chunk, last * windows.chunk


@device
def _load_row(table, cell, cells):
    return (
        _load(table, cell),
        _load(table, cells + cell),
        _load(table, 2 * cells + cell),
        _load(table, 3 * cells + cell),
    )


@device
def _store_row(table, cell, cells, numbers):
    _store(table, cell, numbers[0])
    _store(table, cells + cell, numbers[1])
    _store(table, 2 * cells + cell, numbers[2])
    _store(table, 3 * cells + cell, numbers[3])


_load, _store = make_load_one(FLOAT64), make_store_one(FLOAT64)


# Sums of values


_moved_sums = device(moved_sums)


@device
def _added(sums, value, centred):
    """Return sums with one more value. The first value is the pivot."""
    pivot, first, second, count = sums
    if count == ZERO:
        pivot = value * centred
    deviation = value - pivot
    return (
        pivot,
        first + deviation,
        multiply_add(deviation, deviation, second),
        count + ONE,
    )


@device
def _merged(sums, others):
    """Return the sums of the values of both; others lie around another pivot."""
    if others[3] == ZERO:
        return sums
    if sums[3] == ZERO:
        return others
    pivot, first, second, count = sums
    distance = others[0] - pivot
    moved, squares = _moved_sums(others[1], others[2], others[3], distance, multiply_add)
    return pivot, first + moved, second + squares, count + others[3]


@functools.cache
def make_range_sums(element: ElementType, missing: bool) -> Any:
    """Return a device function that adds the steps of a range to sums.

    It is ``range_sums(x, absent, start, stop, origin, inner, centred, sums)``, for a channel that
    begins at the index `origin`.
    """
    read, counts = make_read(element), make_counts(missing)

    @device
    def range_sums(x, absent, start, stop, origin, inner, centred, sums):
        for step in range(start, stop):
            index = origin + step * inner
            value = read(x, index)
            if counts(absent, index, value):
                sums = _added(sums, value, centred)
        return sums

    return range_sums


def make_chunk_sums(element: ElementType, missing: bool) -> Kernel:
    """Return the kernel ``(x, table, absent, sequences, windows, centred)`` of the chunks' sums."""
    range_sums = make_range_sums(element, missing)

    def kernel(x, table, absent, sequences, windows, centred):
        outer, steps, inner = sequences
        cell, cells = _thread(), outer * windows.chunks * inner
        if cell < cells:
            entry, chunk, column = place_of(cell, windows.chunks, inner)
            start = chunk * windows.chunk
            origin = entry * steps * inner + column
            stop = start + windows.chunk
            sums = ZERO, ZERO, ZERO, ZERO
            sums = range_sums(x, absent, start, stop, origin, inner, centred, sums)
            _store_row(table, cell, cells, sums)

    parameters = "address", "address", MISSING, SEQUENCES, WINDOWS, "float64"
    return Kernel(kernel, parameters, _THREADS)


@functools.cache
def make_window_sums(element: ElementType, missing: bool) -> Any:
    """Return a device function of the pivot, the sums and the count of a step's window.

    It is ``window_sums(x, table, absent, place, sequences, windows, centred)``.
    """
    range_sums = make_range_sums(element, missing)

    @device
    def window_sums(x, table, absent, place, sequences, windows, centred):
        outer, steps, inner = sequences
        entry, step, column = place
        start, stop = _window_of(step, windows, steps)
        first, last = _inside(start, stop, windows)
        head, tail = _around(stop, first, last, windows)
        origin = entry * steps * inner + column
        sums = ZERO, ZERO, ZERO, ZERO
        sums = range_sums(x, absent, start, head, origin, inner, centred, sums)
        cells = outer * windows.chunks * inner
        for chunk in range(first, last):
            cell = (entry * windows.chunks + chunk) * inner + column
            sums = _merged(sums, _load_row(table, cell, cells))
        return range_sums(x, absent, tail, stop, origin, inner, centred, sums)

    return window_sums


@functools.cache
def _make_statistics() -> Any:
    """Return a device function ``statistics(first, second, count, scaling)``.

    It returns the distance of the mean from the pivot, and rstd.
    """
    squared_deviations, inverse_root = make_squared_deviations(FLOAT64), make_inverse_root()
    inverse = reciprocal_of(FLOAT64)

    @device
    def statistics(first, second, count, scaling):
        if count == ZERO:
            return NAN, NAN
        share = inverse(count)
        mean = first * (share * scaling.centred)
        variance = squared_deviations(second, first, mean) * share + scaling.eps
        return mean, inverse_root(variance) * scaling.scaled + (ONE - scaling.scaled)

    return statistics


def make_windows(element: ElementType, saved: ElementType, missing: bool) -> Kernel:
    """Return the kernel ``(x, table, absent, y, saved, sequences, windows, scaling)``."""
    read, write, write_saved = make_read(element), make_write(element), make_write(saved)
    counts, window_sums = make_counts(missing), make_window_sums(element, missing)
    statistics_of = _make_statistics()

    def kernel(x, table, absent, y, saved, sequences, windows, scaling):
        outer, steps, inner = sequences
        results = steps - windows.first
        index = _thread()
        if index < outer * results * inner:
            entry, step, column = place_of(index, results, inner)
            place = entry, step + windows.first, column
            sums = window_sums(x, table, absent, place, sequences, windows, scaling.centred)
            mean, rstd = statistics_of(sums[1], sums[2], sums[3], scaling)
            at = (entry * steps + place[1]) * inner + column
            value = read(x, at)
            if counts(absent, at, value):
                write(y, index, ((value - sums[0]) - mean) * rstd)
            else:
                write(y, index, filled(absent, at))
            if saved.mean != 0:
                write_saved(saved.mean, index, sums[0] + mean)
                write_saved(saved.rstd, index, rstd)

    arrays = "address", "address", MISSING, "address", STATISTICS
    return Kernel(kernel, (*arrays, SEQUENCES, WINDOWS, SCALING), _THREADS)


# Gradients


def make_window_counts(element: ElementType) -> Kernel:
    """Return the kernel ``(x, table, absent, inverses, sequences, windows)``.

    It stores 1 over the number of steps that count in each window, 0 for none.
    """
    window_sums, inverse = make_window_sums(element, True), reciprocal_of(FLOAT64)

    def kernel(x, table, absent, inverses, sequences, windows):
        index, size = _thread(), sequences.outer * sequences.steps * sequences.inner
        if index < size:
            place = place_of(index, sequences.steps, sequences.inner)
            count = window_sums(x, table, absent, place, sequences, windows, ONE)[3]
            _store(inverses, index, ZERO if count == ZERO else inverse(count))

    parameters = "address", "address", MISSING, "address", SEQUENCES, WINDOWS
    return Kernel(kernel, parameters, _THREADS)


class GradientArrays(NamedTuple):
    """What the kernels of the gradients read.

    Attributes
    ----------
    dy, x : numbers of the size of x
    saved : StepStatistics
    absent : Missing
    inverses : float64 numbers of the size of x
        1 over the number of steps that count in each window, if steps are missing.
    """

    dy: Any
    x: Any
    saved: Any
    absent: Any
    inverses: Any


GRADIENT_ARRAYS = GradientArrays, ("address", "address", STATISTICS, MISSING, "address")


@functools.cache
def _make_inverse_count(missing: bool) -> Any:
    """Return a device function ``inverse_count(inverses, index, step, windows, steps)``."""
    inverse, wide = reciprocal_of(FLOAT64), FLOAT64.compute_type

    @device
    def of_all(inverses, index, step, windows, steps):
        start, stop = _window_of(step, windows, steps)
        return inverse(wide(stop - start))

    @device
    def of_some(inverses, index, step, windows, steps):
        return _load(inverses, index)

    return of_some if missing else of_all


@functools.cache
def make_terms(element: ElementType, saved: ElementType, missing: bool) -> Any:
    """Return a device function ``terms(arrays, index, step, windows, steps, scaling)``.

    It returns what the window of a step passes to each of its steps: through its mean, through its
    deviation for each unit of distance from its mean, and that mean; both are 0 for a step that
    does not count, whose mean is any number.
    """
    read, read_saved, counts = make_read(element), make_read(saved), make_counts(missing)
    inverse_count = _make_inverse_count(missing)

    @device
    def terms(arrays, index, step, windows, steps, scaling):
        value = read(arrays.x, index)
        if not counts(arrays.absent, index, value):
            return ZERO, ZERO, ZERO
        mean, rstd = read_saved(arrays.saved.mean, index), read_saved(arrays.saved.rstd, index)
        inverse = inverse_count(arrays.inverses, index, step, windows, steps)
        gradient = read(arrays.dy, index) * rstd
        through_scale = gradient * ((value - mean) * rstd) * rstd * (inverse * scaling.scaled)
        return gradient * (inverse * scaling.centred), through_scale, mean

    return terms


@functools.cache
def _make_pivot(element: ElementType, missing: bool) -> Any:
    """Return a device function ``pivot_of(x, absent, origin, inner, start, stop)``.

    It returns the first value of a range that counts, 0 if there is none.
    """
    read, counts = make_read(element), make_counts(missing)

    @device
    def pivot_of(x, absent, origin, inner, start, stop):
        for step in range(start, stop):
            index = origin + step * inner
            value = read(x, index)
            if counts(absent, index, value):
                return value
        return ZERO

    return pivot_of


def make_chunk_gradients(element: ElementType, saved: ElementType, missing: bool) -> Kernel:
    """Return the kernel ``(arrays, table, sequences, windows, scaling)`` of the chunks' terms."""
    terms, pivot_of = make_terms(element, saved, missing), _make_pivot(element, missing)

    def kernel(arrays, table, sequences, windows, scaling):
        outer, steps, inner = sequences
        cell, cells = _thread(), outer * windows.chunks * inner
        if cell < cells:
            entry, chunk, column = place_of(cell, windows.chunks, inner)
            start = chunk * windows.chunk
            stop = start + windows.chunk
            origin = entry * steps * inner + column
            pivot = pivot_of(arrays.x, arrays.absent, origin, inner, start, stop)
            pivot = pivot * scaling.centred
            through_mean, through_scale, shifted = ZERO, ZERO, ZERO
            for step in range(start, stop):
                index = origin + step * inner
                of_mean, of_scale, mean = terms(arrays, index, step, windows, steps, scaling)
                through_mean = through_mean + of_mean
                through_scale = through_scale + of_scale
                shifted = multiply_add(of_scale, mean - pivot, shifted)
            _store_row(table, cell, cells, (pivot, through_mean, through_scale, shifted))

    parameters = GRADIENT_ARRAYS, "address", SEQUENCES, WINDOWS, SCALING
    return Kernel(kernel, parameters, _THREADS)


@functools.cache
def _make_range_terms(element: ElementType, saved: ElementType, missing: bool) -> Any:
    """Return a device function that adds the terms of the windows of a range of steps.

    It is ``range_terms(arrays, start, stop, origin, inner, value, windows, steps, scaling, sums)``,
    with what passes to a step of this value through the means, and through the deviations.
    """
    terms = make_terms(element, saved, missing)

    @device
    def range_terms(arrays, start, stop, origin, inner, value, windows, steps, scaling, sums):
        through_mean, through_scale = sums
        for step in range(start, stop):
            index = origin + step * inner
            of_mean, of_scale, mean = terms(arrays, index, step, windows, steps, scaling)
            through_mean = through_mean + of_mean
            through_scale = multiply_add(of_scale, value - mean, through_scale)
        return through_mean, through_scale

    return range_terms


def make_window_gradients(element: ElementType, saved: ElementType, missing: bool) -> Kernel:
    """Return the kernel ``(arrays, table, dx, sequences, windows, scaling)``."""
    read, read_saved, write = make_read(element), make_read(saved), make_write(element)
    counts = make_counts(missing)
    range_terms = _make_range_terms(element, saved, missing)

    @device
    def gradient_of(arrays, table, place, value, sequences, windows, scaling):
        """Return what passes to the step at a place through the statistics of its windows."""
        outer, steps, inner = sequences
        entry, step, column = place
        start, stop = _windows_with(step, windows, steps)
        first, last = _inside(start, stop, windows)
        head, tail = _around(stop, first, last, windows)
        origin, cells = entry * steps * inner + column, outer * windows.chunks * inner
        sums = ZERO, ZERO
        sums = range_terms(arrays, start, head, origin, inner, value, windows, steps, scaling, sums)
        for chunk in range(first, last):
            cell = (entry * windows.chunks + chunk) * inner + column
            pivot, of_mean, of_scale, shifted = _load_row(table, cell, cells)
            of_scale = of_scale * (value - pivot) - shifted
            sums = sums[0] + of_mean, sums[1] + of_scale
        sums = range_terms(arrays, tail, stop, origin, inner, value, windows, steps, scaling, sums)
        return sums[0] + sums[1]

    def kernel(arrays, table, dx, sequences, windows, scaling):
        index, size = _thread(), sequences.outer * sequences.steps * sequences.inner
        if index < size:
            value = read(arrays.x, index)
            if counts(arrays.absent, index, value):
                place = place_of(index, sequences.steps, sequences.inner)
                own = read(arrays.dy, index) * read_saved(arrays.saved.rstd, index)
                passed = gradient_of(arrays, table, place, value, sequences, windows, scaling)
                write(dx, index, own - passed)
            else:
                write(dx, index, ZERO)

    parameters = GRADIENT_ARRAYS, "address", "address", SEQUENCES, WINDOWS, SCALING
    return Kernel(kernel, parameters, _THREADS)
