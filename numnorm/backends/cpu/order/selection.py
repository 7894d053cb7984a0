"""Selection: the k-th smallest of some numbers and the one after it, without sorting them.

The first pass keeps what lies near the k-th smallest, between two elements of a sample; what is
kept is divided around pivots until few are left. Passes count and move elements without branches
that depend on them. After many bad pivots what is left is sorted, in n log n steps at worst.

Numbers are compared as deviations from a centre, which may be 0, in float64: see `deviation`. None
of them is NaN.
"""

import math
import operator
from typing import Any

from numnorm.backends.cpu.compiler.jit import inlined, shared
from numnorm.backends.cpu.simd.element_type import widened
from numnorm.backends.cpu.simd.vector import compiled_as

# The most elements of a sample, and of what is ranked at once.
RANKED = 32
# Fewer elements than this are all kept by the first pass.
_SAMPLED = 256
# Pivots are the middle of so many elements, or another one of them.
_FEW = 8


def _times(typing_context: Any, a: Any, b: Any) -> Any:
    """Return a product that is rounded before anything is added to it."""

    def generate(context, builder, signature, arguments):
        # With a flag of its own, it gets none of `fastmath`, which would let it be contracted.
        return builder.fmul(*arguments, flags=("nsz",))

    return a(a, b), generate


times = compiled_as(operator.mul)(_times)


@inlined
def deviation(value, centre):
    """Return how far a number is from a centre: high, low, and -1 for a distance, 1 with sign.

    The centre is high + low. High is close to it, so that no offset costs digits.
    """
    high, low, sign = centre
    difference = (widened(value) - high) - low
    other = difference * sign
    return difference if difference >= other else other


@inlined
def ranked(sample, count, ordered):
    """Sort few numbers of a sample."""
    for i in range(count):
        value, rank = sample[i], 0
        for j in range(count):
            rank += sample[j] < value
        for j in range(i):
            rank += sample[j] == value
        ordered[rank] = value


@inlined
def _sift(heap, beside, start, count):
    """Move the element `start` of a heap down to its place, with what is beside it."""
    value, other, parent = heap[start], beside[start], start
    while 2 * parent + 1 < count:
        child = 2 * parent + 1
        if child + 1 < count and heap[child] < heap[child + 1]:
            child += 1
        if heap[child] <= value:
            break
        heap[parent], beside[parent] = heap[child], beside[child]
        parent = child
    heap[parent], beside[parent] = value, other


@inlined
def pairs_sorted(values, beside, count):
    """Sort the first `count` numbers, in n log n steps whatever they are.

    Numbers in another array, or in the same one, are moved with them.
    """
    for i in range(count // 2):
        _sift(values, beside, count // 2 - 1 - i, count)
    for i in range(count - 1):
        last = count - 1 - i
        value, other = values[last], beside[last]
        values[last], beside[last] = values[0], beside[0]
        values[0], beside[0] = value, other
        _sift(values, beside, 0, last)


@inlined
def _below(values, count, pivot):
    """Keep the numbers below a pivot, and return how many they are."""
    kept = 0
    for i in range(count):
        value = values[i]
        values[kept] = value
        kept += value < pivot
    return kept


@inlined
def _above(values, count, pivot):
    """Keep the numbers above a pivot, and return how many they are."""
    kept = 0
    for i in range(count):
        value = values[i]
        values[kept] = value
        kept += value > pivot
    return kept


@inlined
def _ends(values, count, pivot):
    """Return how many numbers are below a pivot, and how many are equal to it."""
    below = equal = 0
    for i in range(count):
        below += values[i] < pivot
        equal += values[i] == pivot
    return below, equal


@inlined
def _pivot(values, count, k, sample, ordered):
    """Return an element that is likely to be near the k-th smallest."""
    step = count // _FEW
    for i in range(_FEW):
        sample[i] = values[i * step + step // 2]
    ranked(sample, _FEW, ordered)
    return ordered[k * _FEW // count]


@inlined
def _among(values, count, k, sample, ordered):
    """Return the k-th smallest of numbers, which are moved, and the next one.

    The next one is infinity if there is none.
    """
    following = math.inf
    rounds = 8
    size = count
    while size > 0:
        size //= 2
        rounds += 2
    while count > RANKED and rounds > 0:
        rounds -= 1
        pivot = _pivot(values, count, k, sample, ordered)
        below, equal = _ends(values, count, pivot)
        if k < below:
            count = _below(values, count, pivot)
            following = pivot
        elif k >= below + equal:
            count = _above(values, count, pivot)
            k -= below + equal
        elif k + 1 < below + equal:
            return pivot, pivot
        else:
            for i in range(_above(values, count, pivot)):
                following = values[i] if values[i] < following else following
            return pivot, following
    if count > RANKED:
        pairs_sorted(values, values, count)
        return values[k], values[k + 1] if k + 1 < count else following
    for i in range(count):
        sample[i] = values[i]
    ranked(sample, count, ordered)
    return ordered[k], ordered[k + 1] if k + 1 < count else following


@inlined
def _bracket(source, start, count, centre, k, sample, ordered):
    """Return two numbers between which the k-th smallest is likely to lie, with the next one."""
    size = RANKED // 2 if count < 8 * _SAMPLED else RANKED
    step = count // size
    for i in range(size):
        sample[i] = deviation(source[start + i * step + step // 2], centre)
    ranked(sample, size, ordered)
    # Twice the deviation that the rank of the median of a sample has.
    spread = math.sqrt(1.0 * size)
    middle = k * size / count
    first, last = math.floor(middle - spread), math.floor(middle + spread) + 1
    low = ordered[first] if first >= 0 else -math.inf
    high = ordered[last] if last < size else math.inf
    return low, high


@shared
def select(source, start, count, centre, k, part, ranks):
    """Return the k-th smallest of the deviations of ``source[start : start + count]``, from 0 on.

    Also return the next one. ``part`` has room for `count` numbers, and each of the two arrays of
    ``ranks`` for `RANKED`.
    """
    sample, ordered = ranks
    low, high = -math.inf, math.inf
    if count >= _SAMPLED:
        low, high = _bracket(source, start, count, centre, k, sample, ordered)
    while True:
        below = kept = 0
        for i in range(count):
            value = deviation(source[start + i], centre)
            part[kept] = value
            below += value < low
            kept += (value >= low) & (value <= high)
        if k < below:
            low, high = -math.inf, low
        elif k + 1 >= below + kept and high < math.inf:
            low, high = high, math.inf
        else:
            break
    return _among(part, kept, k - below, sample, ordered)
