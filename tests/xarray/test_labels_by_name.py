"""`labels` and `statistics` of batch norm, and moments of labels, by names of dimensions."""

import numpy as np
import pytest
import xarray as xr

import numnorm
import numnorm.xarray as named

RNG = np.random.default_rng(8)
X = xr.DataArray(
    RNG.normal(3.0, 2.0, (4, 7, 3)),
    dims=("band", "sample", "site"),
    coords={"speaker": ("sample", list("abacdba")), "place": ("site", [2, 1, 2])},
)
MASK = xr.DataArray(RNG.random((3, 7)) < 0.6, dims=("site", "sample"))
CHUNKS = {"band": 3, "sample": (2, 1, 4), "site": 2}
# The dimensions in the order in which NumPy's function takes x, and the axis of the channels.
CASES = {
    "speaker band": (("band", "sample", "site"), 0),
    "place band": (("band", "site", "sample"), 0),
    "speaker site": (("sample", "band", "site"), 2),
}


def call_of(case, **keywords):
    """The arguments by name, and the same for NumPy."""
    label, channel = case.split()
    dims, axis = CASES[case]
    labels = X[label]
    arrays = {k: v.broadcast_like(X).transpose(*dims).values for k, v in keywords.items()}
    plain = {"channel_axis": axis, "labels": labels.values, **arrays}
    return {"channel_dim": channel, "labels": labels, **keywords}, plain, dims


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("keywords", [{}, {"where": MASK}], ids=["plain", "where"])
@pytest.mark.parametrize("case", CASES)
def test_batch_norm_and_moments(case, keywords, lazy):
    given, plain, dims = call_of(case, **keywords)
    x = X.chunk(CHUNKS) if lazy else X
    moments, of_numpy = named.batch_moments(x, **given), None
    of_numpy = numnorm.batch_moments(X.transpose(*dims).values, **plain)
    np.testing.assert_array_equal(moments.labels, of_numpy.labels)
    for found, expected in zip(moments.moments, of_numpy.moments, strict=True):
        label, channel = case.split()
        assert type(found) is xr.DataArray and type(found.data) is np.ndarray
        assert found.dims == (label, channel)
        # Sums of blocks in other orders.
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    for more in ({}, {"statistics": of_numpy}):
        result = named.batch_norm(x, **given, **more)
        assert (result.chunks is not None) is lazy and result.dims == X.dims
        expected = numnorm.batch_norm(X.transpose(*dims).values, **plain, **more)
        np.testing.assert_allclose(result.transpose(*dims), expected, rtol=1e-12, atol=1e-12)


def test_labels_may_be_lazy_and_an_array_belongs_to_the_first_dimension_beside_channels():
    expected = named.batch_norm(X, channel_dim="band", labels=X.speaker)
    for labels in (
        list(X.speaker.values),
        xr.Variable("sample", X.speaker.values).chunk(2),
        X.speaker.chunk(3),
        X.speaker.variable,
    ):
        result = named.batch_norm(X, channel_dim="band", labels=labels)
        xr.testing.assert_allclose(result.compute(), expected, rtol=1e-12)


def test_channels_in_another_order_than_in_x():
    options = {"labels": X.speaker, "channel_dim": ("site", "band")}
    statistics = named.batch_moments(X, **options)
    assert statistics.moments.mean.shape == (4, 3, 4)
    after = named.batch_moments(X.chunk(CHUNKS), after=statistics, **options)
    np.testing.assert_allclose(after.moments.mean, statistics.moments.mean, rtol=1e-13)
    own = named.batch_norm(X, **options)
    for x in (X, X.chunk(CHUNKS)):
        found = named.batch_norm(x, statistics=statistics, **options)
        xr.testing.assert_allclose(found.compute(), own, rtol=1e-12)


def test_errors():
    with pytest.raises(ValueError, match=r"^labels must have one dimension of x beside its chan"):
        named.batch_norm(X, channel_dim="sample", labels=X.speaker)
    with pytest.raises(ValueError, match=r"^labels must have dimensions of x"):
        named.batch_norm(X, channel_dim="band", labels=xr.DataArray([1, 2], dims="other"))
    with pytest.raises(ValueError, match=r"^labels must have shape \(7,\)"):
        named.batch_norm(X, channel_dim="band", labels=[1, 2])
