"""The scalar formulas of moving norms, in float64.

``multiply_add(a, b, c)`` is ``a * b + c``: where it is written, a compiler contracts alike in all
kernels.
"""

from typing import Any

# Windows


def moved_sums(first: Any, second: Any, count: Any, distance: Any, multiply_add: Any) -> Any:
    """Return sums of deviations from a pivot, and of their squares, around another pivot.

    The old pivot lies at a `distance` from the new one.
    """
    moved = multiply_add(distance, count, first)
    return moved, multiply_add(distance, first + moved, second)


# Exponential weights


# From a share above this, 1 - share would lose digits. It is kept beside the share.
MOST_SHARE = 0.75


def next_share(weight: Any, alpha: Any, adjust: Any) -> Any:
    """Return the weight with a new step, the share of this step, and 1 - share.

    The weight is the sum of the weights of all steps so far, or without `adjust` the weight that
    the statistics have kept since the last value; 0 before the first value.
    """
    own = 1.0 if adjust else alpha
    older = weight * (1.0 - alpha)
    total = older + own
    share = own / total
    rest = 1.0 - share if share <= MOST_SHARE else older / total
    return total if adjust else 1.0, share, rest


def from_mean(distance: Any, statistics: Any, share: Any, multiply_add: Any) -> Any:
    """Return exponential statistics with a new value, at a distance from the mean.

    The statistics are the mean, what it lost by rounding, the variance, and the deviation of the
    value from the new mean.
    """
    mean, lost, variance, deviation = statistics
    low = multiply_add(distance, share, lost)
    rounded = mean + low
    variance = multiply_add(deviation * deviation - variance, share, variance)
    return rounded, low - (rounded - mean), variance


def from_value(value: Any, statistics: Any, share: Any, rest: Any, multiply_add: Any) -> Any:
    """Return the same, where the value is near the new mean, and little is left of the old one."""
    _, _, variance, deviation = statistics
    rounded = value - deviation
    variance = multiply_add(variance, rest, deviation * deviation * share)
    return rounded, (value - rounded) - deviation, variance


def through_mean(of_mean: Any, passed: Any, share: Any, multiply_add: Any) -> Any:
    """Return dx of a step, from the gradient of its mean and from what passes past the mean."""
    return multiply_add(of_mean, 0.0 - share, passed)


def through_later_mean(later: Any, passed: Any, share: Any, rest: Any, multiply_add: Any) -> Any:
    """Return the same, from the gradient that comes back from the step behind it.

    What passes through the step's own mean is the share of what passes through its value.
    """
    return multiply_add(later, 0.0 - share, passed * rest)
