"""Normalizing channels by given statistics."""

from numba import prange

from numnorm.backends.contract import Formula
from numnorm.backends.cpu.borrowed import borrowed
from numnorm.backends.cpu.jit import Twins, elementwise, stand_alone, twins
from numnorm.backends.cpu.optional import centred, element, part
from numnorm.backends.cpu.row_forward import make_apply
from numnorm.backends.cpu.storage import Storage


def make_forward_across(formula: Formula, storage: Storage) -> Twins:
    """Return a kernel ``(x, high, low, rstd, gamma, beta, y, parts)``, ``x (outer, channels)``."""
    forward = elementwise(formula.forward)
    widen, narrow = storage.widen, storage.narrow
    real = storage.working

    @elementwise
    def apply(x, high, low, rstd, gamma, beta, y):
        for j in range(x.size):
            xhat = centred(real(widen(x[j])), high[j], low[j]) * rstd[j]
            y[j] = narrow(forward(xhat, element(gamma, j, real(1)), element(beta, j, real(0))))

    @elementwise
    def forward_rows(x, high, low, rstd, gamma, beta, y, start, stop):
        stand_alone()
        x, y = borrowed(x), borrowed(y)
        for i in range(start, stop):
            apply(x[i], high, low, rstd, gamma, beta, y[i])

    def kernel(x, high, low, rstd, gamma, beta, y, parts):
        for p in prange(parts):
            start, stop = p * x.shape[0] // parts, (p + 1) * x.shape[0] // parts
            forward_rows(x, high, low, rstd, gamma, beta, y, start, stop)

    return twins(f"column_forward.across.{formula.name}.{storage.name}", kernel)


def make_forward_along(formula: Formula, storage: Storage) -> Twins:
    """Return the same kernel for ``x (outer, channels, inner)``."""
    apply_run = make_apply(formula, storage)
    real = storage.working

    @elementwise
    def forward_runs(x, high, low, rstd, gamma, beta, y, start, stop):
        stand_alone()
        x, y = borrowed(x), borrowed(y)
        for t in range(start, stop):
            i, c = t // x.shape[1], t % x.shape[1]
            weights = part(gamma, c), part(beta, c)
            apply_run(x[i, c], real(1), high[c], low[c], rstd[c], *weights, y[i, c])

    def kernel(x, high, low, rstd, gamma, beta, y, parts):
        runs = x.shape[0] * x.shape[1]
        for p in prange(parts):
            start, stop = p * runs // parts, (p + 1) * runs // parts
            forward_runs(x, high, low, rstd, gamma, beta, y, start, stop)

    return twins(f"column_forward.along.{formula.name}.{storage.name}", kernel)
