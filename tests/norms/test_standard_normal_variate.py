"""The standard normal variate against its definition in extended precision."""

import fractions
import math

import numpy as np
import pytest
import reference
from accuracy_cases import HALF_UNIT, ROUNDINGS, assert_error

import numnorm

RNG = np.random.default_rng(5)


def defined(x, axis, ddof):
    """(x - mean) / std in longdouble, in two passes."""
    x = x.astype(np.longdouble)
    deviation = x.std(axis=axis, ddof=ddof, keepdims=True)
    return (x - x.mean(axis=axis, keepdims=True)) / deviation


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e-4, 1.0, 1e6])
@pytest.mark.parametrize("ddof", [0, 1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_scale(dtype, ddof, scale):
    x = (RNG.normal(2.0, 1.0, (5, 40)) * scale).astype(dtype)
    # 6 roundings on the way to a normalized value, as for every norm (docs/numerics.md).
    bound = 6 * np.finfo(dtype).eps / 2
    for axis in (-1, 0, (0, 1)):
        expected = defined(x, axis, ddof)
        got = numnorm.standard_normal_variate(x, axis=axis, ddof=ddof)
        assert got.dtype == dtype
        assert abs(got - expected).max() <= bound * abs(expected).max()


def test_small_spectrum_keeps_a_deviation_of_one():
    # What layer_norm's default epsilon makes of them: sqrt(v / (v + 1e-5)), see its docstring.
    x = RNG.normal(size=(1, 4000))
    x = (x - x.mean()) / x.std()
    for deviation, with_eps in [(1e-3, "0.30"), (1e-4, "0.03")]:
        spectrum = x * deviation
        assert numnorm.standard_normal_variate(spectrum).std() == pytest.approx(1.0, rel=1e-12)
        got = numnorm.layer_norm(spectrum).std()
        assert f"{got:.2f}" == with_eps
        variance = fractions.Fraction(deviation) ** 2
        expected = math.sqrt(variance / (variance + fractions.Fraction(1, 10**5)))
        assert got == pytest.approx(expected, rel=1e-9)


def test_constant_row_gives_zeros():
    x = np.array([[0.1, 0.1, 0.1], [1.0, 2.0, 3.0], [7e300, 7e300, 7e300]])
    got = numnorm.standard_normal_variate(x, ddof=1)
    np.testing.assert_array_equal(got, [[0, 0, 0], [-1, 0, 1], [0, 0, 0]])


def test_ddof_of_0_is_layer_norm_without_epsilon():
    x = RNG.normal(size=(3, 100)).astype(np.float32)
    out = np.empty_like(x)
    assert numnorm.standard_normal_variate(x, out=out) is out
    np.testing.assert_array_equal(out, numnorm.layer_norm(x, eps=0))
    np.testing.assert_array_equal(numnorm.standard_normal_variate(x, out=x), out)
    assert x[0, 0] == out[0, 0]


def test_kinds_and_empty_arrays():
    assert numnorm.standard_normal_variate([1, 2, 3]).dtype == np.float64
    assert numnorm.standard_normal_variate(np.ones((2, 3), np.float16)).dtype == np.float16
    assert numnorm.standard_normal_variate(np.ones((0, 3))).shape == (0, 3)
    assert numnorm.standard_normal_variate(np.ones((3, 0))).shape == (3, 0)
    nans = numnorm.standard_normal_variate([[1.0, np.nan], [1.0, 2.0]])
    np.testing.assert_array_equal(nans, [[np.nan, np.nan], [-1, 1]])


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"ddof": 4}, ValueError, "ddof must be less than the 4 normalized elements, got 4"),
        ({"ddof": -1}, ValueError, "ddof must be at least 0, got -1"),
        ({"ddof": 1.0}, TypeError, "ddof must be an int, got 1.0"),
        ({"axis": 2}, ValueError, "axis must be between -2 and 1 .*"),
        ({"out": np.empty(3)}, ValueError, "out must have shape .*"),
        ({"dim": 1}, TypeError, ".*unexpected keyword argument 'dim': use axis"),
        ({"correction": 1}, TypeError, ".*unexpected keyword argument 'correction': use ddof"),
    ],
)
def test_errors(options, error, message):
    with pytest.raises(error, match=f"^{message}$"):
        numnorm.standard_normal_variate(np.ones((2, 4)), **options)


# Forward and backward


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("mean", [0.0, 1e3, 1e6])
@pytest.mark.parametrize("ddof", [0, 1, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_passes_keep_the_accuracy_at_any_mean_and_scale(dtype, ddof, mean, scale):
    x = ((RNG.normal(size=(6, 40)) + mean) * scale).astype(dtype)
    dy = RNG.normal(size=x.shape).astype(dtype)
    y, *saved = numnorm.standard_normal_variate_forward(x, ddof=ddof)
    np.testing.assert_array_equal(y, numnorm.standard_normal_variate(x, ddof=ddof))
    dx = numnorm.standard_normal_variate_backward(dy, x, *saved, ddof=ddof)
    assert y.dtype == dx.dtype == dtype
    expected = reference.standard_normal_variate(x, ddof=ddof)
    for found, exact in zip((y, *saved), expected, strict=True):
        assert_error(found, exact, ROUNDINGS.forward * HALF_UNIT[dtype])
    exact = reference.standard_normal_variate_backward(dy, x, ddof=ddof)
    assert_error(dx, exact, ROUNDINGS.backward * HALF_UNIT[dtype])


def test_passes_of_ddof_0_are_those_of_layer_norm_without_epsilon():
    x, dy = RNG.normal(2.0, 3.0, (2, 4, 3, 5))
    options = {"axis": (0, 2)}
    found = numnorm.standard_normal_variate_forward(x, **options)
    for mine, theirs in zip(found, numnorm.layer_norm_forward(x, eps=0, **options), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    _, *saved = found
    dx = numnorm.standard_normal_variate_backward(dy, x, *saved, **options)
    expected = numnorm.layer_norm_backward(dy, x, *saved, **options).dx
    np.testing.assert_array_equal(dx, expected)
    out = dy.copy()
    backward = numnorm.standard_normal_variate_backward
    assert backward(out, x, *saved, **options, out=out) is out
    np.testing.assert_array_equal(out, dx)


def test_gradient_of_a_constant_row_is_0():
    x, dy = np.array([[5.0, 5.0, 5.0], [1.0, 2.0, 3.0]]), np.array([[1.0, 2.0, 4.0]] * 2)
    _, mean, rstd = numnorm.standard_normal_variate_forward(x, ddof=1)
    assert rstd[0] == 0
    dx = numnorm.standard_normal_variate_backward(dy, x, mean, rstd, ddof=1)
    np.testing.assert_array_equal(dx[0], 0)
    # dy less its mean, less y sum(dy y) / 2, where y is -1, 0, 1.
    np.testing.assert_allclose(dx[1], [1 / 6, -1 / 3, 1 / 6], rtol=1e-14)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"ddof": 4}, "ddof must be less than the 4 normalized elements, got 4"),
        ({"mean": np.ones(3)}, r"mean must have shape \(2,\)"),
        ({"dy": np.ones((2, 3))}, r"dy must have shape \(2, 4\), the shape of x"),
    ],
)
def test_errors_of_the_backward_pass(options, message):
    arguments = {"dy": np.ones((2, 4)), "x": np.ones((2, 4))}
    arguments |= {"mean": np.ones(2), "rstd": np.ones(2)}
    with pytest.raises(ValueError, match=f"^{message}"):
        numnorm.standard_normal_variate_backward(**{**arguments, **options})
