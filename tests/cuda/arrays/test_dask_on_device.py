"""Blocks of Dask that lie on a device stay there."""

import sys

import numpy as np
import pytest

import numnorm

da = pytest.importorskip("dask.array")

X = np.arange(48, dtype=np.float32).reshape(4, 6, 2) ** 2


def put(block):
    return sys.modules["cupy"].take(block.copy())


def got(block):
    assert type(block) is sys.modules["cupy"].ndarray
    return block.host


@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "weight_norm", "group_norm"])
def test_blocks_stay_on_the_device(name, imported):
    cupy = imported("cupy")
    options = {"groups": 3} if name == "group_norm" else {}
    x = da.from_array(X, chunks=(3, -1, -1)).map_blocks(put, meta=np.empty((0, 0, 0), X.dtype))
    expected = getattr(numnorm, f"{name}_forward")(X, **options)
    results = [getattr(numnorm, name)(x, **options)]
    results += getattr(numnorm, f"{name}_forward")(x, **options)
    for lazy, theirs in zip(results, (expected[0], *expected), strict=True):
        host = lazy.map_blocks(got, meta=np.empty((0,) * lazy.ndim, lazy.dtype))
        mine = host.compute(scheduler="synchronous")
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=1e-6)
    assert cupy.asked == []


def test_moments_stay_on_the_device(imported):
    imported("cupy")
    x = da.from_array(X, chunks=(3, -1, -1)).map_blocks(put, meta=np.empty((0, 0, 0), X.dtype))
    moments, expected = numnorm.batch_moments(x), numnorm.batch_moments(X)
    for lazy, theirs in zip(moments[1:3], expected[1:3], strict=True):
        host = lazy.map_blocks(got, meta=np.empty(0))
        np.testing.assert_allclose(host.compute(scheduler="synchronous"), theirs, rtol=1e-12)
