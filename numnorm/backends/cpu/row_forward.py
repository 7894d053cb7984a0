"""The forward kernel of every norm whose statistics are shared by a row."""

import math

import numpy as np

from numnorm.backends.contract import Formula
from numnorm.backends.cpu.borrowed import borrowed
from numnorm.backends.cpu.jit import Twins, elementwise, stand_alone, twins
from numnorm.backends.cpu.optional import location, part
from numnorm.backends.cpu.row_statistics import make_rescale, make_statistics
from numnorm.backends.cpu.runs import make_apply
from numnorm.backends.cpu.storage import Storage
from numnorm.backends.scalars import inverse_deviation

_inverse_deviation = elementwise(inverse_deviation)


def make_row_forward(formula: Formula, storage: Storage) -> Twins:
    """Return the forward kernel of a formula.

    It takes ``x (N, D), gamma, beta, run, channels, eps, eps_on_deviation, count, y, saved,
    parts``: `count` is the divisor of the squares, `saved` is ``(2, N)`` for mean (the root mean
    square, where there is none) and rstd, or ``(2, 0)`` to save nothing, and `parts` is how many
    parts the rows are cut into.
    """
    real = storage.working
    statistics = make_statistics(storage, centred=formula.centred)
    rescale = make_rescale(storage)
    apply_run = make_apply(formula, storage)
    smallest = storage.smallest_variance

    @elementwise
    def spread(row, scaling):
        """Return the scale at which the row's squares are in range, and its statistics there."""
        eps, eps_on_deviation, count = scaling
        scale = real(1)
        high, low, m2 = statistics(row, scale)
        total = m2 / count + eps + eps_on_deviation * eps_on_deviation
        if not smallest < total < np.inf:
            scale = rescale(row, max(math.sqrt(eps), eps_on_deviation))
            high, low, m2 = statistics(row, scale)
            root = math.sqrt(eps) * scale
            eps = root * root
        rstd = _inverse_deviation(m2 / count, eps, eps_on_deviation * scale)
        return scale, high, low, rstd

    def kernel(
        x, gamma, beta, run, channels, eps, eps_on_deviation, count, y, saved, parts, first, last
    ):
        stand_alone()
        x, y, gamma, beta = borrowed(x), borrowed(y), borrowed(gamma), borrowed(beta)
        runs = x.shape[1] // run
        for i in range(first * x.shape[0] // parts, last * x.shape[0] // parts):
            scale, high, low, rstd = spread(x[i], (eps, eps_on_deviation, count))
            for p in range(runs):
                c = (i * runs + p) % channels
                left, right = p * run, (p + 1) * run
                weight, bias = part(gamma, c), part(beta, c)
                statistic = scale, high, low, real(rstd)
                apply_run(x[i][left:right], *statistic, weight, bias, y[i][left:right])
            if saved.shape[1] > 0:
                saved[0, i] = location(high, low, rstd) / scale
                saved[1, i] = rstd * scale

    return twins(f"row_forward.{formula.name}.{storage.name}", kernel)
