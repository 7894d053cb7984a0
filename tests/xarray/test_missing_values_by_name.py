"""`where`, `weights` and `nan_policy` of the norms by names of dimensions."""

import numpy as np
import pytest
import xarray as xr
from filled_memory import NAN, NEGATIVE, filled_memory

import numnorm
import numnorm.xarray as named

RNG = np.random.default_rng(5)
X = xr.DataArray(
    RNG.normal(3.0, 2.0, (3, 6, 4)),
    dims=("sample", "time", "band"),
    coords={"time": np.arange(6) * 10, "band": list("abcd")},
)
GAPS = X.where(RNG.random(X.shape) < 0.8)
# Along other dimensions than the last ones, and in another order than that of x.
MASKS = {
    "of all": xr.DataArray(RNG.random((4, 3, 6)) < 0.7, dims=("band", "sample", "time")),
    "of one": xr.DataArray(RNG.random(6) < 0.6, {"time": X.time}, "time"),
    "of two": xr.DataArray(RNG.random((4, 3)) < 0.7, {"band": X.band}, ("band", "sample")),
}
DIVIDED = {"sample": 2, "time": 4, "band": 3}
WEIGHTS = xr.DataArray(RNG.integers(0, 3, 6) * RNG.random(6), {"time": X.time}, "time")

NORMS = {
    "layer_norm": lambda x, **more: named.layer_norm(x, dim="time", **more),
    "layer_norm of two": lambda x, **more: named.layer_norm(x, dim=("time", "sample"), **more),
    "layer_norm of all": lambda x, **more: named.layer_norm(x, dim=x.dims, **more),
    "rms_norm": lambda x, **more: named.rms_norm(x, dim="band", **more),
    "ada_norm": lambda x, **more: named.ada_norm(x, dim="time", **more),
    "standard_normal_variate": lambda x, **more: named.standard_normal_variate(
        x, dim="time", **more
    ),
    "weight_norm": lambda x, **more: named.weight_norm(x, dim="time", **more),
    "group_norm": lambda x, **more: named.group_norm(
        x, groups=2, channel_dim="band", dim="time", **more
    ),
    "instance_norm": lambda x, **more: named.instance_norm(
        x, channel_dim="band", dim="time", **more
    ),
    "batch_norm": lambda x, **more: named.batch_norm(x, channel_dim="band", **more),
}
CALLS = {  # the same with NumPy, for an x with the dimensions sample, time, band
    "layer_norm": (numnorm.layer_norm, {"axis": 1}),
    "layer_norm of two": (numnorm.layer_norm, {"axis": (0, 1)}),
    "layer_norm of all": (numnorm.layer_norm, {"axis": (0, 1, 2)}),
    "rms_norm": (numnorm.rms_norm, {"axis": 2}),
    "ada_norm": (numnorm.ada_norm, {"axis": 1}),
    "standard_normal_variate": (numnorm.standard_normal_variate, {"axis": 1}),
    "weight_norm": (numnorm.weight_norm, {"axis": 1}),
    "group_norm": (numnorm.group_norm, {"groups": 2, "channel_axis": 2}),
    "instance_norm": (numnorm.instance_norm, {"channel_axis": 2}),
    "batch_norm": (numnorm.batch_norm, {"channel_axis": 2}),
}
MOVING = {
    "moving_norm": lambda x, **more: named.moving_norm(x, 3, dim="time", **more),
    "exponential_norm": lambda x, **more: named.exponential_norm(x, 0.3, dim="time", **more),
}
MOVING_CALLS = {
    "moving_norm": (numnorm.moving_norm, {"window": 3, "axis": 1}),
    "exponential_norm": (numnorm.exponential_norm, {"alpha": 0.3, "axis": 1}),
}


def full(array):
    return None if array is None else array.broadcast_like(X).transpose(*X.dims).values


def check(name, x, where, weights, lazy=None, **options):
    norm = {**NORMS, **MOVING}[name]
    given = {} if where is None else {"where": where}
    given |= {} if weights is None else {"weights": weights}
    result = norm(x if lazy is None else lazy, **given, **options)
    function, keywords = {**CALLS, **MOVING_CALLS}[name]
    arrays = {"where": full(where)} | ({} if weights is None else {"weights": full(weights)})
    expected = function(x.values, **keywords, **arrays, **options)
    # Sums of blocks in other orders.
    np.testing.assert_allclose(result.compute(), expected, rtol=1e-12, atol=1e-12)
    assert result.dims == X.dims and result.coords.identical(X.coords)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", [*NORMS, *MOVING])
def test_masks_are_aligned_by_name(name, mask):
    check(name, X, MASKS[mask], None)
    check(name, X, MASKS[mask], None, X.chunk(DIVIDED), fill=7.0)


@pytest.mark.parametrize("name", NORMS)
def test_weights(name):
    check(name, X, None, WEIGHTS)
    check(name, X, MASKS["of all"], WEIGHTS, X.chunk(DIVIDED))
    check(name, X, MASKS["of all"].chunk(2), WEIGHTS.chunk(4), X.chunk(-1))


@pytest.mark.parametrize("byte", [NAN, NEGATIVE])
@pytest.mark.parametrize("name", NORMS)
def test_checks_of_a_lazy_call_read_no_new_memory(name, byte):
    lazy = X.chunk(DIVIDED)
    with filled_memory(byte):
        result = NORMS[name](lazy, weights=WEIGHTS)
    check(name, X, None, WEIGHTS, lazy)
    np.testing.assert_array_equal(result, NORMS[name](lazy, weights=WEIGHTS))


@pytest.mark.parametrize("name", [*NORMS, *MOVING])
def test_missing_values(name):
    check(name, GAPS, None, None, nan_policy="omit")
    check(name, GAPS, MASKS["of one"], None, GAPS.chunk(DIVIDED), nan_policy="omit", fill=0.0)
    with pytest.raises(ValueError, match=r"^x must not contain NaN, as nan_policy is 'raise'$"):
        {**NORMS, **MOVING}[name](GAPS, nan_policy="raise")


def test_an_array_has_the_shape_of_x():
    mask = MASKS["of all"].transpose(*X.dims)
    for norm in (NORMS["layer_norm"], MOVING["moving_norm"], NORMS["batch_norm"]):
        xr.testing.assert_identical(norm(X, where=mask.values), norm(X, where=mask))
        with pytest.raises(ValueError, match=r"^where must be a DataArray or have shape \(3, 6, 4"):
            norm(X, where=mask.values[0])
        with pytest.raises(ValueError, match=r"^where must have the labels of x along"):
            norm(X, where=MASKS["of one"].assign_coords(time=np.arange(6)))
        with pytest.raises(ValueError, match=r"^where must have dimensions of x"):
            norm(X, where=xr.DataArray([True], dims="other"))
        with pytest.raises(TypeError, match=r"^where must have dtype bool"):
            norm(X, where=MASKS["of one"].astype(float))
        with pytest.raises(ValueError, match=r"^nan_policy must be"):
            norm(X, nan_policy="drop")


def test_a_mask_of_0_and_1():
    mask = MASKS["of all"]
    for norm in (NORMS["layer_norm"], MOVING["moving_norm"], NORMS["batch_norm"]):
        expected = norm(X, where=mask)
        xr.testing.assert_identical(norm(X, where=mask.astype(int)), expected)


def test_moving_norms_take_any_chunks_and_one_dimension():
    lazy = X.chunk({"time": 2, "sample": 1})
    for name, norm in MOVING.items():
        check(name, X, MASKS["of two"], None, lazy)
        assert norm(lazy).chunks == lazy.chunks
        np.testing.assert_array_equal(norm(lazy), norm(X))
        dataset = norm(xr.Dataset({"a": X, "b": ("band", np.ones(4))}))
        xr.testing.assert_identical(dataset["a"], norm(X).rename("a"))
    with pytest.raises(ValueError, match=r"^dim must name one dimension, got \('time', 'band'\)$"):
        named.moving_norm(X, 3, dim=("time", "band"))
    assert named.moving_norm(X.assign_attrs(unit="V"), 3, dim="time", keep_attrs=False).attrs == {}


@pytest.mark.parametrize("channels", [("band",), ("band", "sample")])
def test_moments(channels):
    others = [dim for dim in X.dims if dim not in channels]
    counts = xr.where(MASKS["of all"] & GAPS.notnull(), WEIGHTS, 0.0)
    total = counts.sum(others).transpose(*channels)
    mean = ((counts * GAPS.fillna(0)).sum(others) / total).transpose(*channels)
    given = {"where": MASKS["of all"], "weights": WEIGHTS, "nan_policy": "omit"}
    chunks = GAPS.chunk({"time": 2})
    first = named.batch_moments(
        GAPS.isel(time=slice(2)),
        channel_dim=channels,
        **{**given, "where": MASKS["of all"].isel(time=slice(2)), "weights": WEIGHTS[:2]},
    )
    rest = {**given, "where": MASKS["of all"].isel(time=slice(2, None)), "weights": WEIGHTS[2:]}
    for moments in (
        named.batch_moments(GAPS, channel_dim=channels, **given),
        named.batch_moments(chunks, channel_dim=channels, **given),
        named.batch_moments(
            GAPS.isel(time=slice(2, None)), channel_dim=channels, after=first, **rest
        ),
    ):
        np.testing.assert_allclose(moments.count, total, rtol=1e-13)
        np.testing.assert_allclose(moments.mean, mean, rtol=1e-12)
