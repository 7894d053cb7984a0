"""Sums of a gradient over rows of channels: of groups of rows, or of one row at a time."""

import numpy as np
import pytest
from every_call import COMPILED

import numnorm
from numnorm.backends.cpu.columns import tile_sums as column_tiles
from numnorm.backends.cpu.columns.kernels import make_sums_across
from numnorm.backends.cpu.simd.element_type import element_type_of

# In bytes of float32: narrower than what is taken alone, just that, of one tile and of several.
CHANNELS = [40, 511, 512, 760, 1024, 1025, 2100]


def cases(channels, rows, dtype=np.float32):
    rng = np.random.default_rng(channels + rows)
    x, dy = rng.normal(2, 3, (2, rows, channels)).astype(dtype)
    return x, dy, rng.normal(1, 0.1, channels).astype(dtype)


@pytest.mark.parametrize("rows", [1, 2, 35, 170])
@pytest.mark.parametrize("channels", CHANNELS if COMPILED else CHANNELS[:3])
def test_gradients_are_those_of_the_definition(channels, rows):
    x, dy, gamma = cases(channels, rows)
    mean, rstd = x.mean(0, np.float64), 1 / np.sqrt(x.var(0, dtype=np.float64) + 1e-5)
    dx, dgamma, dbeta = numnorm.batch_norm_backward(dy, x, mean, rstd, gamma)
    wide, grad = x.astype(np.longdouble), dy.astype(np.longdouble)
    xhat = (wide - mean) * rstd
    expected = (grad - grad.mean(0) - xhat * (grad * xhat).mean(0)) * gamma * rstd
    # Sums of up to 32 rounded terms, each of at most 20 here, and those added up in float64.
    bound = 32 * 2.0**-24 * (np.abs(grad).sum(0) + np.abs(grad * xhat).sum(0))
    assert (np.abs(dgamma - (grad * xhat).sum(0)) <= bound).all()
    assert (np.abs(dbeta - grad.sum(0)) <= bound).all()
    spread = np.abs(grad).max(0) * np.maximum(1, np.abs(xhat).max(0) ** 2) * gamma * rstd
    assert (np.abs(dx - expected) <= 40 * 2.0**-24 * spread).all()


@pytest.mark.parametrize("exponent", range(-146, -139))
def test_a_scale_that_gamma_cancels_is_applied(exponent):
    """The powers of two of x and of gamma have the product 1: dx needs the first one anyway."""
    x, dy, _ = cases(1, 16)
    x, gamma = x * np.float32(2.0**-43), np.full(1, 2.0**exponent, np.float32)
    wide, grad = x.astype(np.longdouble), dy.astype(np.longdouble)
    mean, rstd = x.mean(0, np.float64), 1 / x.std(0, dtype=np.float64)
    dx, *_ = numnorm.batch_norm_backward(dy, x, mean, rstd, gamma)
    xhat = (wide - mean) * rstd
    expected = (grad - grad.mean(0) - xhat * (grad * xhat).mean(0)) * gamma * rstd
    assert (np.abs(dx - expected) <= 1e-5 * np.abs(expected).max()).all()


@pytest.mark.skipif(not COMPILED, reason="without compilation lanes are NumPy's")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_sums_whatever_the_cache_has_room_for(monkeypatch, dtype):
    """Rows are read one at a time where there is room, and added up in that order everywhere."""
    element_type = element_type_of(np.dtype(dtype))
    kernels = []
    for large_l1d in (True, False):
        monkeypatch.setattr(column_tiles, "has_large_l1d", lambda large_l1d=large_l1d: large_l1d)
        kernels.append(make_sums_across(element_type))
        kernels[-1].entry._cache.disable()  # kernels of one name share their files
    for channels in (100, 510, 1000, 2100):
        x, dy, _ = cases(channels, 70, dtype)
        coefficients = np.ones((3, channels), dtype)
        found = [np.zeros((2, 3, channels)) for _ in kernels]
        for kernel, sums in zip(kernels, found, strict=True):
            kernel.serial(dy, x, coefficients, 32, sums, 0, 3)
        assert found[0].any() and found[0].tobytes() == found[1].tobytes()
