"""Norms of irregular steps in other places: the results of NumPy's arrays."""

import datetime

import numba
import numpy as np
import pytest
from lazy_norms import computed, divided

import numnorm

RNG = np.random.default_rng(53)
STEPS = 60
TIMES = np.datetime64("2026-01-01", "h") + np.cumsum(RNG.integers(0, 30, STEPS))
DAYS = np.timedelta64(4, "D")
# A norm, and the options of a call.
CALLS = {
    "moving": ("moving_norm", {"window": DAYS}),
    "left": ("moving_norm", {"window": DAYS, "closed": "left"}),
    "centred": ("moving_norm", {"window": DAYS, "center": True, "closed": "both"}),
    "decay": ("exponential_norm", {"halflife": DAYS}),
    "first": ("exponential_norm", {"halflife": DAYS, "adjust": False, "initial": 17}),
}
each_call = pytest.mark.parametrize("name, options", CALLS.values(), ids=CALLS)


def arrays():
    return RNG.normal(size=(3, STEPS, 2)), RNG.normal(size=(3, STEPS, 2))


@each_call
@pytest.mark.parametrize("missing", [False, True])
def test_dask(name, options, missing):
    lazy = pytest.importorskip("dask.array")
    x, dy = arrays()
    if missing:
        x[RNG.random(x.shape) < 0.3] = np.nan
    given = {"axis": 1, "times": TIMES, "nan_policy": "omit" if missing else "propagate", **options}
    found = getattr(numnorm, f"{name}_forward")(x, **given)
    dy = np.where(np.isfinite(found.y), dy, 0)
    backward = getattr(numnorm, f"{name}_backward")
    dx = backward(dy, x, *found[1:], **given)
    for seed in range(2):
        chunks = divided(x.shape, np.random.default_rng(seed))
        blocks = lazy.from_array(x, chunks=chunks)
        results = computed(getattr(numnorm, f"{name}_forward")(blocks, **given))
        plain = computed(getattr(numnorm, name)(blocks, **given))
        # Anchors of sums lie elsewhere in blocks.
        for got, wanted in zip((*results, plain), (*found, found.y), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-12)
        gradient = backward(lazy.from_array(dy, chunks=chunks), blocks, *found[1:], **given)
        np.testing.assert_allclose(computed(gradient), dx, rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match="times must have shape"):
        getattr(numnorm, name)(blocks, **{**given, "times": TIMES[:3]})


@each_call
def test_xarray(name, options):
    xarray = pytest.importorskip("xarray")
    place = pytest.importorskip("numnorm.xarray")
    x, _ = arrays()
    expected = getattr(numnorm, name)(x, axis=1, times=TIMES, **options)
    named = xarray.DataArray(x, dims=("a", "time", "b"), coords={"time": TIMES})
    coordinate = named.coords["time"]
    for array in (named, named.transpose("b", "time", "a")):
        for times in ("time", coordinate, coordinate.variable, TIMES):
            found = getattr(place, name)(array, dim="time", times=times, **options)
            np.testing.assert_array_equal(found.transpose("a", "time", "b").values, expected)
    lazy = getattr(place, name)(named.chunk(time=13), dim="time", times="time", **options)
    np.testing.assert_allclose(lazy.values, expected, rtol=0, atol=1e-12)
    message = r"times must be a coordinate of x, \['time'\], got 'hour'"
    with pytest.raises(ValueError, match=message):
        getattr(place, name)(named, dim="time", times="hour", **options)


@each_call
def test_autograd(name, options):
    grad = pytest.importorskip("autograd").grad
    norm = getattr(pytest.importorskip("numnorm.autograd"), name)
    x, dy = arrays()
    given = {"axis": 1, "times": TIMES, **options}
    y, *saved = getattr(numnorm, f"{name}_forward")(x, **given)
    dy = np.where(np.isfinite(y), dy, 0)
    found = grad(lambda x: (norm(x, **given)[dy != 0] * dy[dy != 0]).sum())(x)
    expected = getattr(numnorm, f"{name}_backward")(dy, x, *saved, **given)
    np.testing.assert_array_equal(found, expected)


def test_njit():
    x = RNG.normal(size=(3, STEPS))
    numbers = np.cumsum(RNG.integers(0, 5, STEPS)).astype(float)

    @numba.njit
    def called(x, times):
        return numnorm.moving_norm(x, 9.0, times=times), numnorm.exponential_norm(
            x, halflife=9.0, times=times
        )

    moving, decay = called(x, numbers)
    np.testing.assert_array_equal(moving, numnorm.moving_norm(x, 9.0, times=numbers))
    expected = numnorm.exponential_norm(x, halflife=9.0, times=numbers)
    np.testing.assert_array_equal(decay, expected)


def test_data_frames():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(RNG.normal(size=(STEPS, 3)), index=pandas.DatetimeIndex(TIMES))
    window = datetime.timedelta(days=4)
    expected = numnorm.moving_norm(frame.to_numpy(), window, times=TIMES, axis=0)
    found = numnorm.moving_norm(frame, pandas.Timedelta("4D"), times=frame.index, axis=0)
    np.testing.assert_array_equal(np.asarray(found), expected)


def test_on_a_device():
    class OnDevice:
        __cuda_array_interface__ = {}

    for name in ("moving_norm", "exponential_norm"):
        options = {"window": 2} if name == "moving_norm" else {"halflife": 2}
        message = f"times of {name} is not supported on a device: copy x to the host first"
        with pytest.raises(NotImplementedError, match=message):
            getattr(numnorm, name)(OnDevice(), times=[0, 1], **options)
