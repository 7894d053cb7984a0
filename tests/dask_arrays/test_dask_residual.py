"""Norms of the sum with a residual for arrays of Dask: as for NumPy, and lazy."""

import ml_dtypes
import numpy as np
import pytest

import numnorm

da = pytest.importorskip("dask.array")

RNG = np.random.default_rng(3)
CHUNKS = 4, (3, 5)


def lazy(array, chunks=CHUNKS):
    return da.from_array(array, chunks=chunks)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_as_numpy(dtype):
    x, residual, dy, dtotal = RNG.normal(size=(4, 6, 8)).astype(dtype)
    gamma = RNG.normal(size=8).astype(dtype)
    for given in ((lazy(x), residual), (x, lazy(residual, 2)), (lazy(x), lazy(residual))):
        for name in ("add_layer_norm", "add_rms_norm"):
            found = getattr(numnorm, f"{name}_forward")(*given, gamma)
            wanted = getattr(numnorm, f"{name}_forward")(x, residual, gamma)
            assert type(found) is type(wanted)
            for got, each in zip(found, wanted, strict=True):
                assert got.dtype == each.dtype and not isinstance(got, np.ndarray)
                # Rows in several blocks merge their moments, with other roundings.
                epsilon = 4 * float(np.finfo(dtype).eps)
                np.testing.assert_allclose(got.compute(), each, rtol=epsilon, atol=epsilon)
            total = getattr(numnorm, name)(*given, gamma).total
            np.testing.assert_array_equal(total.compute(), x + residual)
            saved = wanted[2:]
            dx = getattr(numnorm, f"{name}_backward")(
                lazy(dy), wanted.total, *saved, gamma, dtotal=lazy(dtotal, 3)
            ).dx
            expected = getattr(numnorm, f"{name}_backward")(
                dy, wanted.total, *saved, gamma, dtotal=dtotal
            ).dx
            epsilon = 8 * float(np.finfo(dtype).eps)
            np.testing.assert_allclose(dx.compute(), expected, rtol=epsilon, atol=epsilon)


DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64, np.int32]


@pytest.mark.parametrize("of_residual", DTYPES)
@pytest.mark.parametrize("of_x", DTYPES)
def test_any_two_dtypes(of_x, of_residual):
    x, residual = (3 * RNG.normal(size=(4, 8)).astype(dtype) for dtype in (of_x, of_residual))
    for norm in (numnorm.add_layer_norm_forward, numnorm.add_rms_norm_forward):
        found, wanted = norm(lazy(x, (2, 8)), lazy(residual, (2, 8))), norm(x, residual)
        for got, each in zip(found, wanted, strict=True):
            assert got.dtype == each.dtype
            assert got.compute().tobytes() == each.tobytes()


def test_a_lazy_gain_alone():
    x = RNG.normal(size=(3, 8))
    gamma = RNG.normal(size=8)
    y, total = numnorm.add_layer_norm(x, x, lazy(gamma, 8))
    np.testing.assert_allclose(y.compute(), numnorm.layer_norm(2 * x, gamma), atol=1e-12)
    np.testing.assert_array_equal(total.compute(), 2 * x)
    _, mean, rstd = numnorm.layer_norm_forward(x)
    dx = numnorm.add_layer_norm_backward(x, x, mean, rstd, lazy(gamma, 8)).dx
    expected = numnorm.layer_norm_backward(x, x, mean, rstd, gamma).dx
    np.testing.assert_allclose(dx.compute(), expected, atol=1e-12)


def test_errors():
    x = np.ones((4, 8))
    for name in ("out", "total_out"):
        with pytest.raises(
            ValueError, match=f"^{name} must be None for lazy arrays, got a ndarray"
        ):
            numnorm.add_layer_norm(lazy(x), x, **{name: x})
    with pytest.raises(ValueError, match=r"residual must have shape \(4, 8\), the shape of x"):
        numnorm.add_layer_norm(lazy(x), x[0])
    _, mean, rstd = numnorm.layer_norm_forward(x)
    for name in ("dy", "dtotal"):
        given = {"dy": x, "total": lazy(x), "mean": mean, "rstd": rstd} | {name: x[0]}
        with pytest.raises(ValueError, match=rf"^{name} must have .*, the shape of total, got"):
            numnorm.add_layer_norm_backward(**given)
    with pytest.raises(ValueError, match=r"^gamma must have .*, the normalized axes of total, got"):
        numnorm.add_layer_norm_backward(lazy(x), x, mean, rstd, np.ones(3))
    with pytest.raises(TypeError, match=r"^total must have dtype"):
        numnorm.add_layer_norm_backward(lazy(x), np.full((4, 8), "a"), mean, rstd)


@pytest.mark.filterwarnings("error")
def test_sums_beyond_the_range_of_the_dtype():
    x = np.full((4, 8), 6e4, np.float16)
    total = numnorm.add_layer_norm(lazy(x), x).total
    np.testing.assert_array_equal(total.compute(), np.inf)
    _, mean, rstd = numnorm.layer_norm_forward(x)
    dx = numnorm.add_layer_norm_backward(x, lazy(x), mean, rstd, dtotal=1e300 * np.ones((4, 8))).dx
    np.testing.assert_array_equal(dx.compute(), np.inf)
