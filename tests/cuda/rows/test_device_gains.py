"""Gamma and beta that broadcast against x, on a device: to the definition, and as on the host."""

import ml_dtypes
import numpy as np
import pytest
import reference
from broadcast_checks import CASES, check_broadcast
from host_calls import NormsOnDevice

import numnorm

DTYPES = [np.float16, ml_dtypes.bfloat16, np.float32, np.float64]
GAINS = {"layer_norm": (4, 1), "rms_norm": (1, 6), "batch_norm": (4, 6), "weight_norm": (4, 1)}


@pytest.fixture
def norms(imported):
    return NormsOnDevice(imported("torch"))


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(1.0, 2.0, shape)


def both_passes(norms, name, x, dy, gamma, **options):
    """Return y, what is saved, and the gradients."""
    y, *saved = getattr(norms, f"{name}_forward")(x, gamma, **options)
    return y, *saved, *getattr(norms, f"{name}_backward")(dy, x, *saved, gamma, **options)


def quiet(*arguments, **options):
    with np.errstate(all="ignore"):
        return both_passes(numnorm, *arguments, **options)


# Each case with two of the dtypes, as a simulated device takes its time.
EACH = [(case, DTYPES[i]) for k, case in enumerate(CASES) for i in (k % 4, (k + 2) % 4)]


@pytest.mark.parametrize("case, dtype", EACH, ids=str)
def test_forward_and_backward(norms, case, dtype):
    check_broadcast(norms, *case, dtype)


def test_any_order_of_threads(norms, order):
    for case in CASES[::4]:
        check_broadcast(norms, *case, np.float32)


@pytest.mark.parametrize("name", GAINS)
def test_every_library(library, name):
    x, dy, gamma = draw(4, 6), draw(4, 6, seed=1), draw(*GAINS[name], seed=2)
    expected = both_passes(numnorm, name, x, dy, gamma)
    there = library.take(x)
    found = both_passes(numnorm, name, there, library.take(dy), library.take(gamma))
    for got, wanted in zip(found, expected, strict=True):
        assert type(got) is type(there)
        np.testing.assert_allclose(got.host, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("x64", [True, False])
def test_statistics_are_saved_in_their_own_dtype(imported, x64):
    jax = imported("jax")
    jax.config.jax_enable_x64 = x64
    for dtype in (np.float16, np.float32):
        given = [jax.take(draw(4, 6, seed=k).astype(dtype)) for k in range(2)]
        gamma = jax.take(draw(4, 1, seed=2).astype(np.float32))
        found = both_passes(numnorm, "layer_norm", *given, gamma)
        wide = "float64" if x64 and dtype == np.float32 else "float32"
        assert [str(a.host.dtype) for a in found[1:3]] == [wide] * 2
        assert [a.host.dtype for a in found[3:]] == [dtype, np.float32, np.float32]


# Missing values


@pytest.mark.parametrize(
    "options",
    [{"where": draw(4, 6, seed=3) > 0}, {"nan_policy": "omit"}, {"weights": abs(draw(6, seed=4))}],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
@pytest.mark.parametrize("name", GAINS)
def test_missing_values_and_weights(norms, name, options, dtype):
    x, dy = draw(4, 6).astype(dtype), draw(4, 6, seed=1).astype(dtype)
    if "nan_policy" in options:
        x[1, 2] = x[3, 0] = dy[1, 2] = np.nan
    if "where" in options:
        x[~options["where"]] = np.inf
        dy[~options["where"]] = np.nan
    tolerance = 1e-11 if dtype == np.float64 else 4e-3  # several roundings of a float16
    for gamma in (draw(*GAINS[name], seed=2).astype(dtype), draw(4, 6, seed=2).astype(dtype)):
        if name == "weight_norm" and gamma.shape[1] > 1:
            continue
        expected = quiet(name, x, dy, gamma, **options)
        found = both_passes(norms, name, x, dy, gamma, **options)
        for got, wanted in zip(found, expected, strict=True):
            assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
            largest = np.nanmax(abs(wanted.astype(float)), initial=1.0)
            np.testing.assert_allclose(
                got.astype(float), wanted.astype(float), rtol=0, atol=tolerance * largest
            )


def test_fills_are_not_scaled(norms):
    x, keep = draw(4, 6), draw(4, 6, seed=3) > 0
    x[0] = np.nan
    options = {"where": keep, "nan_policy": "omit"}
    y = norms.layer_norm(x, np.full((4, 1), 3.0), np.ones((4, 1)), **options)
    np.testing.assert_array_equal(y[~keep], 0)
    assert np.isnan(y[0][keep[0]]).all()
    y = norms.layer_norm(x, np.full((4, 1), 3.0), fill=2.5, **options)
    np.testing.assert_array_equal(y[~keep | np.isnan(x)], 2.5)


# Accuracy


@pytest.mark.parametrize("options", [{}, {"where": np.arange(40) != 3}], ids=["plain", "where"])
@pytest.mark.parametrize("shape", [(5, 1), (5, 40), (1, 40), (1, 1)])
def test_gradient_of_float64_rows_far_from_0(norms, shape, options):
    x, dy = draw(5, 40) + 1e12, draw(5, 40, seed=1)
    gamma, counts = np.ones(shape), np.ones((5, 40), bool) & options.get("where", True)
    saved = norms.layer_norm_forward(x, gamma, **options)
    got = norms.layer_norm_backward(dy, x, saved.mean, saved.rstd, gamma, **options).dgamma
    # The differences are exact in float64, and so is a row without its offset.
    exact = reference.exact(x - 1e12)
    mean = exact.mean(1, keepdims=True, where=counts)
    deviations = np.where(counts, exact - mean, 0)
    variance = np.square(deviations).sum(1, keepdims=True) / counts.sum(1, keepdims=True)
    terms = dy * deviations / np.sqrt(variance + 1e-5)
    axes = tuple(axis for axis, n in enumerate(shape) if n == 1)
    # A few roundings of each of up to 200 terms.
    assert abs(got - terms.sum(axes, keepdims=True)).max() < 200 * 8 * 2.0**-52


def test_a_gradient_keeps_the_digits_of_a_wider_dy(norms):
    x, dy = draw(4, 6).astype(np.float16), draw(4, 6, seed=1)
    gamma = draw(1, 6, seed=2)
    for options in ({}, {"where": np.ones((4, 6), bool)}):
        saved = norms.layer_norm_forward(x.astype(float), gamma)[1:]
        found = norms.layer_norm_backward(dy, x, *saved, gamma, **options)
        expected = numnorm.layer_norm_backward(dy, x.astype(float), *saved, gamma)
        assert [a.dtype for a in found] == [np.float16, np.float64, np.float64]
        for got, wanted in zip(found[1:], expected[1:], strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


# Arrays


def test_outputs_and_empty_arrays(imported):
    library = imported("torch")
    x, dy, gamma = draw(4, 6), draw(4, 6, seed=1), draw(4, 6, seed=2)
    expected = both_passes(numnorm, "layer_norm", x, dy, gamma)
    out = library.take(x.copy())
    assert numnorm.layer_norm(out, library.take(gamma), out=out) is out
    np.testing.assert_allclose(out.host, expected[0], rtol=1e-12, atol=1e-13)
    out = library.take(gamma.copy())
    assert numnorm.layer_norm(library.take(x), out, out=out) is out
    np.testing.assert_allclose(out.host, expected[0], rtol=1e-12, atol=1e-13)
    turned = library.take(np.zeros((6, 4)).T)
    given = [library.take(array) for array in (x, *expected[1:3], gamma)]
    assert numnorm.layer_norm_backward(library.take(dy), *given, out=turned)[0] is turned
    np.testing.assert_allclose(turned.host, expected[3], rtol=1e-12, atol=1e-13)
    for shape in ((0, 6), (4, 0), (0, 0)):
        x, one = library.take(np.ones(shape)), library.take(np.ones((1, 1)))
        y, *saved = numnorm.layer_norm_forward(x, one)
        assert y.shape == shape
        gradients = numnorm.layer_norm_backward(x, x, *saved, one)
        np.testing.assert_array_equal(gradients.dgamma.host, [[0.0]])
        np.testing.assert_array_equal(gradients.dbeta.host, [[0.0]])


def test_sums_in_parts(norms):
    """Sums of many terms are those of parts, however their axes lie."""
    x, dy = draw(3, 10, 20), draw(3, 10, 20, seed=1)
    for shape in ((1, 1, 1), (3, 1, 1), (1, 10, 1), (1, 1, 20), (3, 1, 20)):
        gamma = draw(*shape, seed=2)
        expected = both_passes(numnorm, "instance_norm", x, dy, gamma)
        for got, wanted in zip(
            both_passes(norms, "instance_norm", x, dy, gamma), expected, strict=True
        ):
            np.testing.assert_allclose(got, wanted, rtol=1e-11, atol=1e-11)


def test_instance_norm_by_its_running_statistics(norms):
    x, dy, gamma = draw(3, 4, 5), draw(3, 4, 5, seed=1), draw(3, 4, 1, seed=2)
    stored = {"running_mean": draw(4, seed=3), "running_var": abs(draw(4, seed=4))}
    expected = numnorm.instance_norm_forward(x, gamma, **stored, training=False)
    found = norms.instance_norm_forward(x, gamma, **stored, training=False)
    found += norms.instance_norm_backward(dy, x, *expected[1:], gamma, training=False)
    expected += numnorm.instance_norm_backward(dy, x, *expected[1:], gamma, training=False)
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-12)


# Errors


def test_errors(imported):
    library = imported("torch")
    x, gamma, vector = (library.take(np.ones(shape)) for shape in ((4, 6), (4, 1), (5,)))
    saved = numnorm.layer_norm_forward(x)[1:]
    with pytest.raises(ValueError, match=r"^gamma must have shape \(6,\), the normalized axes"):
        numnorm.layer_norm(x, library.take(np.ones((2, 6))))
    with pytest.raises(ValueError, match=r"^beta must have shape \(6,\), the normalized axes"):
        numnorm.layer_norm(x, gamma, vector)
    with pytest.raises(ValueError, match=r"^out must have shape"):
        numnorm.layer_norm(x, gamma, out=vector)
    with pytest.raises(TypeError, match=r"^beta must be a torch.Tensor on device 0"):
        numnorm.layer_norm(x, gamma, np.ones((4, 1)))
    with pytest.raises(ValueError, match=r"^gamma must have shape \(6,\), the normalized axes"):
        numnorm.layer_norm_backward(x, x, *saved, vector)
    images = library.take(np.ones((2, 3, 4, 5)))
    with pytest.raises(ValueError, match=r"or \(1, 3, 1, 1\) to broadcast, got"):
        numnorm.batch_norm(images, library.take(np.ones((3, 1, 1))))
