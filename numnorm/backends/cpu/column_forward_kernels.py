"""Normalizing channels by given statistics."""

from numnorm.backends.contract import Formula
from numnorm.backends.cpu.borrowed import borrowed
from numnorm.backends.cpu.jit import Twins, inlined, stand_alone, twins
from numnorm.backends.cpu.optional import element, make_centre, part
from numnorm.backends.cpu.runs import make_apply
from numnorm.backends.cpu.storage import Storage


def make_forward_across(formula: Formula, storage: Storage) -> Twins:
    """Return a kernel for ``x (outer, channels)``.

    It takes ``x, scale, high, low, rstd, gamma, beta, y, parts``.
    """
    forward = inlined(formula.forward)
    widen, narrow, centred = storage.widen, storage.narrow, make_centre(formula.centred)
    real = storage.working

    @inlined
    def apply(x, scale, high, low, rstd, gamma, beta, y):
        for j in range(x.size):
            xhat = centred(widen(x[j]) * scale[j], high[j], low[j]) * rstd[j]
            y[j] = narrow(forward(xhat, element(gamma, j, real(1)), element(beta, j, real(0))))

    def kernel(x, scale, high, low, rstd, gamma, beta, y, parts, first, last):
        stand_alone()
        x, y = borrowed(x), borrowed(y)
        for i in range(first * x.shape[0] // parts, last * x.shape[0] // parts):
            apply(x[i], scale, high, low, rstd, gamma, beta, y[i])

    return twins(f"column_forward.across.{formula.name}.{storage.name}", kernel)


def make_forward_along(formula: Formula, storage: Storage) -> Twins:
    """Return the same kernel for ``x (outer, channels, inner)``."""
    apply_run = make_apply(formula, storage, 2 * storage.lanes)

    def kernel(x, scale, high, low, rstd, gamma, beta, y, parts, first, last):
        stand_alone()
        x, y = borrowed(x), borrowed(y)
        runs = x.shape[0] * x.shape[1]
        for t in range(first * runs // parts, last * runs // parts):
            i, c = t // x.shape[1], t % x.shape[1]
            weights = part(gamma, c), part(beta, c)
            apply_run(x[i, c], (scale[c], high[c], low[c], rstd[c]), weights, y[i, c])

    return twins(f"column_forward.along.{formula.name}.{storage.name}", kernel)
