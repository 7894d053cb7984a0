"""From the sums of every part of the rows to the gradients of the parameters."""

from numnorm.backends.cpu.borrowed import borrowed
from numnorm.backends.cpu.jit import Twins, stand_alone, twins


def make_row_totals() -> Twins:
    """Return a kernel ``(totals, result)`` that adds up parts in order, and rounds once.

    `totals` is ``(parameters, parts, size)``, and its first parts become the sums; `result` is
    ``(parameters, size)``.
    """

    def kernel(totals, result, first, last):
        stand_alone()
        totals, result = borrowed(totals), borrowed(result)
        for k in range(first, last):
            for p in range(1, totals.shape[1]):
                for j in range(totals.shape[2]):
                    totals[k, 0, j] += totals[k, p, j]
            for j in range(totals.shape[2]):
                result[k, j] = totals[k, 0, j]

    return twins("row_totals", kernel)
