"""The kernels of exponential norms, which take each channel through time with one thread.

The mean is a sum of two numbers. At an offset the larger one alone would lose digits at every step.
The gradients go back through time, as docs/norms/moving.md has them.
"""

import functools
from typing import Any, NamedTuple

from numnorm.backends.cuda.compiler.element_type import FLOAT64, ElementType
from numnorm.backends.cuda.compiler.target import (
    Kernel,
    constant,
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
)
from numnorm.backends.formulas import moving as formulas

# Few channels are spread over many multiprocessors.
_THREADS = 32


class Decay(NamedTuple):
    """The weights.

    Attributes
    ----------
    alpha : number
        The weight of a new step.
    adjust : index
        1 if the weights of all steps so far are divided by their sum, else 0.
    initial : index
        The number of first steps that have the statistics of their block, at most all.
    eps : number
        The least deviation.
    """

    alpha: Any
    adjust: Any
    initial: Any
    eps: Any


DECAY = Decay, ("float64", "index", "index", "float64")


class Past(NamedTuple):
    """The statistics of each channel before the first step or behind the last one, in float64.

    Attributes
    ----------
    weight, mean, lost, variance : float64 numbers
        As in `ExponentialState`; all addresses are 0 for a channel without a past, and for
        statistics that are not to be stored.
    """

    weight: Any
    mean: Any
    lost: Any
    variance: Any


class Stream(NamedTuple):
    """What a chunk of a stream begins with and ends with.

    Attributes
    ----------
    before, after : Past
        Read, and written.
    """

    before: Any
    after: Any


_PAST = Past, ("address",) * 4
STREAM = Stream, (_PAST, _PAST)
NO_PAST = Past(None, None, None, None)
NO_STREAM = Stream(NO_PAST, NO_PAST)

_load, _store = make_load_one(FLOAT64), make_store_one(FLOAT64)
_MOST = constant(FLOAT64, formulas.MOST_SHARE)
# Where rstd * eps is above this, the deviation was below eps, and rstd is 1 / eps up to rounding.
_NEARLY_ONE = constant(FLOAT64, 1.0 - 1e-6)

_next_share = device(formulas.next_share)
_from_mean, _from_value = device(formulas.from_mean), device(formulas.from_value)
_through_mean = device(formulas.through_mean)
_through_later_mean = device(formulas.through_later_mean)


@device
def _thread():
    return cuda.blockIdx.x * _THREADS + cuda.threadIdx.x


@device
def _origin(channel, sequences):
    """Return the index of the first step of a channel."""
    entry = channel // sequences.inner
    return entry * (sequences.steps - 1) * sequences.inner + channel


@device
def advance(value, statistics, share, rest):
    """Return the statistics with a new value, and the value's deviation from its mean.

    The statistics are the mean, what it lost by rounding, and the variance. `share` is that of the
    value, and `rest` is ``1 - share``, which has more digits where the share is near 1.
    """
    mean, lost, variance = statistics
    distance = (value - mean) - lost
    before = mean, lost, variance, distance * rest
    if share <= _MOST:
        return _from_mean(distance, before, share, multiply_add), before[3]
    return _from_value(value, before, share, rest, multiply_add), before[3]


@functools.cache
def _make_rstd_of() -> Any:
    """Return a device function ``rstd_of(variance, eps)`` with the least deviation `eps`."""
    inverse_root = make_inverse_root()

    @device
    def rstd_of(variance, eps):
        least = eps * eps
        return inverse_root(least if variance < least else variance)

    return rstd_of


@functools.cache
def _make_block_count(element: ElementType, missing: bool) -> Any:
    """Return a device function ``block_count(x, absent, origin, inner, count)``.

    It returns how many of the first steps count.
    """
    read, counts = make_read(element), make_counts(missing)
    wide = FLOAT64.compute_type

    @device
    def of_some(x, absent, origin, inner, count):
        counted = ZERO
        for step in range(count):
            index = origin + step * inner
            if counts(absent, index, read(x, index)):
                counted = counted + ONE
        return counted

    return of_some if missing else device(lambda x, absent, origin, inner, count: wide(count))


# Forward


@functools.cache
def _make_first_block(element: ElementType, saved: ElementType, missing: bool) -> Any:
    """Return a device function ``first_block(x, absent, y, saved, origin, inner, decay)``.

    It normalizes the first steps. Their mean and deviation are of the steps among them that count.
    """
    read, write, write_saved = make_read(element), make_write(element), make_write(saved)
    counts, rstd_of, inverse = make_counts(missing), _make_rstd_of(), reciprocal_of(FLOAT64)

    @device
    def moments(x, absent, origin, inner, count):
        """Return the first value that counts, the mean around it, and the variance."""
        pivot, first, second, counted = ZERO, ZERO, ZERO, ZERO
        for step in range(count):
            index = origin + step * inner
            value = read(x, index)
            if counts(absent, index, value):
                pivot = value if counted == ZERO else pivot
                counted = counted + ONE
                first = first + (value - pivot)
        if counted == ZERO:
            return NAN, NAN, NAN
        share = inverse(counted)
        mean = first * share
        for step in range(count):
            index = origin + step * inner
            value = read(x, index)
            if counts(absent, index, value):
                deviation = (value - pivot) - mean
                second = multiply_add(deviation, deviation, second)
        return pivot, mean, second * share

    @device
    def first_block(x, absent, y, saved, origin, inner, decay):
        pivot, mean, variance = moments(x, absent, origin, inner, decay.initial)
        rstd = rstd_of(variance, decay.eps)
        for step in range(decay.initial):
            index = origin + step * inner
            value = read(x, index)
            if counts(absent, index, value):
                write(y, index, ((value - pivot) - mean) * rstd)
            else:
                write(y, index, filled(absent, index))
            if saved.mean != 0:
                write_saved(saved.mean, index, pivot + mean)
                write_saved(saved.rstd, index, rstd)

    return first_block


def make_exponential(element: ElementType, saved: ElementType, missing: bool) -> Kernel:
    """Return the kernel ``(x, absent, y, saved, stream, sequences, decay)``."""
    read, write, write_saved = make_read(element), make_write(element), make_write(saved)
    counts, rstd_of, wide = make_counts(missing), _make_rstd_of(), FLOAT64.compute_type
    first_block = _make_first_block(element, saved, missing)

    @device
    def first_statistics(before, channel):
        """Return the statistics and the weight before the first step."""
        if before.weight != 0:
            weight = _load(before.weight, channel)
            if missing or weight != ZERO:  # without weight they may be NaN
                mean, lost = _load(before.mean, channel), _load(before.lost, channel)
                return (mean, lost, _load(before.variance, channel)), weight
        return (NAN if missing else ZERO, ZERO, NAN if missing else ZERO), ZERO

    @device
    def store_statistics(after, channel, statistics, weight):
        if after.weight != 0:
            _store(after.weight, channel, wide(weight))
            _store(after.mean, channel, statistics[0])
            _store(after.lost, channel, statistics[1])
            _store(after.variance, channel, statistics[2])

    @device
    def with_value(value, statistics, weight, decay):
        """Return the statistics with a value, its deviation, and the weight."""
        weight, share, rest = _next_share(weight, decay.alpha, decay.adjust)
        if missing and rest == ZERO:
            # A first value leaves nothing, and replaces statistics that may be NaN.
            statistics = value, ZERO, ZERO
        statistics, deviation = advance(value, statistics, share, rest)
        return statistics, deviation, weight

    @device
    def steps_of(x, absent, y, saved, origin, sequences, decay, statistics, weight):
        ahead = read(x, origin)
        for step in range(sequences.steps):
            index = origin + step * sequences.inner
            value = ahead
            if step + 1 < sequences.steps:  # while this step is computed
                ahead = read(x, index + sequences.inner)
            kept = counts(absent, index, value)
            deviation = ZERO
            if kept:
                statistics, deviation, weight = with_value(value, statistics, weight, decay)
            else:
                weight = weight * (ONE - decay.alpha)
            if step >= decay.initial:
                rstd = rstd_of(statistics[2], decay.eps)
                write(y, index, deviation * rstd if kept else filled(absent, index))
                if saved.mean != 0:
                    write_saved(saved.mean, index, statistics[0])
                    write_saved(saved.rstd, index, rstd)
        return statistics, weight

    def kernel(x, absent, y, saved, stream, sequences, decay):
        channel = _thread()
        if channel < sequences.outer * sequences.inner:
            origin = _origin(channel, sequences)
            if decay.initial > 0:
                first_block(x, absent, y, saved, origin, sequences.inner, decay)
            first, weight = first_statistics(stream.before, channel)
            past = steps_of(x, absent, y, saved, origin, sequences, decay, first, weight)
            store_statistics(stream.after, channel, past[0], past[1])

    parameters = "address", MISSING, "address", STATISTICS, STREAM, SEQUENCES, DECAY
    return Kernel(kernel, parameters, _THREADS)


# Gradients


class Shares(NamedTuple):
    """The share of each step in its statistics.

    Attributes
    ----------
    table : (2, known) or, if steps are missing, twice the size of x
        The shares, and what they leave of 1. A missing step has a share of 0.
    known : index
        The number of first steps whose shares are in the table, if no step is missing. The share of
        a later one is alpha.
    """

    table: Any
    known: Any


SHARES = Shares, ("address", "index")


def make_shares(element: ElementType, missing: bool) -> Kernel:
    """Return the kernel ``(x, absent, table, sequences, alpha, adjust)``.

    It stores the table of `Shares`. Without missing steps x is not read.
    """
    read, counts = make_read(element), make_counts(missing)

    def kernel(x, absent, table, sequences, alpha, adjust):
        channel, channels = _thread(), sequences.outer * sequences.inner
        if channel < channels:
            origin, size = _origin(channel, sequences), channels * sequences.steps
            weight = ZERO
            for step in range(sequences.steps):
                index = origin + step * sequences.inner
                share, rest = ZERO, ONE
                if not missing or counts(absent, index, read(x, index)):
                    weight, share, rest = _next_share(weight, alpha, adjust)
                else:
                    weight = weight * (ONE - alpha)
                _store(table, index, share)
                _store(table, size + index, rest)

    parameters = "address", MISSING, "address", SEQUENCES, "float64", "index"
    return Kernel(kernel, parameters, _THREADS)


@functools.cache
def _make_share_of(missing: bool) -> Any:
    """Return a device function ``share_of(shares, index, step, size, alpha)``.

    It returns the share of a step, and what it leaves of 1.
    """

    @device
    def of_each(shares, index, step, size, alpha):
        return _load(shares.table, index), _load(shares.table, size + index)

    @device
    def of_all(shares, index, step, size, alpha):
        if step < shares.known:
            return _load(shares.table, step), _load(shares.table, shares.known + step)
        return alpha, ONE - alpha

    return of_each if missing else of_all


class GradientArrays(NamedTuple):
    """What the kernel of the gradients reads.

    Attributes
    ----------
    dy, x : numbers of the size of x
    saved : StepStatistics
    absent : Missing
    shares : Shares
    """

    dy: Any
    x: Any
    saved: Any
    absent: Any
    shares: Any


GRADIENT_ARRAYS = GradientArrays, ("address", "address", STATISTICS, MISSING, SHARES)


@functools.cache
def _make_block_gradients(element: ElementType, saved: ElementType, missing: bool) -> Any:
    """Return a device function that stores dx of the first steps, which share their statistics.

    It is ``block_gradients(arrays, dx, table, channel, sequences, decay, through)``, with the
    gradients that come back from later steps, and a table for the deviations of the first steps
    from their exponential means.
    """
    read, read_saved, write = make_read(element), make_read(saved), make_write(element)
    share_of, inverse = _make_share_of(missing), reciprocal_of(FLOAT64)
    block_count = _make_block_count(element, missing)

    @device
    def block_means(arrays, origin, sequences, decay):
        """Return the means of dy and of ``dy * xhat``, as for a layer norm.

        The second is 0 where the deviation is a constant.
        """
        size = sequences.outer * sequences.steps * sequences.inner
        mean, rstd = read_saved(arrays.saved.mean, origin), read_saved(arrays.saved.rstd, origin)
        total, projected = ZERO, ZERO
        for step in range(decay.initial):
            index = origin + step * sequences.inner
            if share_of(arrays.shares, index, step, size, decay.alpha)[0] > ZERO:
                gradient = read(arrays.dy, index)
                total = total + gradient
                xhat = (read(arrays.x, index) - mean) * rstd
                projected = multiply_add(gradient, xhat, projected)
        counted = block_count(arrays.x, arrays.absent, origin, sequences.inner, decay.initial)
        share = ZERO if counted == ZERO else inverse(counted)
        constant_deviation = rstd * decay.eps > _NEARLY_ONE
        return total * share, ZERO if constant_deviation else projected * share

    @device
    def store_deviations(arrays, table, channel, sequences, decay):
        channels = sequences.outer * sequences.inner
        origin, size = _origin(channel, sequences), channels * sequences.steps
        statistics = ZERO, ZERO, ZERO
        for step in range(decay.initial):
            index = origin + step * sequences.inner
            share, rest = share_of(arrays.shares, index, step, size, decay.alpha)
            if share > ZERO:
                value = read(arrays.x, index)
                statistics, deviation = advance(value, statistics, share, rest)
                _store(table, step * channels + channel, deviation)

    @device
    def block_gradients(arrays, dx, table, channel, sequences, decay, through):
        of_variance, of_mean, kept = through
        channels = sequences.outer * sequences.inner
        origin, size = _origin(channel, sequences), channels * sequences.steps
        store_deviations(arrays, table, channel, sequences, decay)
        mean_gradient, mean_projected = block_means(arrays, origin, sequences, decay)
        for back in range(decay.initial):
            step = decay.initial - 1 - back
            index = origin + step * sequences.inner
            share, rest = share_of(arrays.shares, index, step, size, decay.alpha)
            if share > ZERO:
                rstd = read_saved(arrays.saved.rstd, index)
                xhat = (read(arrays.x, index) - read_saved(arrays.saved.mean, index)) * rstd
                own = read(arrays.dy, index) - mean_gradient
                own = multiply_add(xhat, -mean_projected, own)
                of_variance = of_variance * kept
                scaled = of_variance * _load(table, step * channels + channel)
                of_mean = multiply_add(of_mean, kept, scaled * -share)
                passed = multiply_add(scaled, -share, own * rstd)
                write(dx, index, _through_mean(of_mean, passed, share, multiply_add))
                kept = rest
            else:
                write(dx, index, ZERO)

    return block_gradients


def make_exponential_gradients(element: ElementType, saved: ElementType, missing: bool) -> Kernel:
    """Return the kernel ``(arrays, dx, table, sequences, decay)``.

    The ``table`` has room for `initial` float64 numbers of each channel.
    """
    read, read_saved, write = make_read(element), make_read(saved), make_write(element)
    share_of = _make_share_of(missing)
    block_gradients = _make_block_gradients(element, saved, missing)

    @device
    def deviation_of(arrays, index, before, share, rest):
        """Return the deviation of a step from its saved mean.

        Where the share of the step is near 1 the two are near each other, and the deviation is a
        part of the distance from the mean of the step before, so far before the index; 0 if no mean
        is there.
        """
        value = read(arrays.x, index)
        if share <= _MOST or before == 0 or rest == ZERO:
            return value - read_saved(arrays.saved.mean, index)
        return (value - read_saved(arrays.saved.mean, index - before)) * rest

    @device
    def own_gradients(arrays, index, deviation, eps):
        """Return what passes to a step directly, and to the variance."""
        rstd = read_saved(arrays.saved.rstd, index)
        own = read(arrays.dy, index) * rstd
        of_scale = own * (deviation * rstd) * rstd
        return own, ZERO if rstd * eps > _NEARLY_ONE else of_scale

    @device
    def later_steps(arrays, dx, origin, sequences, decay):
        """Store dx of the steps behind the first ones; return what passes back from them."""
        size = sequences.outer * sequences.steps * sequences.inner
        # -2 V and -M of docs/norms/moving.md, and what the step behind leaves of 1.
        of_variance, of_mean, kept = ZERO, ZERO, ONE
        for back in range(sequences.steps - decay.initial):
            step = sequences.steps - 1 - back
            index = origin + step * sequences.inner
            share, rest = share_of(arrays.shares, index, step, size, decay.alpha)
            if share > ZERO:
                before = sequences.inner if step > decay.initial else 0
                deviation = deviation_of(arrays, index, before, share, rest)
                own, of_scale = own_gradients(arrays, index, deviation, decay.eps)
                of_variance = multiply_add(of_variance, kept, of_scale)
                passed = multiply_add(of_variance, deviation * -share, own)
                later = of_mean * kept
                of_mean = multiply_add(of_mean, kept, passed)
                if share <= _MOST:
                    result = _through_mean(of_mean, passed, share, multiply_add)
                else:
                    result = _through_later_mean(later, passed, share, rest, multiply_add)
                write(dx, index, result)
                kept = rest
            else:
                write(dx, index, ZERO)
        return of_variance, of_mean, kept

    def kernel(arrays, dx, table, sequences, decay):
        channel = _thread()
        if channel < sequences.outer * sequences.inner:
            origin = _origin(channel, sequences)
            through = later_steps(arrays, dx, origin, sequences, decay)
            if decay.initial > 0:
                block_gradients(arrays, dx, table, channel, sequences, decay, through)

    parameters = GRADIENT_ARRAYS, "address", "address", SEQUENCES, DECAY
    return Kernel(kernel, parameters, _THREADS)
