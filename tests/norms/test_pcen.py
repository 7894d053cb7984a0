"""PCEN against its definition, librosa, numerical gradients, and itself in chunks and elsewhere."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
from gradients import TOLERANCE, numerical_gradients
from lazy_norms import computed, divided

import numnorm

RNG = np.random.default_rng(3)
X = RNG.exponential(size=(3, 12))
X[1, 4] = 300.0  # an onset
DY = RNG.normal(size=X.shape)
GAPS = np.where(RNG.random(X.shape) < 0.3, np.nan, X)
MASK = RNG.random(X.shape) < 0.7
PARAMETERS = {
    "numbers": (0.1, 0.98, 2.0, 0.5),
    "large": (0.7, 1.3, 10.0, 2.0),
    "of channels": (0.3, *RNG.uniform(0.3, 0.9, (3, 3, 1))),
    "of all kinds": (0.3, RNG.uniform(0.3, 0.9, 12), RNG.uniform(1, 2, (3, 12)), np.array(0.4)),
}
each_kind = pytest.mark.parametrize("kind", PARAMETERS)
each_gap = pytest.mark.parametrize("gaps", ["none", "where", "omit", "both"])

# librosa 0.11.0: librosa.pcen(STORED, **options), and with zi=(1 - b) * STORED[:, :1].
STORED = np.array([[1.0, 4.0, 0.0, 2.0, 100.0], [0.5, 0.25, 8.0, 8.0, 0.0]])
OF_LIBROSA = [
    (
        {"b": 0.25, "eps": 1e-6},
        [
            [0.3178369622944073, 0.6621869592717139, 0.0, 0.4182857479598613, 1.0531067294699477],
            [0.1888784175367947, 0.11730067276456886, 0.8683367541527927, 0.6120168884952795, 0.0],
        ],
        [
            [0.3178369622944073, 0.6621869592717139, 0.0, 0.4182857479598613, 1.0531067294699477],
            [0.3138578399367417, 0.18642919327249619, 0.9298876578012814, 0.6333992218714647, 0.0],
        ],
    ),
    (
        {"b": 0.025, "gain": 0.8, "bias": 10.0, "power": 0.25},
        [
            [0.04288084368697277, 0.1482426840231399, 0.0, 0.0787246420686268, 0.8307040994335351],
            [0.02204014241526572, 0.01128924277150118, 0.25760314929104294, 0.234760570220182, 0.0],
        ],
        [
            [0.04288084368697277, 0.1482426840231399, 0.0, 0.0787246420686268, 0.8307040994335351],
            [0.03749909723195528, 0.01923244822020692, 0.3591815814094701, 0.3092262218337897, 0.0],
        ],
    ),
    (
        {"b": 0.5, "gain": 1.0, "bias": 0.0, "power": 1.0, "eps": 0.1},
        [
            [0.9090909090909087, 1.5384615384615377, 0.0, 1.159420289855072, 1.9641541861036103],
            [0.588235294117647, 0.41666666666666663, 1.8390804597701145, 1.285140562248996, 0.0],
        ],
        [
            [0.9090909090909087, 1.5384615384615377, 0.0, 1.159420289855072, 1.9641541861036103],
            [0.8333333333333331, 0.5263157894736841, 1.8658892128279871, 1.2916246215943488, 0.0],
        ],
    ),
]


def counting_of(gaps):
    """An array with or without NaN, the keywords of a call, and which elements count."""
    x = GAPS if gaps in ("omit", "both") else X
    options = {"where": MASK} if gaps in ("where", "both") else {}
    if x is GAPS:
        options["nan_policy"] = "omit"
    return x, options, options.get("where", True) & ~np.isnan(x)


def definition(x, alpha, gain, bias, power, kept=None, eps=1e-6):
    """Y and the mean, step by step; what is left out is 0."""
    x, alpha = np.asarray(x, np.longdouble), np.longdouble(alpha)
    kept = np.ones(x.shape, bool) if kept is None else kept
    mean = np.full(x.shape, np.nan, np.longdouble)
    for row, counts, means in zip(x, kept, mean, strict=True):
        last, at = np.longdouble("nan"), None
        for t, value in enumerate(row):
            if counts[t]:
                rest = (1 - alpha) ** (t - at) if at is not None else 0
                share = alpha / (alpha + rest)
                last, at = (value if at is None else last + share * (value - last)), t
            means[t] = last
    power = np.asarray(power, np.longdouble)
    y = (x / (eps + mean) ** gain + bias) ** power - bias**power
    return np.where(kept, y, 0), mean


@each_kind
@each_gap
def test_definition(kind, gaps):
    x, options, kept = counting_of(gaps)
    y, mean = numnorm.pcen_forward(x, *PARAMETERS[kind], **options, fill=0)
    expected, means = definition(x, *PARAMETERS[kind], kept)
    np.testing.assert_allclose(y, expected.astype(float), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(mean, means.astype(float), rtol=1e-14)
    same = numnorm.pcen(x, *PARAMETERS[kind], **options, fill=0)
    np.testing.assert_array_equal(same, y)


def after_ones(channels):
    """The state after a long signal of 1, with which librosa begins by default."""
    zeros = np.zeros(channels)
    return numnorm.ExponentialState(1.0, zeros + 1.0, zeros, zeros)


@pytest.mark.parametrize("options, after_one, after_first", OF_LIBROSA)
def test_stored_values_of_librosa(options, after_one, after_first):
    ours = {"alpha" if name == "b" else name: value for name, value in options.items()}
    y = numnorm.pcen_step(STORED, state=after_ones(2), **ours)[0]
    np.testing.assert_allclose(y, after_one, rtol=1e-12)
    np.testing.assert_allclose(numnorm.pcen(STORED, **ours), after_first, rtol=1e-12)


@pytest.mark.parametrize("options", [options for options, *_ in OF_LIBROSA])
def test_librosa(options):
    librosa = pytest.importorskip("librosa")
    ours = {"alpha" if name == "b" else name: value for name, value in options.items()}
    for axis in (-1, 0):
        x = X if axis == -1 else X.T
        first = (1 - options["b"]) * x.take([0], axis)
        expected = librosa.pcen(x, axis=axis, zi=first, **options)
        np.testing.assert_allclose(numnorm.pcen(x, axis=axis, **ours), expected, rtol=1e-11)
        y, state = numnorm.pcen_step(x, state=after_ones(3), axis=axis, **ours)
        expected, left = librosa.pcen(x, axis=axis, return_zf=True, **options)
        np.testing.assert_allclose(y, expected, rtol=1e-11)
        np.testing.assert_allclose((1 - options["b"]) * state.mean, left.ravel(), rtol=1e-11)


def test_small_values_beside_the_bias_keep_their_digits():
    x = np.full((1, 3), 1e-20)
    y = numnorm.pcen(x, 0.5, gain=0)
    np.testing.assert_allclose(y, 1e-20 * 0.5 / np.sqrt(2), rtol=1e-15)


def test_silence_is_zero():
    for bias in (0.0, 2.0):
        np.testing.assert_array_equal(numnorm.pcen(np.zeros(4), 0.1, bias=bias), np.zeros(4))


@each_kind
@each_gap
def test_gradients(kind, gaps):
    x, options, kept = counting_of(gaps)
    parameters = PARAMETERS[kind]

    def function(values, *own):
        return definition(values, *own, kept)[0]

    mean = numnorm.pcen_forward(x, *parameters, **options).mean
    found = numnorm.pcen_backward(DY, x, mean, *parameters, **options)
    filled = np.where(kept, x, 1.0)
    expected = numerical_gradients(function, [filled, *parameters], DY)
    for gradient, numerical, argument in zip(found, expected, (x, *parameters), strict=True):
        assert (gradient.shape, gradient.dtype) == (np.shape(argument), np.float64)
        largest = max(1.0, float(abs(numerical).max()))
        np.testing.assert_allclose(
            gradient, numerical.astype(float), rtol=0, atol=100 * TOLERANCE * largest
        )


def test_gradients_without_a_bias():
    parameters = 0.3, 0.9, 0.0, 0.5
    mean = numnorm.pcen_forward(X, *parameters).mean
    found = numnorm.pcen_backward(DY, X, mean, *parameters)
    expected = numerical_gradients(lambda x, a, g, p: definition(x, a, g, 0.0, p)[0],
                                   [X, 0.3, 0.9, 0.5], DY)  # fmt: skip
    for gradient, numerical in zip((*found[:3], found.dpower), expected, strict=True):
        np.testing.assert_allclose(gradient, numerical.astype(float), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int16])
def test_other_dtypes_are_computed_in_float64(dtype):
    x = (10 * X).clip(0, 1000).astype(dtype)
    y, mean = numnorm.pcen_forward(x, 0.1)
    wide = numnorm.pcen(x.astype(float), 0.1)
    assert y.dtype == (np.float64 if dtype == np.int16 else dtype)
    np.testing.assert_array_equal(y, wide.astype(y.dtype))
    gain = np.full((3, 1), 0.9, np.float32)
    found = numnorm.pcen_backward(DY, x, mean, 0.1, gain)
    assert (found.dx.dtype, found.dgain.dtype) == (y.dtype, np.float32)


def test_out():
    y, mean = numnorm.pcen_forward(X, 0.1)
    x = X.copy()
    assert numnorm.pcen(x, 0.1, out=x) is x
    np.testing.assert_array_equal(x, y)
    expected = numnorm.pcen_backward(DY, X, mean, 0.1).dx
    dx = DY.copy()
    assert numnorm.pcen_backward(dx, X, mean, 0.1, out=dx).dx is dx
    np.testing.assert_array_equal(dx, expected)
    with pytest.raises(ValueError, match="out must have shape"):
        numnorm.pcen(X, 0.1, out=np.empty(3))


def test_fill():
    nan = np.nan
    y = numnorm.pcen([1.0, nan, 1.0, 5.0], 0.5, where=[True, True, True, False], nan_policy="omit")
    expected = numnorm.pcen([1.0, 1.0], 0.5)
    np.testing.assert_array_equal(y, [expected[0], nan, expected[0], 0.0])
    with pytest.raises(ValueError, match="x must not contain NaN"):
        numnorm.pcen([1.0, nan], 0.5, nan_policy="raise")


@each_gap
@pytest.mark.parametrize("axis", [0, 1])
def test_chunks_of_a_stream(gaps, axis):
    x, options, _ = counting_of(gaps)
    where = options.pop("where", None)
    gain = RNG.uniform(0.3, 0.9, (3, 1) if axis == 1 else 12)
    expected = numnorm.pcen(x, 0.3, gain, axis=axis, where=where, **options)
    borders = [0, 1, 1, 3] if axis == 0 else [0, 1, 5, 5, 12]
    state, parts = None, []
    for start, stop in pairwise(borders):
        part = (slice(None),) * axis + (slice(start, stop),)
        own = None if where is None else where[part]
        y, state = numnorm.pcen_step(x[part], 0.3, state, gain, axis=axis, where=own, **options)
        state = pickle.loads(pickle.dumps(state))
        parts.append(y)
    np.testing.assert_allclose(np.concatenate(parts, axis), expected, rtol=1e-15)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"alpha": 0.0}, r"^alpha must be above 0 and at most 1, got 0$"),
        ({"alpha": 1.5}, r"^alpha must be above 0 and at most 1, got 1.5$"),
        ({"alpha": np.ones(3)}, r"^alpha must be a number, got an object of type ndarray$"),
        ({"gain": -1.0}, r"^gain must be at least 0, got -1$"),
        ({"gain": np.ones(3)}, r"^gain must broadcast against x of shape \(3, 12\), got \(3,\)$"),
        ({"bias": None}, r"^bias must be an array"),
        ({"power": 0}, r"^power must be above 0, got 0$"),
        ({"power": np.ones(2, complex)}, r"^power must hold real numbers, got dtype complex128$"),
        ({"eps": 0}, r"^eps must be above 0, got 0$"),
        ({"axis": 2}, r"^axis must be"),
        ({"time_constant": 0.4}, r"^pcen\(\) got an unexpected keyword argument"),
    ],
)
def test_wrong_arguments(options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        numnorm.pcen(X, **{"alpha": 0.1, **options})


def test_wrong_arrays():
    mean = numnorm.pcen_forward(X, 0.1).mean
    with pytest.raises(ValueError, match=r"^dy must have shape \(3, 12\), the shape of x, got"):
        numnorm.pcen_backward(DY[:2], X, mean, 0.1)
    with pytest.raises(TypeError, match=r"^state must be an ExponentialState, got float$"):
        numnorm.pcen_step(X, 0.1, 0.98)


def test_empty():
    for shape in ((0,), (3, 0), (0, 4)):
        x = np.empty(shape)
        y, mean = numnorm.pcen_forward(x, 0.1)
        found = numnorm.pcen_backward(x, x, mean, 0.1)
        assert y.shape == mean.shape == found.dx.shape == shape
        assert found.dalpha == found.dgain == 0


# Elsewhere


def test_tensors():
    torch = pytest.importorskip("torch")
    y, mean = numnorm.pcen_forward(torch.from_numpy(X), 0.1)
    found = numnorm.pcen_backward(torch.from_numpy(DY), torch.from_numpy(X), mean, 0.1)
    expected = numnorm.pcen_backward(DY, X, mean.numpy(), 0.1)
    np.testing.assert_array_equal(y.numpy(), numnorm.pcen(X, 0.1))
    for result, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(result.numpy(), other)


@each_kind
@each_gap
@pytest.mark.parametrize("library", ["dask.array", "dask_array"])
def test_lazy_arrays(kind, gaps, library):
    library = pytest.importorskip(library)
    x, options, _ = counting_of(gaps)
    rng = np.random.default_rng(1)
    parameters = PARAMETERS[kind]

    def lazy(array):
        return library.from_array(array, chunks=divided(array.shape, rng))

    own = [lazy(p) if np.ndim(p) else p for p in parameters]
    result = computed(numnorm.pcen(lazy(x), *own, **options))
    np.testing.assert_allclose(result, numnorm.pcen(x, *parameters, **options), rtol=1e-15)
    expected = numnorm.pcen_forward(x, *parameters, **options)
    found = computed(numnorm.pcen_forward(lazy(x), *parameters, **options))
    assert isinstance(found, numnorm.PCENNormalized)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-15)
    arrays = DY, x, expected.mean
    found = computed(numnorm.pcen_backward(*map(lazy, arrays), *own, **options))
    for one, other in zip(
        found, numnorm.pcen_backward(*arrays, *parameters, **options), strict=True
    ):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)


def test_wrong_arguments_of_lazy_arrays_are_errors_of_the_call():
    lazy = pytest.importorskip("dask.array").from_array(X, chunks=2)
    with pytest.raises(ValueError, match=r"^alpha must be above 0 and"):
        numnorm.pcen(lazy, 2.0)
    with pytest.raises(ValueError, match=r"^gain must broadcast against x"):
        numnorm.pcen(lazy, 0.1, np.ones(3))


@pytest.mark.parametrize("chunked", [False, True])
def test_xarray(chunked):
    xr = pytest.importorskip("xarray")
    named = pytest.importorskip("numnorm.xarray")
    x = xr.DataArray(X, dims=("band", "time"), coords={"band": list("abc")})
    gain = np.array([0.5, 0.7, 0.9])
    expected = numnorm.pcen(X, 0.1, gain[:, None], where=MASK)
    if chunked:
        pytest.importorskip("dask.array")
        x = x.chunk({"band": 2, "time": 5})
    of_band = xr.DataArray(gain, {"band": list("abc")}, "band")
    where = xr.DataArray(MASK.T, dims=("time", "band"))
    for own in (of_band, gain[:, None]):
        y = named.pcen(x, 0.1, own, dim="time", where=where)
        assert (y.chunks is not None) == chunked
        np.testing.assert_allclose(y.values, expected, rtol=1e-15)
    same = named.pcen(x.T, xr.DataArray(0.1), of_band, dim="time", where=where)
    np.testing.assert_allclose(same.values, expected.T, rtol=1e-15)
    with pytest.raises(ValueError, match="gain must have the labels of x"):
        named.pcen(x, 0.1, of_band.assign_coords(band=list("abd")), dim="time")


@each_kind
@each_gap
def test_autograd(kind, gaps):
    autograd = pytest.importorskip("autograd")
    differentiable = pytest.importorskip("numnorm.autograd")
    x, options, kept = counting_of(gaps)
    parameters = PARAMETERS[kind]
    dy = np.where(kept, DY, 0.0)

    def loss(*arrays):
        return np_sum(differentiable.pcen(*arrays, **options, fill=0) * dy)

    np_sum = pytest.importorskip("autograd.numpy").sum
    mean = numnorm.pcen_forward(x, *parameters, **options).mean
    expected = numnorm.pcen_backward(dy, x, mean, *parameters, **options)
    for number, other in enumerate(expected):
        found = autograd.grad(loss, number)(x, *parameters)
        np.testing.assert_allclose(found, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("wide", [False, True])
@each_kind
def test_jax(kind, wide):
    jax = pytest.importorskip("jax")
    in_jax = pytest.importorskip("numnorm.jax")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", wide)
    try:
        parameters, x = PARAMETERS[kind], jax.numpy.array(X)
        plain = np.asarray(x)
        close = {"rtol": 1e-12, "atol": 1e-13} if wide else {"rtol": 1e-4, "atol": 1e-4}

        def loss(x, *own):
            return (in_jax.pcen(x, *own, where=MASK) * DY).sum()

        y = jax.jit(lambda x: in_jax.pcen(x, *parameters, where=MASK))(x)
        assert y.dtype == x.dtype
        np.testing.assert_allclose(y, numnorm.pcen(plain, *parameters, where=MASK), **close)
        mean = numnorm.pcen_forward(plain, *parameters, where=MASK).mean
        expected = numnorm.pcen_backward(DY, plain, mean, *parameters, where=MASK)
        np.testing.assert_allclose(jax.grad(loss)(x, *parameters), expected.dx, **close)
        found = jax.jit(jax.grad(loss, range(5)))(x, *parameters)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, **close)
        with pytest.raises(ValueError, match="alpha must be above 0 and"):
            in_jax.pcen(x, 2.0)
        with pytest.raises(ValueError, match="gain must broadcast"):
            jax.jit(in_jax.pcen)(x, 0.1, np.ones(5))
        with pytest.raises(ValueError, match=r"alpha must have shape \(\), a number"):
            jax.jit(in_jax.pcen)(x, np.ones(3))
    finally:
        jax.config.update("jax_enable_x64", before)


def test_a_state_of_steps_with_times_is_refused():
    _, state = numnorm.exponential_norm_step([1.0, 2.0], halflife=1.0, times=[0.0, 1.0])
    with pytest.raises(ValueError, match=r"^state must be of steps without times, got one of"):
        numnorm.pcen_step([1.0, 2.0], 0.5, state)
