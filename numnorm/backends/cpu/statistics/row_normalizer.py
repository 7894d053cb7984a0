"""The statistics of one row, scaled if its squares would overflow or vanish."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numnorm.backends.contract.norms import Formula
from numnorm.backends.cpu.compiler.jit import inlined
from numnorm.backends.cpu.simd.element_type import ElementType
from numnorm.backends.cpu.statistics.row_moments import make_rescale, make_statistics
from numnorm.backends.formulas.norms import inverse_deviation

_inverse_deviation = inlined(inverse_deviation)


@functools.cache
def make_row_statistics(formula: Formula, element_type: ElementType) -> Callable[..., Any]:
    """Return a compiled ``row_statistics(row, scaling) -> (scale, mean_hi, mean_lo, rstd)``.

    `scaling` is ``(eps, eps_on_deviation, count)``. The statistics are those of ``row * scale``,
    where the scale brings the row's squares into range: it is 1 for nearly every row.
    """
    real, smallest = element_type.compute_type, element_type.smallest_variance
    statistics = make_statistics(element_type, centred=formula.centred)
    rescale = make_rescale(element_type)

    @inlined
    def row_statistics(row, scaling):
        eps, eps_on_deviation, count = scaling
        scale, inv_count = real(1), np.float64(1) / count
        mean_hi, mean_lo, m2 = statistics(row, scale)
        total = m2 * inv_count + eps + eps_on_deviation * eps_on_deviation
        if not smallest < total < np.inf:
            root = math.sqrt(eps)
            scale = rescale(row, root if root > eps_on_deviation else eps_on_deviation)
            mean_hi, mean_lo, m2 = statistics(row, scale)
            root = np.float64(root) * scale
            eps = root * root
        eps_on_deviation = np.float64(eps_on_deviation) * scale
        rstd = _inverse_deviation(m2 * inv_count, eps, eps_on_deviation)
        return scale, mean_hi, mean_lo, rstd

    return row_statistics
