"""numnorm.xarray: dimensions by name, what is kept, Dask, and what is refused."""

import functools
import pickle

import dask
import dask.array
import numpy as np
import pytest
import xarray as xr
from every_call import in_new_process
from filled_memory import NAN, NEGATIVE, filled_memory
from kernels import marks

import numnorm
import numnorm.xarray as named
from numnorm.norms.declared import BY_NAME
from numnorm.xarray.norms import by_names

RNG = np.random.default_rng(2)


def data(dtype="float64", dims=("sample", "time", "band", "site")):
    sizes = {"sample": 3, "time": 5, "band": 4, "site": 2}
    return xr.DataArray(
        RNG.normal(3.0, 2.0, [sizes[dim] for dim in dims]).astype(dtype),
        dims=dims,
        coords={
            "time": np.arange(5) * 10,
            "band": list("abcd"),
            "height": ("site", [1.5, 2.5], {"units": "m"}),
            "run": 7,
        },
        name="signal",
        attrs={"units": "V"},
    )


def of(x, *dims):
    """A parameter with some dimensions of x, and with the coordinates of these."""
    others = {dim: 0 for dim in x.dims if dim not in dims}
    chosen = x.isel(others, drop=True).transpose(*dims)
    return chosen.copy(data=RNG.normal(1.0, 0.5, chosen.shape).astype(x.dtype))


def mean_and_deviation(x, dims, ddof=0):
    return x.mean(dims), np.sqrt(((x - x.mean(dims)) ** 2).sum(dims) / (count(x, dims) - ddof))


def count(x, dims):
    return np.prod([x.sizes[dim] for dim in dims])


def layer(x, dims, gamma=1.0, beta=0.0, eps=1e-5):
    mean, std = mean_and_deviation(x, dims)
    return gamma * (x - mean) / np.sqrt(std**2 + eps) + beta


def scatter_corrected(x, reference, dim):
    """Each spectrum less its offset, divided by its gain: a line through the reference's values."""
    deviation = reference - reference.mean(dim)
    gain = (x * deviation).sum(dim) / (deviation**2).sum(dim)
    return (x - x.mean(dim)) / gain + reference.mean(dim)


def compressed(x, alpha, gain=0.98, bias=2.0, power=0.5, eps=1e-6):
    """PCEN along the time, a step after the other."""
    means = [x.isel(time=0, drop=True)]
    for step in range(1, x.sizes["time"]):
        means.append((1 - alpha) * means[-1] + alpha * x.isel(time=step, drop=True))
    mean = xr.concat(means, x.time)
    return (x / (eps + mean) ** gain + bias) ** power - bias**power


def grouped(x, groups, channel, dims):
    """Group norm by its definition, a group after the other."""
    parts = [
        layer(x.isel({channel: part}), (channel, *dims))
        for part in np.split(np.arange(x.sizes[channel]), groups)
    ]
    return xr.concat(parts, channel)


def windows(x, window):
    """Moving norm by its definition, a step after the other."""
    steps = [x.isel(time=slice(max(0, t - window + 1), t + 1)) for t in range(x.sizes["time"])]
    last = [layer(step, ["time"], eps=1e-30).isel(time=-1) for step in steps]
    return xr.concat(last, "time")


def robust_windows(x, window):
    """Moving robust norm by its definition, a step after the other."""
    results = []
    for t in range(x.sizes["time"]):
        values = x.isel(time=slice(max(0, t - window + 1), t + 1))
        deviations = values - values.median("time")
        results.append(deviations.isel(time=-1) / (abs(deviations).median("time") + 1.0))
    return xr.concat(results, "time")


def fading(x, alpha):
    """Exponential norm by its definition."""
    weights = (1 - alpha) ** np.arange(x.sizes["time"])
    means, squares, results = [], [], []
    for t in range(x.sizes["time"]):
        own = weights[t::-1] / weights[: t + 1].sum()
        means.append(sum(w * x.isel(time=s) for s, w in enumerate(own)))
        squares.append((x.isel(time=t) - means[t]) ** 2)
        variance = sum(w * square for w, square in zip(own, squares, strict=True))
        results.append((x.isel(time=t) - means[t]) / np.maximum(np.sqrt(variance), 1e-4))
    return xr.concat([result.assign_coords(time=x.time[0]) for result in results], "time")


def robust(x, dims, low, high):
    quantiles = x.quantile([low, 0.5, high], dims)
    low, median, high = (quantiles.isel(quantile=i, drop=True) for i in range(3))
    return (x - median) / (high - low)


# Each norm: its call, and its definition by operations of xarray.
X = data()
G = {dims: of(X, *dims) for dims in [("time",), ("band",), ("band", "time"), ("sample",)]}
CASES = {
    "layer_norm": (
        lambda x: named.layer_norm(x, G["time",], 2 * G["time",], dim="time"),
        lambda x: layer(x, ["time"], G["time",], 2 * G["time",]),
    ),
    "layer_norm over two dimensions": (
        lambda x: named.layer_norm(x, G["band", "time"], dim=["time", "band"]),
        lambda x: layer(x, ["time", "band"], G["band", "time"]),
    ),
    "layer_norm with a gain of some dimensions": (
        lambda x: named.layer_norm(x, G["sample",], G["band",], dim=("time", "band"), eps=0.1),
        lambda x: layer(x, ["time", "band"], G["sample",], G["band",], eps=0.1),
    ),
    "layer_norm over all dimensions": (
        lambda x: named.layer_norm(x, G["time",], G["band",], dim=x.dims),
        lambda x: layer(x, x.dims, G["time",], G["band",]),
    ),
    "rms_norm": (
        lambda x: named.rms_norm(x, G["band",], dim="band"),
        lambda x: G["band",] * x / np.sqrt((x**2).mean("band") + 1e-5),
    ),
    "ada_norm": (
        lambda x: named.ada_norm(x, dim="site", scale=2.0, k=0.2),
        lambda x: 2.0 * (1 - 0.2 * layer(x, ["site"])) * layer(x, ["site"]),
    ),
    "standard_normal_variate": (
        lambda x: named.standard_normal_variate(x, dim="time", ddof=1),
        lambda x: (x - x.mean("time")) / mean_and_deviation(x, ["time"], ddof=1)[1],
    ),
    "emsc": (
        lambda x: named.emsc(x, G["time",], dim="time", degree=0),
        lambda x: scatter_corrected(x, G["time",], "time"),
    ),
    "robust_norm": (
        lambda x: named.robust_norm(x, dim=["time", "band"], scale=(0.1, 0.9)),
        lambda x: robust(x, ["time", "band"], 0.1, 0.9),
    ),
    "weight_norm": (
        lambda x: named.weight_norm(x, of_others(x, "time"), dim="time"),
        lambda x: of_others(x, "time") * x / np.sqrt((x**2).sum("time")),
    ),
    "weight_norm of one length": (
        lambda x: named.weight_norm(x, G["sample",], dim=("time", "site")),
        lambda x: G["sample",] * x / np.sqrt((x**2).sum(["time", "site"])),
    ),
    "group_norm": (
        lambda x: named.group_norm(
            x, G["band",], G["band",], groups=2, channel_dim="band", dim=["time", "site"]
        ),
        lambda x: G["band",] * grouped(x, 2, "band", ["time", "site"]) + G["band",],
    ),
    "group_norm with a gain of samples": (
        lambda x: named.group_norm(
            x, G["sample",], G["band",], groups=4, channel_dim="band", dim="time"
        ),
        lambda x: G["sample",] * grouped(x, 4, "band", ["time"]) + G["band",],
    ),
    "instance_norm": (
        lambda x: named.instance_norm(x, G["band",], channel_dim="band", dim="time"),
        lambda x: layer(x, ["time"], G["band",]),
    ),
    "instance_norm in inference": (
        lambda x: named.instance_norm(
            x, G["band",], channel_dim="band", dim="time", training=False, **statistics()
        ),
        lambda x: G["band",] * (x - G["band",]) / np.sqrt(G["band",] ** 2 + 1e-5),
    ),
    "moving_norm": (
        lambda x: named.moving_norm(x, 3, dim="time"),
        lambda x: windows(x, 3).assign_coords(time=x.time),
    ),
    "moving_robust_norm": (
        lambda x: named.moving_robust_norm(x, 3, dim="time", eps=1),
        lambda x: robust_windows(x, 3).assign_coords(time=x.time),
    ),
    "pcen": (
        lambda x: named.pcen(x.copy(data=abs(x.data)), 0.3, dim="time"),
        lambda x: compressed(x.copy(data=abs(x.data)), 0.3),
    ),
    "exponential_norm": (
        lambda x: named.exponential_norm(x, 0.3, dim="time"),
        lambda x: fading(x, 0.3).assign_coords(time=x.time),
    ),
    "batch_norm": (
        lambda x: named.batch_norm(x, G["band",], G["band",], channel_dim="band"),
        lambda x: layer(x, [d for d in x.dims if d != "band"], G["band",], G["band",]),
    ),
    "batch_norm of two dimensions": (
        lambda x: named.batch_norm(x, G["band", "time"], channel_dim=("time", "band")),
        lambda x: layer(x, ["sample", "site"], G["band", "time"]),
    ),
    "batch_norm of two dimensions with a gain of one, a bias of samples": (
        lambda x: named.batch_norm(x, G["band",], G["sample",], channel_dim=("time", "band")),
        lambda x: layer(x, ["sample", "site"], G["band",], G["sample",]),
    ),
    "batch_norm in inference": (
        lambda x: named.batch_norm(x, channel_dim="band", training=False, **statistics()),
        lambda x: (x - G["band",]) / np.sqrt(G["band",] ** 2 + 1e-5),
    ),
}


ROWS = dask.array.from_array(X.values.reshape(-1, 5), chunks=(4, 5))
OF_UNKNOWN_LENGTH = xr.DataArray(ROWS[ROWS[:, 0] > 3.0], dims=("sample", "time"))


def statistics():
    return {"running_mean": G["band",], "running_var": G["band",] ** 2}


def of_others(x, dim):
    others = [other for other in sorted(x.dims) if other != dim]
    return xr.DataArray(np.arange(1.0, 1 + np.prod([x.sizes[d] for d in others])), dims="all").pipe(
        lambda flat: xr.DataArray(flat.values.reshape([x.sizes[d] for d in others]), dims=others)
    )


# Whose kernels are no norm's of `kernels.DEFAULT`.
OTHERS = ("moving_norm", "moving_robust_norm", "exponential_norm", "emsc", "pcen", "robust_norm")


def cases(dtype="float64"):
    parameters = []
    for case in CASES:
        if case in OTHERS:
            parameters.append(pytest.param(case, id=case))
            continue
        norm = case.partition(" ")[0].replace("standard_normal_variate", "layer_norm")
        given = "none" if norm == "ada_norm" else "both"
        parameters.append(pytest.param(case, marks=marks(norm, dtype, given), id=case))
    return parameters


@pytest.mark.parametrize(
    "dims", [("sample", "band", "time", "site"), ("site", "time", "sample", "band")]
)
@pytest.mark.parametrize("case", cases())
def test_definitions(case, dims):
    call, definition = CASES[case]
    x = X.transpose(*dims)
    result = call(x)
    # The definition rounds some ten operations on numbers of about 10.
    xr.testing.assert_allclose(result, definition(x).transpose(*dims), rtol=1e-12, atol=1e-12)
    xr.testing.assert_identical(result, x.copy(data=result.values))  # all but the numbers is kept
    assert result.dims == dims


@pytest.mark.parametrize(
    "chunks",
    [-1, {"sample": 2, "time": 2, "band": 3, "site": 1}, {"time": (1, 4), "band": (1, 2, 1)}],
    ids=["whole", "divided", "uneven"],
)
@pytest.mark.parametrize("case", cases())
def test_dask_gives_the_same_numbers(case, chunks):
    call, _ = CASES[case]
    x = X.chunk(chunks)
    result = call(x)
    assert result.chunks == x.chunks
    assert result.dtype == np.float64
    # The statistics are those of the same numbers, merged in the order of the chunks.
    xr.testing.assert_allclose(result.compute(), call(X), rtol=1e-13, atol=1e-13)
    xr.testing.assert_identical(result.compute(), X.copy(data=result.values))
    assert call(x).data.name == result.data.name  # the name of the graph is stable


@pytest.mark.parametrize("byte", [NAN, NEGATIVE])
@pytest.mark.parametrize("case", [case for case in CASES if "inference" in case])
def test_checks_of_a_lazy_call_read_no_new_memory(case, byte):
    call, _ = CASES[case]
    x = X.chunk({"sample": 2, "time": 5, "band": 4, "site": 1})
    with filled_memory(byte):
        result = call(x)
    xr.testing.assert_identical(result.compute(), call(x).compute())


def test_every_norm_is_there():
    norms = {name.removesuffix("_backward") for name in numnorm.__all__ if "_backward" in name}
    norms -= {"add_layer_norm", "add_rms_norm"}  # xarray knows a sum
    assert set(named.__all__) == norms | {"batch_moments", "Moments", "GroupMoments"}
    assert sorted(named.__all__) == named.__all__
    # The way back is no norm, and has a test file of its own.
    assert {case.partition(" ")[0] for case in CASES} == norms - {"denormalize"}


@pytest.mark.parametrize("chunks", [None, {"sample": 1}])
@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
def test_dtypes(dtype, chunks):
    x = data(dtype)
    expected = numnorm.batch_norm(x.values, channel_axis=2)
    lazy = x if chunks is None else x.chunk({"band": 2})
    result = named.batch_norm(lazy, channel_dim="band")
    assert result.dtype == ("float64" if dtype == "int32" else dtype)
    assert result.compute().dtype == result.dtype
    np.testing.assert_allclose(result.values, expected, rtol=2e-3 if dtype == "float16" else 1e-6)


# Parameters


def test_parameters_as_arrays_have_the_order_of_the_names():
    gamma = G["band", "time"]
    expected = named.layer_norm(X, gamma, dim=("time", "band"))
    for dims in (("time", "band"), ("band", "time")):
        given = gamma.transpose(*dims).values
        xr.testing.assert_identical(named.layer_norm(X, given, dim=dims), expected)
    xr.testing.assert_identical(
        named.layer_norm(X, G["time",].values.tolist(), dim="time"),
        named.layer_norm(X, G["time",], dim="time"),
    )


def test_parameters_are_aligned_by_label():
    shuffled = G["band",].isel(band=[2, 0, 3, 1])
    message = r"^gamma must have the labels of x along \('band',\): use .reindex_like\(x\)$"
    with pytest.raises(ValueError, match=message):
        named.layer_norm(X, shuffled, dim="band")
    xr.testing.assert_identical(
        named.layer_norm(X, shuffled.reindex_like(X.coords["band"]), dim="band"),
        named.layer_norm(X, G["band",], dim="band"),
    )


def test_coordinates_of_parameters_are_left_out():
    gamma = G["time",].assign_coords(run=8, other=("time", np.arange(5)))
    result = named.layer_norm(X, gamma, dim="time")
    assert result.coords.identical(X.coords)


# Running statistics


@pytest.mark.parametrize("labelled", [True, False])
def test_running_statistics_are_updated_in_place(labelled):
    expected = np.zeros(4), np.ones(4)
    y = numnorm.batch_norm(
        X.values, channel_axis=2, running_mean=expected[0], running_var=expected[1]
    )
    running = {"running_mean": np.zeros(4), "running_var": np.ones(4)}
    if labelled:
        running = {name: xr.DataArray(value, dims="band") for name, value in running.items()}
    result = named.batch_norm(X, channel_dim="band", **running)
    np.testing.assert_array_equal(result.values, y)
    for found, one in zip(running.values(), expected, strict=True):
        np.testing.assert_array_equal(found, one)


@pytest.mark.parametrize("usual", [True, False])
def test_running_statistics_of_two_dimensions_in_another_order(usual):
    running = {
        "running_mean": xr.zeros_like(G["band", "time"]),
        "running_var": xr.ones_like(G["band", "time"]),
    }
    gamma = None if usual else G["sample",]
    named.batch_norm(X, gamma, channel_dim=("band", "time"), momentum=1.0, **running)
    # 6 values in each channel, of a size of about 10.
    xr.testing.assert_allclose(
        running["running_mean"], X.mean(["sample", "site"]).T, rtol=1e-13, atol=1e-13
    )
    xr.testing.assert_allclose(
        running["running_var"], X.var(["sample", "site"], ddof=1).T, rtol=1e-12
    )


def test_running_statistics_of_instance_norm():
    running = {"running_mean": xr.zeros_like(G["band",]), "running_var": xr.ones_like(G["band",])}
    named.instance_norm(X, channel_dim="band", dim="time", momentum=1.0, **running)
    xr.testing.assert_allclose(
        running["running_var"], X.var("time", ddof=1).mean(["sample", "site"]), rtol=1e-12
    )


def test_running_statistics_stay_after_an_error():
    running = {"running_mean": xr.zeros_like(G["band",]), "running_var": xr.ones_like(G["band",])}
    with pytest.raises(ValueError, match=r"^eps must be at least 0"):
        named.batch_norm(X, channel_dim="band", eps=-1.0, **running)
    assert (running["running_mean"] == 0).all() and (running["running_var"] == 1).all()


# Moments


@pytest.mark.parametrize("channels", [("band",), ("band", "time"), ("site", "sample")])
def test_moments(channels):
    others = [dim for dim in X.dims if dim not in channels]
    expected = X.var(others).transpose(*channels)
    whole = named.batch_moments(X, channel_dim=channels)
    chunked = named.batch_moments(X.chunk(dict.fromkeys(others, 2)), channel_dim=channels)
    first = named.batch_moments(X.isel({others[0]: slice(1)}), channel_dim=channels)
    streamed = named.batch_moments(
        X.isel({others[0]: slice(1, None)}), channel_dim=channels, after=first
    )
    for moments in (whole, chunked, streamed):
        assert moments.count == count(X, others)
        np.testing.assert_allclose(moments.var(), expected, rtol=1e-13)
        np.testing.assert_allclose(moments.mean, X.mean(others).transpose(*channels), rtol=1e-13)


def test_batch_norm_over_chunks_by_their_moments():
    x = X.chunk(sample=1, time=2)
    moments = named.batch_moments(x, channel_dim="band")
    running = {"running_mean": moments.mean, "running_var": moments.var()}
    result = named.batch_norm(x, channel_dim="band", training=False, **running)
    assert result.chunks == x.chunks
    xr.testing.assert_allclose(
        result.compute(), named.batch_norm(X, channel_dim="band"), rtol=1e-12, atol=1e-12
    )


# Datasets


def test_dataset():
    dataset = xr.Dataset(
        {"a": X, "b": X.isel(site=0, drop=True) * 2, "mask": ("site", [True, False])},
        attrs={"title": "two signals"},
    )
    result = named.layer_norm(dataset, dim="time")
    assert list(result.data_vars) == ["a", "b", "mask"]
    for name in ("a", "b"):
        xr.testing.assert_identical(result[name], named.layer_norm(dataset[name], dim="time"))
    xr.testing.assert_identical(result["mask"], dataset["mask"])
    assert result.attrs == dataset.attrs and result["a"].attrs == X.attrs
    without = named.layer_norm(dataset, dim="time", keep_attrs=False)
    assert without.attrs == {} and without["a"].attrs == {}
    assert named.layer_norm(X, dim="time", keep_attrs=False).attrs == {}
    with pytest.raises(ValueError, match=r"^x must have a variable with the dimensions \('wave',"):
        named.layer_norm(dataset, dim="wave")
    with pytest.raises(TypeError, match=r"^running_mean must be None for a Dataset: normalize"):
        named.batch_norm(dataset, channel_dim="band", **statistics())
    with pytest.raises(TypeError, match=r"^x must have dtype") as caught:
        named.layer_norm(dataset.assign(words=("time", list("abcde"))), dim="time")
    assert caught.value.__notes__ == ["in the variable 'words'"]


# Memory


@pytest.mark.parametrize(
    "name, dims, options",
    [
        ("layer_norm", ("site", "sample", "time", "band"), {"dim": "band"}),
        ("layer_norm", ("site", "sample", "time", "band"), {"dim": ("band", "time")}),
        ("batch_norm", ("sample", "band", "time", "site"), {"channel_dim": "band"}),
        (
            "group_norm",
            ("site", "sample", "band", "time"),
            {"groups": 2, "channel_dim": "band", "dim": "time"},
        ),
    ],
)
def test_nothing_is_copied(name, dims, options):
    given = []
    spec = BY_NAME[name]

    @functools.wraps(spec.function)
    def seen(x, **options):
        given.append((x, spec.function(x, **options)))
        return given[-1][1]

    x = data(dims=dims)
    result = by_names(spec._replace(function=seen), __name__)(x, **options)
    ((found, y),) = given
    assert np.shares_memory(found, x.values) and found.flags.c_contiguous
    assert np.shares_memory(y, result.values) and result.values.flags.c_contiguous


def test_lazy_results_pickle():
    result = named.layer_norm(X.chunk(sample=1), G["time",], dim="time")
    xr.testing.assert_identical(
        pickle.loads(pickle.dumps(result)).compute(), named.layer_norm(X, G["time",], dim="time")
    )


def test_name_of_a_graph_is_the_same_in_another_process():
    script = (
        "import numpy as np, xarray as xr, numnorm.xarray as named\n"
        "x = xr.DataArray(np.ones((4, 3)), dims=('a', 'b')).chunk(a=2)\n"
        "print(named.layer_norm(x, dim='b').data.name)"
    )
    assert in_new_process("-c", script) == in_new_process("-c", script)


def test_a_lazy_gain_makes_the_result_lazy():
    gamma = G["time",].chunk(time=2)
    result = named.layer_norm(X, gamma, dim="time")
    assert type(result.data) is type(gamma.data)
    assert dask.is_dask_collection(result.data)
    xr.testing.assert_identical(result.compute(), named.layer_norm(X, G["time",], dim="time"))


@pytest.mark.parametrize("sizes", [{"time": 0}, {"sample": 0}, {"time": 0, "sample": 0}], ids=str)
def test_empty_arrays_of_dask(sizes):
    x = X.isel({dim: slice(size) for dim, size in sizes.items()})
    for result in (
        named.layer_norm(x.chunk(site=1), G["band",], dim="time"),
        named.layer_norm(x.to_dataset().chunk(site=1), dim="time").signal,
    ):
        assert result.chunks == x.chunk(site=1).chunks
        xr.testing.assert_identical(result.compute(), x)


# What is refused


@pytest.mark.parametrize(
    "error, message, call",
    [
        (
            TypeError,
            r"^x must be a DataArray or a Dataset of xarray, got an object of type numpy.ndarray$",
            lambda: named.layer_norm(X.values, dim="time"),
        ),
        (
            ValueError,
            r"^x must have the dimension 'wave', got \('sample', 'time', 'band', 'site'\)$",
            lambda: named.layer_norm(X, dim="wave"),
        ),
        (
            ValueError,
            r"^x must have the dimension 'wave', got",
            lambda: named.batch_moments(X, channel_dim="wave"),
        ),
        (ValueError, r"^dim must name at least one", lambda: named.rms_norm(X, dim=[])),
        (TypeError, r"^dim must hold names of dimensions, got", lambda: named.rms_norm(X, dim=X)),
        (
            ValueError,
            r"^channel_dim must name at least one dimension, got none$",
            lambda: named.batch_moments(X, channel_dim=()),
        ),
        (
            ValueError,
            r"^after.mean must have shape \(4, 5\), the channels of x, got \(4,\)$",
            lambda: named.batch_moments(
                X.transpose(..., "band", "time"),
                channel_dim=("time", "band"),
                after=named.batch_moments(X, channel_dim="band"),
            ),
        ),
        (
            TypeError,
            r"^after must be Moments, got an object of type tuple$",
            lambda: named.batch_moments(X, channel_dim="band", after=(1, G["band",], G["band",])),
        ),
        (
            ValueError,
            r"^gamma must have dimensions of x, \(.*\), got 'wave'$",
            lambda: named.layer_norm(X, xr.Variable("wave", np.ones(5)), dim="time"),
        ),
        (
            ValueError,
            r"^gamma must have 5 elements along 'time', as x has, got 4$",
            lambda: named.layer_norm(X, xr.Variable("time", np.ones(4)), dim="time"),
        ),
        (
            TypeError,
            r"^gamma must be rectangular, got a list",
            lambda: named.layer_norm(X, [[1.0], [1.0, 2.0]], dim="time"),
        ),
        (
            TypeError,
            r"^gamma must not be a masked array",
            lambda: named.layer_norm(X, np.ma.masked_less(np.ones(5), 2), dim="time"),
        ),
        (
            ValueError,
            r"^running_mean must be writable to be updated, got a read-only array$",
            lambda: named.batch_norm(
                X,
                channel_dim="band",
                running_mean=xr.DataArray(0.0).expand_dims(band=4),
                running_var=np.ones(4),
            ),
        ),
        (
            ValueError,
            r"^x must have chunks of known lengths, got \(nan, 5\): use .compute_chunk_sizes\(\)$",
            lambda: named.layer_norm(OF_UNKNOWN_LENGTH, dim="time"),
        ),
        (
            ValueError,
            r"^dim must name each dimension once, got \('time', 'time'\)$",
            lambda: named.rms_norm(X, dim=["time", "time"]),
        ),
        (
            ValueError,
            r"^channel_dim must name one dimension, got \('band', 'time'\)$",
            lambda: named.group_norm(X, groups=1, channel_dim=("band", "time"), dim=()),
        ),
        (
            ValueError,
            r"^dim must not name 'band', the dimension of the channels$",
            lambda: named.instance_norm(X, channel_dim="band", dim=("band", "time")),
        ),
        (
            ValueError,
            r"^groups must divide the 4 channels of x, got 3$",
            lambda: named.group_norm(X, groups=3, channel_dim="band", dim="time"),
        ),
        (
            ValueError,
            r"^gamma must have dimensions of x, .*, got 'depth'$",
            lambda: named.layer_norm(X, xr.DataArray(np.ones(5), dims="depth"), dim="time"),
        ),
        (
            ValueError,
            r"^gamma must have 5 elements along 'time', as x has, got 4$",
            lambda: named.layer_norm(X, xr.DataArray(np.ones(4), dims="time"), dim="time"),
        ),
        (
            ValueError,
            r"^gamma must be a DataArray or have shape \(5,\), for the dimensions \('time',\), got",
            lambda: named.layer_norm(X, np.ones(4), dim="time"),
        ),
        (
            TypeError,
            r"^gamma must be an array or a DataArray, got a Dataset$",
            lambda: named.layer_norm(X, X.to_dataset(), dim="time"),
        ),
        (
            ValueError,
            r"^running_mean must have the dimensions \('band',\), got \('time',\)$",
            lambda: named.batch_norm(
                X, channel_dim="band", running_mean=G["time",], running_var=G["band",]
            ),
        ),
        (
            ValueError,
            r"^running_mean must be given when training is False, got None$",
            lambda: named.batch_norm(X, channel_dim="band", training=False),
        ),
        (
            TypeError,
            r"^running_mean must be a DataArray or an array to be updated, got list$",
            lambda: named.batch_norm(
                X, channel_dim="band", running_mean=[0.0] * 4, running_var=[1.0] * 4
            ),
        ),
        (
            ValueError,
            r"^running_mean is updated in place, so that all arrays must be in memory",
            lambda: named.batch_norm(X.chunk(), channel_dim="band", **statistics()),
        ),
        (
            ValueError,
            r"^ddof must be less than the 5 normalized elements, got 5$",
            lambda: named.standard_normal_variate(X.chunk(sample=1), dim="time", ddof=5),
        ),
        (
            ValueError,
            r"^eps must be at least 0, got -1$",
            lambda: named.batch_norm(
                X.chunk(sample=1), channel_dim="band", training=False, eps=-1, **statistics()
            ),
        ),
        (TypeError, r"^keep_attrs must be", lambda: named.rms_norm(X, dim="time", keep_attrs=1)),
        (TypeError, r"^x must have dtype", lambda: named.rms_norm(X.astype(str), dim="time")),
    ],
)
def test_errors(error, message, call):
    with pytest.raises(error, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_without_the_library():
    script = (
        "import sys; sys.modules['xarray'] = None\n"
        "try: import numnorm.xarray\n"
        "except ImportError as error: print(error)"
    )
    expected = 'numnorm.xarray needs xarray: pip install "numnorm[xarray]"'
    assert in_new_process("-c", script).strip() == expected
