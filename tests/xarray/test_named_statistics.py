"""Moments with names: a climatology, its file, its use for other times, and area means."""

import pickle

import numpy as np
import pytest
import xarray as xr

import numnorm
import numnorm.xarray as named

RNG = np.random.default_rng(3)
YEARS, LAT = 2, [-60.0, 0.0, 45.0]


def temperatures(offset=15.0, dtype="f8", start="2001-01-01", years=YEARS):
    """Daily values with a season, of each latitude and longitude."""
    days = xr.date_range(start, periods=365 * years, use_cftime=False)
    season = np.cos(2 * np.pi * np.arange(len(days)) / 365)[:, None, None]
    values = offset + 5 * season + RNG.normal(size=(len(days), 3, 2))
    coords = {"time": days, "lat": LAT, "lon": [0.0, 180.0], "height": 2.0}
    return xr.DataArray(values.astype(dtype), coords, ("time", "lat", "lon"), "t", {"units": "K"})


X = temperatures()
CHANNELS = ("lat", "lon")
LAZY = {"time": 500, "lat": 2}


def by_month(x):
    """Mean and deviation of each month in extended precision."""
    wide, months = x.values.astype(np.longdouble), x.time.dt.month.values
    parts = [wide[months == month] for month in range(1, 13)]
    return np.stack([p.mean(axis=0) for p in parts]), np.stack([p.std(axis=0) for p in parts])


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("offset", "dtype"), [(15.0, "f8"), (1e7, "f8"), (1e6, "f4")])
def test_a_climatology_is_that_of_the_definition(offset, dtype, lazy):
    """So is the climatology of a large mean, at which sums of squares in float32 are noise."""
    x = temperatures(offset, dtype)
    mean, deviation = by_month(x)
    given = x.chunk(LAZY) if lazy else x
    climate = named.batch_moments(given, channel_dim=CHANNELS, labels=x.time.dt.month)
    assert climate.moments.mean.dims == ("month", "lat", "lon")
    assert climate.moments.mean.month.values.tolist() == list(range(1, 13))
    assert (
        climate.moments.mean.lat.values.tolist() == LAT and "height" in climate.moments.mean.coords
    )
    np.testing.assert_allclose(climate.moments.mean, mean, rtol=2e-16)
    # Squares are taken in the dtype of x.
    tolerance = 1e-14 if dtype == "f8" else 1e-6
    np.testing.assert_allclose(climate.moments.std(), deviation, rtol=tolerance)


def test_a_climatology_is_that_of_groupby():
    climate = named.batch_moments(X, channel_dim=CHANNELS, labels=X.time.dt.month)
    with xr.set_options(use_flox=False):
        groups = X.groupby("time.month")
        xr.testing.assert_allclose(climate.moments.mean, groups.mean(), rtol=1e-14)
        xr.testing.assert_allclose(climate.moments.std(), groups.std(), rtol=1e-13)
        xr.testing.assert_allclose(climate.moments.var(ddof=1), groups.var(ddof=1), rtol=1e-13)
        # Arithmetic of groups takes the mean as it takes that of xarray.
        anomalies = groups - climate.moments.mean
        xr.testing.assert_allclose(anomalies, groups - groups.mean(), atol=1e-13)


@pytest.mark.parametrize("lazy", [False, True])
def test_flox_gives_the_same_where_it_is_exact(lazy):
    pytest.importorskip("flox")
    from flox.xarray import xarray_reduce

    given = X.chunk(LAZY) if lazy else X
    month = X.time.dt.month
    climate = named.batch_moments(given, channel_dim=CHANNELS, labels=month)
    for name, found in {"mean": climate.moments.mean, "std": climate.moments.std()}.items():
        expected = xarray_reduce(X, month, func=name).transpose("month", ...)
        np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_climatology_of_a_file_normalizes_another_period(lazy, tmp_path):
    climate = named.batch_moments(X, channel_dim=CHANNELS, labels=X.time.dt.month)
    later = temperatures(16.0, start="2011-03-01", years=1)
    mean, deviation = (part[later.time.dt.month.values - 1] for part in by_month(X))
    later = later.chunk(LAZY) if lazy else later
    climate.to_dataset().to_netcdf(tmp_path / "climate.nc", engine="scipy")
    with xr.open_dataset(tmp_path / "climate.nc", engine="scipy") as dataset:
        read = named.GroupMoments.from_dataset(dataset.load())
    for statistics in (climate, read, pickle.loads(pickle.dumps(climate))):
        z = named.batch_norm(
            later, channel_dim=CHANNELS, labels=later.time.dt.month, statistics=statistics, eps=0
        )
        assert (z.chunks is not None) is lazy
        np.testing.assert_allclose(z, (later.values - mean) / deviation, rtol=1e-11, atol=1e-12)
    # Names, not positions, say which axis is which.
    turned = later.transpose("lon", "time", "lat")
    other = named.batch_norm(
        turned, channel_dim=("lon", "lat"), labels=turned.time.dt.month, statistics=read, eps=0
    )
    np.testing.assert_array_equal(other.transpose(*later.dims), z)


def test_zarr_keeps_a_climatology(tmp_path):
    pytest.importorskip("zarr")
    names = xr.DataArray(np.array(list("abba")), dims="sample", name="speaker")
    x = xr.DataArray(RNG.normal(size=(4, 2)), {"band": ["u", "v"]}, ("sample", "band"))
    speakers = named.batch_moments(x, channel_dim="band", labels=names)
    speakers.to_dataset().to_zarr(tmp_path / "speakers.zarr", zarr_format=2)
    dataset = xr.open_zarr(tmp_path / "speakers.zarr")
    read = named.GroupMoments.from_dataset(dataset)
    options = {"channel_dim": "band", "labels": names}
    found = named.batch_norm(x, statistics=read, **options)
    xr.testing.assert_allclose(found.compute(), named.batch_norm(x, **options), rtol=1e-13)
    xr.testing.assert_identical(read["b"].mean.compute(), speakers["b"].mean)


def test_merging_by_names():
    month = X.time.dt.month
    options = {"channel_dim": CHANNELS}
    whole = named.batch_moments(X, labels=month, **options)
    first, second = X[:400], X[400:]
    parts = [
        named.batch_moments(part, labels=part.time.dt.month, **options) for part in (first, second)
    ]
    turned = named.batch_moments(second, labels=second.time.dt.month, channel_dim=("lon", "lat"))
    after = named.batch_moments(second, labels=second.time.dt.month, after=parts[0], **options)
    for merged in (parts[0].merge(parts[1]), parts[0].merge(turned), after):
        assert type(merged) is named.GroupMoments
        xr.testing.assert_allclose(merged.to_dataset(), whole.to_dataset(), rtol=1e-12)
    total, plain = whole.total(), named.batch_moments(X, **options)
    assert type(total) is type(plain) is type(whole[3]) is named.Moments
    xr.testing.assert_allclose(total.std(), plain.std(), rtol=1e-13)
    assert total.mean.dims == CHANNELS and "month" not in total.mean.coords
    halves = [named.batch_moments(part, **options) for part in (first, second)]
    xr.testing.assert_allclose(halves[0].merge(halves[1]).var(), plain.var(), rtol=1e-13)
    again = named.Moments.from_dataset(plain.to_dataset())
    assert again.count == plain.count and type(again.count) is int
    xr.testing.assert_identical(again.std(), plain.std())
    gathered = named.GroupMoments.from_moments({m: whole[m] for m in whole.labels})
    np.testing.assert_array_equal(gathered.moments.std(), whole.moments.std())
    assert gathered.moments.mean.dims == ("label", "lat", "lon")


def test_a_prior_of_named_moments():
    whole = named.batch_moments(X, channel_dim=CHANNELS)
    state = whole.prior(100)
    y, _ = numnorm.exponential_norm_step(X.values, 0.1, state, axis=0)
    plain = numnorm.batch_moments(X.values, channel_axis=(1, 2)).prior(100)
    np.testing.assert_array_equal(y, numnorm.exponential_norm_step(X.values, 0.1, plain, axis=0)[0])


@pytest.mark.parametrize("lazy", [False, True])
def test_area_means_with_weights_of_the_latitude(lazy):
    weights = np.cos(np.deg2rad(X.lat))
    given = X.chunk(LAZY) if lazy else X
    area = named.batch_moments(given, channel_dim="time", weights=weights)
    expected = X.weighted(weights)
    xr.testing.assert_allclose(area.mean, expected.mean(CHANNELS), rtol=1e-13)
    xr.testing.assert_allclose(area.std(), expected.std(CHANNELS), rtol=1e-12)
    levels = X.expand_dims(level=[1000.0])
    climate = named.batch_moments(
        levels.chunk(LAZY) if lazy else levels,
        channel_dim="level", weights=weights, labels=X.time.dt.month,
    )  # fmt: skip
    month = xr.DataArray(X.time.dt.month.values, {"time": X.time}, ("time",))
    for label in (1, 7):
        own = X.isel(time=month.values == label).weighted(weights)
        dims = ("time", *CHANNELS)
        found = climate[label]
        np.testing.assert_allclose(found.mean.item(), own.mean(dims), rtol=1e-13)
        np.testing.assert_allclose(found.std().item(), own.std(dims), rtol=1e-12)


def test_names_of_labels():
    x = X[::50]
    for labels, name in (
        (x.time.dt.season, "season"),
        (x.time.dt.month.rename(None), "label"),
        (x.time.dt.month.rename("lat"), "label"),
        (x.time.dt.month.variable, "label"),
        (x.time.dt.month.values, "label"),
        (x.time, "time"),
    ):
        climate = named.batch_moments(x, channel_dim=CHANNELS, labels=labels)
        assert climate.moments.mean.dims == (name, "lat", "lon")
        z = named.batch_norm(x, channel_dim=CHANNELS, labels=labels, statistics=climate)
        expected = named.batch_norm(x, channel_dim=CHANNELS, labels=labels)
        xr.testing.assert_allclose(z, expected, atol=1e-13)


def test_errors():
    climate = named.batch_moments(X, channel_dim=CHANNELS, labels=X.time.dt.month)
    options = {"channel_dim": CHANNELS, "labels": X.time.dt.month}
    moved = X.assign_coords(lat=[-60.0, 1.0, 45.0])
    with pytest.raises(ValueError, match=r"^statistics.count must have the labels of x along"):
        named.batch_norm(moved, statistics=climate, **options)
    with pytest.raises(ValueError, match=r"^after.count must have the labels of x along"):
        named.batch_moments(moved, after=climate, **options)
    with pytest.raises(ValueError, match=r"^statistics.count must have dimensions of x"):
        named.batch_norm(X, channel_dim="lon", labels=X.time.dt.month, statistics=climate)
    other = named.batch_moments(moved, channel_dim=CHANNELS)
    with pytest.raises(ValueError, match=r"^other.mean must have the labels of x along"):
        climate.total().merge(other)
    with pytest.raises(TypeError, match=r"^dataset must be a Dataset, got GroupMoments"):
        named.GroupMoments.from_dataset(climate)
    with pytest.raises(ValueError, match=r"^dataset must have the variable 'm2', got"):
        named.Moments.from_dataset(climate.to_dataset().drop_vars("m2"))
    with pytest.raises(ValueError, match=r"^dataset must have the labels as coordinate 'month'"):
        named.GroupMoments.from_dataset(climate.to_dataset().drop_vars("month"))
    with pytest.raises(TypeError, match=r"^moments must hold Moments of numnorm.xarray$"):
        named.GroupMoments.from_moments({})
