"""The scalar formulas of order statistics, in float64.

``times(a, b)`` is ``a * b``, rounded: a product that a compiler contracts into a sum would not
show whether it is whole, as NumPy's does.
"""

import math
from typing import Any

# What becomes of the place of a quantile between two elements.
INTERPOLATED, LOWER, UPPER, NEAREST, MIDDLE, UPPER_OR_MIDDLE, NEAREST_ODD = range(7)


def quantile_place(count: Any, q: Any, alpha: Any, beta: Any, rounding: Any, times: Any) -> Any:
    """Return where a quantile lies among `count` ordered elements, as `numpy.quantile` has it.

    Parameters
    ----------
    count : float
        At least 1, a whole number.
    q : float
        From 0 to 1.
    alpha, beta : float
        Those of Hyndman and Fan (1996).
    rounding : int
        One of the numbers above.
    times : callable

    Returns
    -------
    lower : int
        The number of an element, from 0 on.
    share : float
        From 0 to 1: the share of the next element, which exists unless this is 0.
    """
    if alpha == 1.0 and beta == 1.0:
        place = times(count - 1.0, q)
    else:
        place = times(count, q) + (alpha + times(q, 1.0 - alpha - beta)) - 1.0
    lower = math.floor(place)
    share = place - lower
    if rounding == LOWER:
        share = 0.0
    elif rounding == UPPER:
        share = 0.0 if share == 0.0 else 1.0
    elif rounding == NEAREST:
        up = share > 0.5 or (share == 0.5 and lower % 2 == 1)
        share = 1.0 if up else 0.0
    elif rounding == MIDDLE:
        share = 0.0 if share == 0.0 else 0.5
    elif rounding == UPPER_OR_MIDDLE:
        share = 0.5 if share == 0.0 else 1.0
    elif rounding == NEAREST_ODD:
        share = 0.0 if share == 0.0 and lower % 2 == 1 else 1.0
    if lower < 0:
        return 0, 0.0
    if lower >= count - 1.0:
        return int(count) - 1, 0.0
    return int(lower), share


def between(lower: Any, upper: Any, share: Any) -> Any:
    """Return the number at a share of the way from one element to the next.

    Equal elements give themselves, infinite ones too.
    """
    if share == 0.0 or lower == upper:
        return lower
    if share == 1.0:
        return upper
    distance = upper - lower
    if distance < math.inf:
        return lower + distance * share if share < 0.5 else upper - distance * (1.0 - share)
    return lower * (1.0 - share) + upper * share  # one is infinite, or both are large
