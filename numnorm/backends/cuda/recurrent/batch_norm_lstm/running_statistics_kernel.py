"""From running statistics of a recurrent cell to the numbers that its kernels normalize by."""

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cuda.compiler.element_type import FLOAT64, Element
from numnorm.backends.cuda.compiler.target import Kernel, cuda, make_load_one
from numnorm.backends.cuda.recurrent.common.cell_norm import NUMBERS, make_keep_statistics
from numnorm.backends.cuda.statistics.saved import make_split_statistics
from numnorm.backends.cuda.statistics.stored_kernels import make_inverse_root

_THREADS = 128


def make_given_statistics(
    formula: Formula, element: Element, of_mean: Element, of_variance: Element
) -> Kernel:
    """Return the kernel of the statistics of one place in a cell, for kernels of an element.

    It takes as addresses ``mean, variance (S, features)`` and the ``table (steps, features)`` of
    numbers as `cell_norms` has them; ``count``, steps times features; ``features, first``, the row
    for the first step, and ``last``, that for all steps beyond it; and the number ``eps``.
    """
    load_mean, load_variance = make_load_one(of_mean), make_load_one(of_variance)
    split, keep = make_split_statistics(formula, element, FLOAT64), make_keep_statistics(element, 1)
    inverse_root, kind, working = make_inverse_root(), FLOAT64.working, element.working

    def kernel(mean, variance, table, count, features, first, last, eps):
        i = cuda.blockIdx.x * _THREADS + cuda.threadIdx.x
        found = cuda.local.array(NUMBERS, working)
        if i < count:
            step = i // features
            at = min(first + step, last) * features + i - step * features
            rstd = inverse_root(kind(load_variance(variance, at)), eps)
            scale, high, low, factor = split(kind(load_mean(mean, at)), rstd)
            found[0], found[1], found[2], found[3] = scale, high, low, factor
            keep(table, i, 1, 0, found)

    return Kernel(kernel, ("address",) * 3 + ("index",) * 4 + ("float64",), _THREADS)
