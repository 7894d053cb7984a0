"""Moving and exponential norms on device arrays: definitions, accuracy, missing steps, errors."""

import itertools

import ml_dtypes
import moving_checks
import moving_reference
import numpy as np
import pytest
from host_calls import NormsOnDevice
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from moving_checks import check_missing, check_windows, exponential_gradient, missing_calls
from moving_fractions import GAPS, TOLERANCE, beside_a_gap

import numnorm

# The simulated device takes a second for some ten thousand additions.
SOME = settings(
    max_examples=12,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
DTYPES = [np.float64, np.float32, np.float16, ml_dtypes.bfloat16]
SIZES = (2, 3)
NORMS = {"moving_norm": 20, "exponential_norm": 0.1}


@pytest.fixture
def norms(imported):
    return NormsOnDevice(imported("torch"))


def draw(*shape, seed=0, offset=0.0):
    return np.random.default_rng(seed).normal(size=shape) + offset


def mask(*shape, seed=9):
    return np.random.default_rng(seed).random(shape) < 0.6


def both_passes(norms, name, x, dy, number, **options):
    """Return y, mean, rstd and dx."""
    found = getattr(norms, f"{name}_forward")(x, number, **options)
    return *found, getattr(norms, f"{name}_backward")(dy, x, *found[1:], number, **options)


# Definitions


@pytest.mark.parametrize("dtype", DTYPES)
@SOME
@given(data=st.data())
def test_any_windows_agree_with_the_definition(norms, dtype, data):
    moving_checks.checked_windows(norms, data, dtype, SIZES)


@pytest.mark.parametrize("dtype", DTYPES)
@SOME
@given(data=st.data())
def test_any_decay_agrees_with_the_definition(norms, dtype, data):
    moving_checks.checked_exponential(norms, data, dtype, SIZES)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NORMS)
@SOME
@given(data=st.data())
def test_missing_steps_agree_with_the_definition(norms, name, dtype, data):
    check_missing(norms, name, *data.draw(missing_calls(name, dtype, SIZES)))


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("window", [15, 16, 17, 25, 37, 38])
def test_windows_in_chunks(norms, window, center):
    x, dy = draw(50, 2), draw(50, 2, seed=1)
    for least in {1, window // 2, window}:
        options = {"window": window, "center": center, "min_window": least, "eps": 1e-3}
        check_windows(norms, x, dy, 0, options)


@pytest.mark.parametrize("name", NORMS)
def test_every_library(library, name):
    x, dy = draw(2, 23, 3), draw(2, 23, 3, seed=1)
    expected = both_passes(numnorm, name, x, dy, NORMS[name], axis=1)
    of_x = library.take(x)
    found = both_passes(numnorm, name, of_x, library.take(dy), NORMS[name], axis=1)
    for got, wanted in zip(found, expected, strict=True):
        assert type(got) is type(of_x)
        np.testing.assert_allclose(got.host, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", NORMS)
def test_any_order_of_threads(norms, name, order):
    x, dy = draw(2, 23, 3), draw(2, 23, 3, seed=1)
    expected = both_passes(numnorm, name, x, dy, NORMS[name], axis=1)
    found = both_passes(norms, name, x, dy, NORMS[name], axis=1)
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-13)


# Accuracy


@pytest.mark.parametrize("offset", [0.0, 1e5, 1e8])
@pytest.mark.parametrize("center", [False, True])
def test_an_offset_costs_windows_no_digits(norms, center, offset):
    x, dy = draw(90, 2, offset=offset), draw(90, 2, seed=1)
    exact = moving_reference.exact(x) - moving_reference.exact(offset)
    # Windows of two steps may have any small deviation, in which roundings of the mean are large.
    options = {"center": center, "min_window": 20}
    y, _, rstd, dx = both_passes(norms, "moving_norm", x, dy, 30, axis=0, **options)
    expected = moving_reference.moving_norm(exact, 30, **options)[0]
    assert abs(y - expected).max() <= 1e-13  # as at no offset
    expected = moving_reference.moving_norm_backward(dy, exact, 30, **options)
    # The saved mean is rounded: by 1e-8 at an offset of 1e8.
    bound = 1e-13 + 4 * np.spacing(offset)
    assert abs(dx - expected).max() <= bound * abs(dy * rstd).max()


@pytest.mark.parametrize("initial", [0, 10])
@pytest.mark.parametrize("offset", [0.0, 1e5, 1e8])
def test_an_offset_costs_decay_no_digits(norms, offset, initial):
    x, dy = draw(90, 2, offset=offset), draw(90, 2, seed=1)
    exact = moving_reference.exact(x) - moving_reference.exact(offset)
    dy[:5] = 0  # the deviations of the first steps may be small
    options = {"adjust": True, "initial": initial, "eps": 1e-4}
    y, _, rstd, dx = both_passes(norms, "exponential_norm", x, dy, 0.02, axis=0, **options)
    expected = moving_reference.exponential_norm(exact, 0.02, **options)[0]
    assert abs(y - expected).max() <= 1e-12
    expected = exponential_gradient(dy, exact, 0.02, **options)
    bound = 1e-12 + 4 * np.spacing(offset)
    assert abs(dx - expected).max() <= bound * abs(dy * rstd).max()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", NORMS)
def test_narrow_types_are_rounded_once(norms, name, dtype):
    x = draw(60, 2, offset=100.0).astype(dtype)
    y = getattr(norms, name)(x, NORMS[name], axis=0, eps=1e-2)
    expected = getattr(moving_reference, name)(x, NORMS[name], eps=1e-2)[0]
    half_unit = np.finfo(dtype).eps / 2
    # Float16 is rounded to float32 before.
    assert (abs(y - expected) <= (half_unit + 2.0**-24) * abs(expected) + 1e-12).all()


@pytest.mark.parametrize("options", [{}, {"center": True}])
@pytest.mark.parametrize("window", [10, 20])
def test_gradient_beside_an_outlier(norms, window, options):
    x, dy = draw(90), draw(90, seed=1)
    x[3], x[50], x[57] = -1e15, 1e20, 1e8
    *_, rstd, dx = both_passes(norms, "moving_norm", x, dy, window, **options)
    expected = moving_reference.moving_norm_backward(dy, x, window, **options)
    assert abs(dx - expected).max() <= 1e-12 * abs(dy * rstd).max()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("window", [7, 21])
def test_what_is_no_number_leaves_no_trace_in_windows(norms, window, value):
    x, dy, t = draw(80), draw(80, seed=1), 33
    other = x.copy()
    other[t] = value
    for center, first in ((False, t), (True, t - window // 2)):
        found = both_passes(norms, "moving_norm", x, dy, window, center=center)
        changed = both_passes(norms, "moving_norm", other, dy, window, center=center)
        held = slice(first, first + window)
        apart = np.delete(np.arange(80), slice(t - window + 1, t + window))  # no window in common
        np.testing.assert_array_equal(np.delete(found[0], held), np.delete(changed[0], held))
        np.testing.assert_array_equal(found[3][apart], changed[3][apart])
        assert np.isnan(changed[0][held]).all() == (value != 1e30)


def test_a_nan_makes_later_steps_of_its_channel_nan(norms):
    x = draw(40, 3)
    y = norms.exponential_norm(x, 0.5, axis=0)
    x[20, 1] = np.nan
    changed = norms.exponential_norm(x, 0.5, axis=0)
    assert np.isnan(changed[20:, 1]).all()
    np.testing.assert_array_equal(changed[:20], y[:20])
    np.testing.assert_array_equal(np.delete(changed, 1, 1), np.delete(y, 1, 1))


@pytest.mark.parametrize("eps", [0.0, 1e-10])
@pytest.mark.parametrize("window", [1, 6, 20])
def test_constants_give_zeros(norms, window, eps):
    x = np.full((40, 2), 1e7 + 0.1)
    y, mean, rstd = norms.moving_norm_forward(x, window, axis=0, eps=eps)
    np.testing.assert_array_equal(y, 0)
    np.testing.assert_array_equal(mean, x)
    dx = norms.moving_norm_backward(np.ones_like(x), x, mean, rstd, window, axis=0)
    assert np.isfinite(dx).all()
    y = norms.exponential_norm(x, 0.1, axis=0, eps=eps, initial=window)
    np.testing.assert_array_equal(y, 0)


@pytest.mark.parametrize("name", NORMS)
def test_a_channel_does_not_depend_on_others_or_on_where_it_lies(norms, name):
    x, dy = draw(45, 5, offset=3.0), draw(45, 5, seed=1)
    found = both_passes(norms, name, x, dy, NORMS[name], axis=0)
    last = both_passes(norms, name, x.T.copy(), dy.T.copy(), NORMS[name])
    one = both_passes(norms, name, x[:, 2].copy(), dy[:, 2].copy(), NORMS[name])
    for ours, theirs, alone in zip(found, last, one, strict=True):
        np.testing.assert_array_equal(ours, theirs.T)
        np.testing.assert_array_equal(ours[:, 2], alone)


# Missing steps


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("offset", [0.0, 1e8])
def test_missing_steps_at_an_offset_beside_the_host(norms, name, offset):
    x, dy, keep = draw(70, 2, offset=offset), draw(70, 2, seed=1), mask(70, 2)
    keep[20:45] = False
    options = {"axis": 0, "where": keep}
    expected = both_passes(numnorm, name, x, dy, NORMS[name], **options)
    found = both_passes(norms, name, x, dy, NORMS[name], **options)
    for got, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("adjust", [True, False])
@pytest.mark.parametrize("alpha, gap", GAPS)
def test_what_is_left_after_a_gap(norms, alpha, gap, adjust):
    x, dy, kept, expected = beside_a_gap(alpha, gap, adjust)
    options = {"adjust": adjust, "eps": 0.0, "nan_policy": "omit" if gap else "propagate"}
    y, _, rstd, dx = both_passes(norms, "exponential_norm", x, dy, alpha, **options)
    for got, exact in zip((y, rstd, dx), expected, strict=True):
        # The terms of a gradient may cancel, if their sizes are those of dy.
        scale = exact if got is rstd else max(abs(exact).max(), abs(dy).max())
        assert (abs(got[kept] - exact) <= TOLERANCE * scale).all()


@pytest.mark.parametrize("name", NORMS)
def test_what_is_left_out_may_be_anything(norms, name):
    x, dy, keep = draw(40, 2), draw(40, 2, seed=1), mask(40, 2)
    found = both_passes(norms, name, x, dy, NORMS[name], axis=0, where=keep)
    for value in (np.nan, np.inf, 1e300):
        given = np.where(keep, x, value), np.where(keep, dy, value)
        changed = both_passes(norms, name, *given, NORMS[name], axis=0, where=keep)
        for one, other in zip(found, changed, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", NORMS)
def test_masks_of_the_host_and_masks_that_broadcast(library, name):
    x, keep = draw(2, 20, 3), mask(20, 1)
    expected = getattr(numnorm, name)(x, NORMS[name], axis=1, where=keep)
    for where in (keep, library.take(keep.copy()), library.take(np.array(keep | False)[None])):
        y = getattr(numnorm, name)(library.take(x), NORMS[name], axis=1, where=where)
        np.testing.assert_allclose(y.host, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", NORMS)
def test_what_left_out_steps_get(norms, name):
    x, keep = draw(30), mask(30)
    x[::7] = np.nan
    given = {"where": keep, "nan_policy": "omit"}
    y = getattr(norms, name)(x, NORMS[name], **given)
    np.testing.assert_array_equal(y[~keep], 0)
    assert np.isnan(y[keep & np.isnan(x)]).all()
    y = getattr(norms, name)(x, NORMS[name], fill=2.5, **given)
    np.testing.assert_array_equal(y[~keep | np.isnan(x)], 2.5)


# Arrays


@pytest.mark.parametrize("name", NORMS)
def test_out_may_be_an_input(imported, name):
    library = imported("torch")
    x, dy = draw(30, 3), draw(30, 3, seed=1)
    y, mean, rstd, dx = both_passes(numnorm, name, x, dy, NORMS[name], axis=0)
    forward, backward = getattr(numnorm, name), getattr(numnorm, f"{name}_backward")
    out = library.take(x.copy())
    assert forward(out, NORMS[name], axis=0, out=out) is out
    np.testing.assert_allclose(out.host, y, rtol=1e-12, atol=1e-13)
    saved = [library.take(array) for array in (x, mean, rstd)]
    out = library.take(dy.copy())
    assert backward(out, *saved, NORMS[name], axis=0, out=out) is out
    np.testing.assert_allclose(out.host, dx, rtol=1e-12, atol=1e-13)
    turned = library.take(np.zeros((3, 30)).T)
    assert forward(library.take(x), NORMS[name], axis=0, out=turned) is turned
    np.testing.assert_allclose(turned.host, y, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("keywords", [{}, {"nan_policy": "omit"}])
@pytest.mark.parametrize("name", NORMS)
def test_a_gradient_of_another_dtype_keeps_its_digits(norms, name, keywords):
    x, dy = draw(25, 2).astype(np.float32), draw(25, 2, seed=1)
    dx = both_passes(norms, name, x, dy, NORMS[name], axis=0, **keywords)[-1]
    expected = both_passes(numnorm, name, x.astype(float), dy, NORMS[name], axis=0)[-1]
    assert dx.dtype == np.float32
    np.testing.assert_allclose(dx, expected, rtol=2.0**-23, atol=1e-12)


@pytest.mark.parametrize("shape", [(0, 3), (4, 0), (0,)])
@pytest.mark.parametrize("name", NORMS)
def test_nothing(norms, name, shape):
    x = np.empty(shape, np.float32)
    for keywords in ({}, {"nan_policy": "omit"}):
        found = both_passes(norms, name, x, x, NORMS[name], axis=0, **keywords)
        assert [array.shape for array in found] == [shape] * 4


def test_statistics_of_jax_without_float64(imported):
    jax = imported("jax")
    jax.config.jax_enable_x64 = False
    x, dy = draw(40, 2).astype(np.float32), draw(40, 2, seed=1).astype(np.float32)
    for name, keywords in itertools.product(NORMS, [{}, {"nan_policy": "omit"}]):
        options = {"axis": 0, **keywords}
        given = jax.take(x), jax.take(dy)
        found = both_passes(numnorm, name, *given, NORMS[name], **options)
        expected = both_passes(numnorm, name, x, dy, NORMS[name], **options)
        for got, wanted in zip(found, expected, strict=True):
            assert got.host.dtype == np.float32
            # The first deviations of windows of two steps are small.
            np.testing.assert_allclose(got.host[5:], wanted[5:], rtol=1e-4, atol=1e-4)


# Errors


@pytest.mark.parametrize("name", NORMS)
def test_errors(imported, name):
    library = imported("torch")
    x = library.take(draw(20))
    forward, backward = getattr(numnorm, name), getattr(numnorm, f"{name}_backward")
    with pytest.raises(NotImplementedError, match=r"^nan_policy='raise' is not supported"):
        forward(x, 1, nan_policy="raise")
    with pytest.raises(ValueError, match=r"^where must broadcast against x"):
        forward(x, 1, where=library.take(mask(19)))
    half = library.take(draw(20).astype(np.float16))
    with pytest.raises(TypeError, match=r"^mean and rstd must have one dtype, float32 or float64"):
        backward(x, x, half, x, 1)
    with pytest.raises(ValueError, match=r"^dy must have shape"):
        backward(library.take(draw(19)), x, x, x, 1)
    with pytest.raises(ValueError, match=r"^out must have shape"):
        forward(x, 1, out=library.take(draw(19)))


@pytest.mark.parametrize("norm, number", [("moving_norm", 3), ("exponential_norm", 0.2)])
def test_gradients_over_the_mask(norm, number, imported, order):
    take = imported("cupy").take
    x, dy = np.random.default_rng(1).normal(size=(2, 6, 32)).astype(np.float32)
    memory = np.zeros(x.size, np.float32)
    memory.view(np.uint8)[:] = np.random.default_rng(2).random(memory.nbytes) < 0.7
    mask, out = memory.view(bool)[: x.size].reshape(x.shape), memory.reshape(x.shape)
    backward, where = getattr(numnorm, f"{norm}_backward"), mask.copy()
    saved = getattr(numnorm, f"{norm}_forward")(x, number, where=where)[1:]
    expected = backward(dy, x, *saved, number, where=where)
    arrays = take(dy), take(x), *(take(np.array(one)) for one in saved)
    backward(*arrays, number, where=take(mask), out=take(out))
    np.testing.assert_allclose(out, expected, atol=1e-4)
