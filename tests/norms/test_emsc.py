"""Extended multiplicative signal correction, compared with least squares and with chemotools."""

import numpy as np
import pytest

import numnorm

WIDTH = 40
T = np.linspace(-1.0, 1.0, WIDTH)
REFERENCE = np.exp(-8.0 * (T - 0.1) ** 2)


def spectra(count=7, dtype="float64", offset=0.0):
    """Spectra that differ from the reference by a gain, a baseline and noise."""
    rng = np.random.default_rng(0)
    gain, level, slope = rng.uniform(0.5, 2.0, (3, count, 1))
    noise = rng.normal(0.0, 0.01, (count, WIDTH))
    return (gain * REFERENCE + level + slope * T + noise + offset).astype(dtype)


def fitted(x, reference, degree=2, weights=None):
    """The definition: a fit of each spectrum by LAPACK."""
    basis = np.stack([reference, *(T**k for k in range(degree + 1))], axis=1)
    rows = []
    for row, weight in zip(x, np.broadcast_to(1.0 if weights is None else weights, x.shape)):
        root = np.sqrt(weight)
        solved = np.linalg.lstsq(basis * root[:, None], row * root, rcond=None)[0]
        rows.append((row - basis[:, 1:] @ solved[1:]) / solved[0])
    return np.array(rows)


WEIGHTS = np.random.default_rng(1).random(WIDTH) + 0.1
MASK = np.random.default_rng(2).random((7, WIDTH)) > 0.1


@pytest.mark.parametrize("degree", [0, 1, 2, 5])
@pytest.mark.parametrize("weights", [None, WEIGHTS, WEIGHTS * MASK])
def test_definition(degree, weights):
    y = numnorm.emsc(spectra(), REFERENCE, degree=degree, weights=weights)
    # LAPACK's own rounding, and the condition of powers of t: about 1e-14 here.
    expected = fitted(spectra(), REFERENCE, degree, weights)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype, atol", [("float32", 1e-6), ("float16", 2e-3)])
def test_dtypes_are_rounded_once(dtype, atol):
    x = spectra(dtype=dtype)
    y = numnorm.emsc(x, REFERENCE)
    assert y.dtype == dtype
    np.testing.assert_allclose(y, fitted(x.astype(float), REFERENCE), rtol=0, atol=atol)


def test_no_offset_costs_digits():
    # The spectra lose digits to the offset themselves: 1e6 has 1e-10 between neighbours.
    y = numnorm.emsc(spectra(offset=1e6), REFERENCE)
    np.testing.assert_allclose(y, numnorm.emsc(spectra(), REFERENCE), rtol=0, atol=1e-9)


def test_degree_0_is_multiplicative_scatter_correction():
    sklearn = pytest.importorskip("numnorm.sklearn")
    estimator = sklearn.MultiplicativeScatterCorrection(REFERENCE)
    expected = estimator.fit_transform(spectra())
    y = numnorm.emsc(spectra(), REFERENCE, degree=0)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-13)


def test_values_of_chemotools():
    # chemotools 0.5.0, ExtendedMultiplicativeScatterCorrection(order=1, reference=r, weights=w).
    x = [[3.0, 5.2, 8.9, 6.0, 4.0], [1.0, 2.0, 4.5, 2.5, 1.5]]
    reference = [1.0, 2.0, 4.0, 2.5, 1.5]
    expected = [
        [0.98397259588938, 2.10181527229084, 3.98302245336800, 2.50542581387208, 1.48584787718158],
        [1.02231705610746, 1.92220512102980, 4.10360990625437, 2.44046453057227, 1.63166363509165],
    ]
    # Its weights multiply deviations, and those of numnorm their squares.
    weights = np.array([1.0, 0.5, 1.0, 2.0, 1.0]) ** 2
    y = numnorm.emsc(x, reference, degree=1, weights=weights)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-12)


@pytest.mark.chemotools
@pytest.mark.parametrize("order", [0, 2, 4])
def test_chemotools(order):
    scatter = pytest.importorskip("chemotools.scatter")
    estimator = scatter.ExtendedMultiplicativeScatterCorrection(
        order=order, reference=REFERENCE, weights=WEIGHTS
    )
    expected = estimator.fit_transform(spectra())
    y = numnorm.emsc(spectra(), REFERENCE, degree=order, weights=WEIGHTS**2)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"degree": 0},
        {"weights": WEIGHTS},
        {"where": MASK},
        {"where": MASK, "weights": WEIGHTS, "degree": 1},
    ],
)
def test_gradient_is_that_of_differences(options):
    x, dy = spectra(), np.random.default_rng(3).normal(size=(7, WIDTH))
    _, slope = numnorm.emsc_forward(x, REFERENCE, **options)
    dx = numnorm.emsc_backward(dy, x, slope, REFERENCE, **options)
    direction = np.random.default_rng(4).normal(size=x.shape)

    def loss(step):
        return np.sum(dy * numnorm.emsc(x + step * direction, REFERENCE, **options))

    # Central differences: 1e-10 of truncation and 1e-10 of rounding for this step.
    expected = (loss(1e-5) - loss(-1e-5)) / 2e-5
    np.testing.assert_allclose(np.sum(dx * direction), expected, rtol=1e-7)


def test_missing_values_are_left_out_of_the_fit():
    x = np.where(MASK, spectra(), np.nan)
    y = numnorm.emsc(x, REFERENCE, nan_policy="omit")
    assert np.array_equal(np.isnan(y), ~MASK)
    np.testing.assert_allclose(y[MASK], fitted(spectra(), REFERENCE, weights=MASK)[MASK], 1e-10)
    filled = numnorm.emsc(spectra(), REFERENCE, where=MASK, fill=7.0)
    assert np.all(filled[~MASK] == 7.0)
    assert np.array_equal(filled[MASK], y[MASK])


def test_nan_stays_in_its_spectrum():
    x = spectra()
    x[2, 3] = np.nan
    y = numnorm.emsc(x, REFERENCE)
    assert np.isnan(y[2]).all()
    others = [0, 1, 3, 4, 5, 6]
    assert np.array_equal(y[others], numnorm.emsc(spectra(), REFERENCE)[others])


def test_spectrum_without_reference_becomes_its_baseline():
    y, slope = numnorm.emsc_forward(np.ones((1, WIDTH)), REFERENCE, degree=0)
    assert slope == 0.0
    np.testing.assert_allclose(y, np.full((1, WIDTH), REFERENCE.mean()), rtol=1e-14)
    assert not numnorm.emsc_backward(y, np.ones((1, WIDTH)), slope, REFERENCE, degree=0).any()


@pytest.mark.parametrize("spectrum", [np.full(WIDTH, 3.0), T + 0.3, 1e6 + T**2])
def test_rounding_is_no_slope(spectrum):
    y, slope = numnorm.emsc_forward(spectrum[np.newaxis], spectra()[0])
    assert slope == 0.0
    # The baseline of the reference, whatever the spectrum is.
    expected = numnorm.emsc(np.zeros((1, WIDTH)), spectra()[0])
    np.testing.assert_array_equal(y, expected)


def test_spectra_of_which_too_little_counts_are_nan_alone():
    x, keep = spectra(), np.ones((7, WIDTH), bool)
    keep[0], keep[1, 3:] = False, False
    y = numnorm.emsc(x, REFERENCE, where=keep, fill=5.0)
    assert np.all(y[0] == 5.0) and np.isnan(y[1, :3]).all() and np.all(y[1, 3:] == 5.0)
    np.testing.assert_array_equal(y[2:], numnorm.emsc(x, REFERENCE)[2:])
    missing = np.where(keep, x, np.nan)
    y = numnorm.emsc(missing, REFERENCE, nan_policy="omit")
    assert np.isnan(y[:2]).all() and np.isfinite(y[2:]).all()


SHORT = np.array([[1.0, 2.0, 4.0], [3.0, 5.0, 9.0]]), np.array([1.0, 2.0, 4.0])


@pytest.mark.parametrize(
    "degree, weights, good",
    [
        (0, [[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]], [True, False]),
        (0, [[0.0, 1.0, 0.0], [1.0, 2.0, 1.0]], [False, True]),
        (0, [1.0, 0.0, 0.0], [False, False]),
        (1, [1.0, 1.0, 0.0], [False, False]),
        (0, [[1.0], [0.0]], [True, False]),
        (0, 0.0, [False, False]),
    ],
)
def test_spectra_of_too_little_weight_are_nan_alone(degree, weights, good):
    x, reference = SHORT
    options = {"degree": degree}
    full = np.broadcast_to(weights, x.shape)
    y, slope = numnorm.emsc_forward(x, reference, weights=weights, **options)
    dx = numnorm.emsc_backward(x, x, slope, reference, weights=weights, **options)
    for result in (y, slope, dx):
        assert np.array_equal(np.isfinite(result.reshape(2, -1)).all(axis=1), good)
    for k in range(2):
        one = numnorm.emsc_forward(x[k : k + 1], reference, weights=full[k : k + 1], **options)
        np.testing.assert_array_equal(one.y[0], y[k])
        np.testing.assert_array_equal(one.slope[0], slope[k])


@pytest.mark.parametrize("weights", [[[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]], [1.0, 0.0, 0.0], 0, 2.0])
def test_chunks_choose_no_result(weights):
    dask_array = pytest.importorskip("dask.array")
    x, reference = SHORT
    expected = numnorm.emsc_forward(x, reference, degree=0, weights=weights)
    for chunks in ((1, 3), (2, 1), (2, 3)):
        lazy = dask_array.from_array(x, chunks=chunks)
        found = numnorm.emsc_forward(lazy, reference, degree=0, weights=weights)
        for mine, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(mine.compute(), other)


@pytest.mark.parametrize("weights", [[1.0, 0.0], [[1.0, 0.0]]])
def test_weights_that_lie_along_another_axis(weights):
    # The weights of a row are the same numbers: a 0 leaves nothing of the second one.
    x, reference = SHORT
    y = numnorm.emsc(x.T, reference, axis=0, degree=0, weights=weights)
    np.testing.assert_allclose(y[:, 0], reference, rtol=1e-14)
    assert np.isnan(y[:, 1]).all()


@pytest.mark.parametrize("rows", [slice(None), slice(0, 1), slice(0, 0)])
def test_an_error_of_the_arguments_depends_on_no_spectrum(rows):
    x, keep = spectra()[rows], MASK[rows]
    for options in ({}, {"where": keep}, {"weights": WEIGHTS}, {"weights": keep * 1.0}):
        with pytest.raises(ValueError, match="reference must not be a polynomial of degree 2"):
            numnorm.emsc(x, T, **options)
    with pytest.raises(ValueError, match="x must have at least 2 wavelengths for degree 0, got 1"):
        numnorm.emsc(x[:, :1], REFERENCE[:1], degree=0)


@pytest.mark.parametrize(
    "number", [2, 0.5, np.float32(2.0), np.array(2.0), np.full((7, 1), 3.0), np.ones((1, 1))]
)
def test_weights_that_broadcast(number):
    x, dy = spectra(), spectra(offset=1.0)
    y, slope = numnorm.emsc_forward(x, REFERENCE, weights=number)
    # A scale of weights is no matter but of rounding.
    np.testing.assert_allclose(y, numnorm.emsc(x, REFERENCE), rtol=0, atol=1e-13)
    dx = numnorm.emsc_backward(dy, x, slope, REFERENCE, weights=number)
    expected = numnorm.emsc_backward(dy, x, slope, REFERENCE)
    np.testing.assert_allclose(dx, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "where", [True, 1, np.array(True), MASK[:, :1], MASK[:1], MASK[0], np.ones(1, bool)]
)
def test_masks_that_broadcast(where):
    full = np.broadcast_to(where, MASK.shape).astype(bool)
    y = numnorm.emsc(spectra(), REFERENCE, where=where)
    np.testing.assert_array_equal(y, numnorm.emsc(spectra(), REFERENCE, where=full))
    x = spectra()[0]
    y = numnorm.emsc(x, REFERENCE, where=full[0])
    assert y.shape == x.shape


def test_spectra_without_wavelengths_have_no_slope():
    x, reference = np.ones((8, 3, 3, 0)), np.ones(0)
    options = {"degree": 0, "where": np.ones(x.shape, bool), "nan_policy": "omit"}
    y, slope = numnorm.emsc_forward(x, reference, **options)
    assert y.shape == x.shape
    assert slope.shape == (8, 3, 3) and np.isnan(slope).all()
    assert numnorm.emsc_backward(x, x, slope, reference, **options).shape == x.shape
    dask_array = pytest.importorskip("dask.array")
    lazy = numnorm.emsc_forward(dask_array.from_array(x, chunks=(3, 2, 1, 1)), reference, **options)
    np.testing.assert_array_equal(lazy.slope.compute(), slope)
    assert lazy.y.compute().shape == x.shape


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e200, 1e300])
def test_no_scale_matters(scale):
    y = numnorm.emsc(spectra(), REFERENCE, weights=WEIGHTS)
    scaled = numnorm.emsc(spectra(), REFERENCE, weights=WEIGHTS * scale)
    np.testing.assert_allclose(scaled, y, rtol=1e-12, atol=1e-13)
    scaled = numnorm.emsc(spectra() * scale, REFERENCE * scale)
    np.testing.assert_allclose(scaled / scale, numnorm.emsc(spectra(), REFERENCE), 1e-11, 1e-13)


def test_many_patterns_of_missing_values():
    rng = np.random.default_rng(5)
    x = np.tile(spectra(), (100, 1))
    x[rng.random(x.shape) < 0.02] = np.nan
    y = numnorm.emsc(x, REFERENCE, nan_policy="omit")
    kept = ~np.isnan(x)
    expected = fitted(np.nan_to_num(x), REFERENCE, weights=kept)
    np.testing.assert_allclose(y[kept], expected[kept], rtol=0, atol=1e-12)


def test_axis_layout_and_out():
    x = spectra()
    y = numnorm.emsc(x, REFERENCE)
    assert np.array_equal(numnorm.emsc(x.T, REFERENCE, axis=0), y.T)
    assert np.array_equal(numnorm.emsc(x.reshape(7, 1, WIDTH), REFERENCE)[:, 0], y)
    assert numnorm.emsc(x, REFERENCE, out=x) is x
    assert np.array_equal(x, y)
    assert numnorm.emsc(x[:0], REFERENCE).shape == (0, WIDTH)


@pytest.mark.parametrize("options", [{}, {"where": MASK}, {"weights": WEIGHTS}])
def test_lazy_spectra_in_any_chunks(options):
    dask_array = pytest.importorskip("dask.array")
    x, dy = spectra(), spectra(offset=1.0)
    lazy = dask_array.from_array(x, chunks=(3, 11))
    y, slope = numnorm.emsc_forward(lazy, REFERENCE, **options)
    expected = numnorm.emsc_forward(x, REFERENCE, **options)
    assert np.array_equal(y.compute(), expected.y)
    assert np.array_equal(slope.compute(), expected.slope)
    if not options:
        dx = numnorm.emsc_backward(dy, lazy, slope, REFERENCE).compute()
        assert np.array_equal(dx, numnorm.emsc_backward(dy, x, expected.slope, REFERENCE))


def test_spectra_with_names_of_dimensions():
    xarray = pytest.importorskip("xarray")
    functions = pytest.importorskip("numnorm.xarray")
    x = xarray.DataArray(spectra().T, dims=("wavelength", "sample"))
    y = functions.emsc(x, xarray.DataArray(REFERENCE, dims="wavelength"), dim="wavelength")
    assert np.array_equal(y.values.T, numnorm.emsc(spectra(), REFERENCE))


def test_autograd():
    autograd = pytest.importorskip("autograd")
    functions = pytest.importorskip("numnorm.autograd")
    x, dy = spectra(), spectra(offset=1.0)
    dx = autograd.grad(lambda x: (functions.emsc(x, REFERENCE) * dy).sum())(x)
    _, slope = numnorm.emsc_forward(x, REFERENCE)
    assert np.array_equal(dx, numnorm.emsc_backward(dy, x, slope, REFERENCE))


@pytest.mark.jax
def test_jax():
    jax = pytest.importorskip("jax")
    functions = pytest.importorskip("numnorm.jax")
    x, dy = spectra(dtype="float32"), spectra(dtype="float32", offset=1.0)
    y = jax.jit(functions.emsc)(x, REFERENCE)
    # JAX makes the reference float32.
    np.testing.assert_allclose(y, numnorm.emsc(x, REFERENCE.astype("float32")), rtol=1e-6)
    dx = jax.grad(lambda x: (functions.emsc(x, REFERENCE) * dy).sum())(x)
    _, slope = numnorm.emsc_forward(x, REFERENCE)
    expected = numnorm.emsc_backward(dy, x, slope, REFERENCE)
    np.testing.assert_allclose(dx, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.jax
@pytest.mark.parametrize(
    "width, reference, options, message",
    [
        (2, np.ones(2), {"degree": 2}, "degree must be at most 0 for 2 wavelengths, got 2"),
        (1, np.ones(1), {"degree": 0}, "x must have at least 2 wavelengths for degree 0, got 1"),
        (WIDTH, np.ones(WIDTH), {"degree": 0}, "reference must not be a polynomial of degree 0"),
        (4, [1.0, np.nan, 2.0, 3.0], {"degree": 0}, "reference must be finite, got nan"),
    ],
)
def test_errors_when_jax_traces(width, reference, options, message):
    jax = pytest.importorskip("jax")
    functions = pytest.importorskip("numnorm.jax")
    x = np.ones((2, width), "float32")

    def corrected(x):
        return functions.emsc(x, reference, **options).sum()

    for function in (corrected, jax.jit(corrected), jax.grad(corrected), jax.vmap(corrected)):
        with pytest.raises(ValueError, match=message):
            function(x)
    with pytest.raises(ValueError, match=message):
        jax.eval_shape(corrected, jax.ShapeDtypeStruct(x.shape, x.dtype))


@pytest.mark.jax
def test_references_that_jax_traces():
    jax = pytest.importorskip("jax")
    functions = pytest.importorskip("numnorm.jax")
    x = spectra(dtype="float32")
    expected = functions.emsc(x, REFERENCE)
    np.testing.assert_array_equal(jax.jit(functions.emsc)(x, REFERENCE), expected)
    ones = [1.0] * (WIDTH - 1)
    traced = jax.jit(lambda x, last: functions.emsc(x, [*ones, last], degree=0))(x, 2.0)
    np.testing.assert_array_equal(traced, functions.emsc(x, [*ones, 2.0], degree=0))
    with pytest.raises(TypeError, match="reference must be an array, got NoneType"):
        functions.emsc(x, None)


@pytest.mark.jax
@pytest.mark.parametrize("shape", [(), (WIDTH,), (7, WIDTH), (7, 1)])
def test_weights_that_jax_maps_alone(shape):
    jax = pytest.importorskip("jax")
    functions = pytest.importorskip("numnorm.jax")
    x, dy = spectra(dtype="float32"), spectra(dtype="float32", offset=1.0)
    reference = REFERENCE.astype("float32")
    weights = np.random.default_rng(6).random((3, *shape)).astype("float32")

    def pulled(x, weights):
        y, pull = jax.vjp(lambda x: functions.emsc(x, reference, weights=weights), x)
        return y, pull(dy)[0]

    found = jax.jit(jax.vmap(pulled, (None, 0)))(x, weights)
    # NumPy's bytes: both fit in float64, from the same numbers of float32.
    for k, own in enumerate(weights):
        y, slope = numnorm.emsc_forward(x, reference, weights=own)
        np.testing.assert_array_equal(found[0][k], y)
        dx = numnorm.emsc_backward(dy, x, slope, reference, weights=own)
        np.testing.assert_array_equal(found[1][k], dx)


def check_library(make, as_numpy):
    """Results, slopes and gradients are arrays of the library of x, with NumPy's bytes."""
    kind, every = type(make(T)), spectra(dtype="float32")
    for x, options in (
        (spectra(), {"where": MASK, "weights": WEIGHTS}),
        (every, {"nan_policy": "omit"}),
        (every[0], {"weights": 2.0}),
    ):
        dy = x + 1.0
        expected = numnorm.emsc_forward(x, REFERENCE, **options)
        found = numnorm.emsc_forward(make(x), make(REFERENCE), **options)
        of_numpy = numnorm.emsc_backward(dy, x, expected.slope, REFERENCE, **options)
        dx = [
            numnorm.emsc_backward(array, make(x), slope, REFERENCE, **options)
            for array, slope in ((make(dy), found.slope), (dy, expected.slope))
        ]
        for mine, other in zip((*found, *dx), (*expected, of_numpy, of_numpy), strict=True):
            assert type(mine) is kind
            assert as_numpy(mine).dtype == other.dtype
            np.testing.assert_array_equal(as_numpy(mine), other)


def test_arrays_of_array_api_strict():
    strict = pytest.importorskip("array_api_strict")
    check_library(strict.asarray, np.from_dlpack)


@pytest.mark.torch
def test_tensors():
    torch = pytest.importorskip("torch")
    check_library(torch.from_numpy, np.asarray)


@pytest.mark.parametrize(
    "error, message, arguments",
    [
        (ValueError, r"reference must have shape \(40,\)", {"reference": REFERENCE[:3]}),
        (ValueError, "reference must not be a polynomial of degree 2", {"reference": T}),
        (ValueError, "degree must be at least 0, got -1", {"degree": -1}),
        (ValueError, "degree must be at most 38 for 40 wavelengths, got 39", {"degree": 39}),
        (
            ValueError,
            "reference must be finite, got nan",
            {"reference": np.where(T > 0, REFERENCE, np.nan)},
        ),
        (TypeError, "reference must hold real numbers", {"reference": REFERENCE + 0j}),
        (ValueError, "axis must name one axis", {"axis": (0, 1)}),
        (TypeError, "use where", {"mask": MASK}),
        (ValueError, "weights must be finite and at least 0", {"weights": -WEIGHTS}),
    ],
)
def test_errors(error, message, arguments):
    with pytest.raises(error, match=message):
        numnorm.emsc(spectra(), **{"reference": REFERENCE, **arguments})
