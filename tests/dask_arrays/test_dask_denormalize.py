"""`denormalize` and its gradients for arrays of Dask: as for NumPy, block by block."""

import numpy as np
import pytest

import numnorm

da = pytest.importorskip("dask.array")

RNG = np.random.default_rng(11)
SHAPE = (6, 8, 10)
CASES = [
    pytest.param({"axis": -1}, (6, 8), (10,), id="rows"),
    pytest.param({"axis": (0, 2)}, (8,), (6, 10), id="two axes"),
    pytest.param({"channel_axis": 1}, (6, 8), (8,), id="instances"),
    pytest.param({"channel_axis": 1}, (6, 2), (8,), id="groups"),
    pytest.param({"channel_axis": -1}, (10,), (10,), id="channels"),
    pytest.param({"axis": -1}, SHAPE, (6, 1, 10), id="elements"),
]
CHUNKS = 4, 3, (1, 9)


def arrays_of(statistics, parameters, dtype=np.float64):
    return {
        "mean": RNG.normal(size=statistics),
        "rstd": RNG.uniform(1, 2, statistics),
        "gamma": RNG.uniform(1, 2, parameters).astype(dtype),
        "beta": RNG.normal(size=parameters).astype(dtype),
    }


@pytest.mark.parametrize("keywords, statistics, parameters", CASES)
def test_as_numpy(keywords, statistics, parameters):
    y, dx = RNG.normal(size=(2, *SHAPE)).astype(np.float32)
    arrays = arrays_of(statistics, parameters)
    lazy = {"mean": da.from_array(arrays["mean"], chunks=2), "rstd": arrays["rstd"]}
    for given in (arrays, {**arrays, **lazy}, {**arrays, "mean": None, "beta": None}):
        plain = {k: v.compute() if hasattr(v, "compute") else v for k, v in given.items()}
        x = numnorm.denormalize(da.from_array(y, chunks=CHUNKS), **given, **keywords)
        assert x.dtype == np.float32 and x.shape == SHAPE
        np.testing.assert_array_equal(x, numnorm.denormalize(y, **plain, **keywords))
        found = numnorm.denormalize_backward(
            dx, da.from_array(y, chunks=CHUNKS), **given, **keywords
        )
        wanted = numnorm.denormalize_backward(dx, y, **plain, **keywords)
        for got, expected in zip(found, wanted, strict=True):
            assert (got is None) == (expected is None)
            if got is not None:
                assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
                # The sums have another order.
                np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-12)


def test_lazy_statistics_alone_make_the_result_lazy():
    x = RNG.normal(3, 2, (20, 30))
    y, mean, rstd = numnorm.layer_norm_forward(da.from_array(x, chunks=(7, 11)))
    back = numnorm.denormalize(y, mean, rstd)
    assert isinstance(back, da.Array)
    np.testing.assert_allclose(back, x, atol=1e-13)
    back = numnorm.denormalize(y.compute(), mean, rstd.compute())
    np.testing.assert_allclose(back, x, atol=1e-13)
    assert numnorm.denormalize(da.ones((2, 3), dtype=int), 1.0, 1.0).dtype == np.float64


def test_errors_come_at_the_call():
    y = da.ones((4, 6), chunks=2)
    with pytest.raises(ValueError, match=r"^mean must have shape"):
        numnorm.denormalize(y, np.ones(3), np.ones(4))
    with pytest.raises(ValueError, match=r"^out must be None"):
        numnorm.denormalize(y, 0.0, 1.0, out=np.ones((4, 6)))
    with pytest.raises(ValueError, match=r"^dx must have shape"):
        numnorm.denormalize_backward(np.ones(6), y, 0.0, 1.0)
    with pytest.raises(TypeError, match=r"^rstd must be an array"):
        numnorm.denormalize(y, 0.0, None)
