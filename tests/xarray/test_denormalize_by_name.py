"""`denormalize` by names of dimensions, against arithmetic of xarray."""

import numpy as np
import pytest

xr = pytest.importorskip("xarray")
import numnorm.xarray  # noqa: E402

RNG = np.random.default_rng(13)


def array(*dims, **options):
    sizes = {"sample": 4, "time": 6, "band": 3}
    values = RNG.uniform(1, 2, [sizes[d] for d in dims])
    return xr.DataArray(values, dims=dims, **options)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("dims", [("band",), ("sample", "band"), ("band", "sample"), ("time",), ()])
def test_as_arithmetic(dims, chunked):
    y = array("sample", "time", "band", name="flux", attrs={"units": "1"})
    mean, rstd, gamma, beta = array(*dims), array(*dims), array("band"), array("time", "band")
    expected = (y - beta) / gamma / rstd + mean
    y = y.chunk(sample=2, time=4) if chunked else y
    got = numnorm.xarray.denormalize(y, mean, rstd, gamma, beta)
    assert (got.dims, got.name, got.attrs) == (y.dims, y.name, y.attrs)
    assert (got.chunks is None) != chunked
    xr.testing.assert_allclose(got, expected, rtol=1e-14)
    assert numnorm.xarray.denormalize(y, None, rstd, keep_attrs=False).attrs == {}


def test_numbers():
    y = array("time")
    got = numnorm.xarray.denormalize(y, 3.0, 0.5, 2.0, 1.0)
    xr.testing.assert_allclose(got, (y - 1) / 2 / 0.5 + 3)


def test_the_statistics_of_other_labels_are_refused():
    y = array("time", "band", coords={"band": [1, 2, 3]})
    mean = array("band", coords={"band": [3, 2, 1]})
    with pytest.raises(ValueError, match=r"^mean must have the labels of x along"):
        numnorm.xarray.denormalize(y, mean, 1.0)
    part = numnorm.xarray.denormalize(y.sel(band=[3, 1]), mean.sel(band=[3, 1]), 1.0)
    np.testing.assert_array_equal(part.band, [3, 1])
    np.testing.assert_allclose(part, y.values[:, [2, 0]] + mean.values[[0, 2]])


def test_errors():
    with pytest.raises(TypeError, match=r"^y must be a DataArray"):
        numnorm.xarray.denormalize(np.ones(3), 0.0, 1.0)
    with pytest.raises(ValueError, match=r"^mean must be a DataArray or have shape"):
        numnorm.xarray.denormalize(array("time"), np.ones(6), 1.0)
    with pytest.raises(TypeError, match=r"^rstd must be an array"):
        numnorm.xarray.denormalize(array("time"), None, None)
