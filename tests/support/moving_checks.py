"""Random calls of moving norms and checks against their definitions, for every backend.

The functions take `norms`, which has the public functions: numnorm, or what calls it on a device.
"""

import missing_reference
import moving_reference
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from norm_strategies import arrays

# Of a result: one rounding of y, and of all steps before it in half precision's saved statistics.
# In float64 the sums round, and a pivot sqrt(n) deviations from the mean multiplies that by n + 1.
TOLERANCES = {"float64": 1e-11, "float32": 3e-7, "float16": 2e-3, "bfloat16": 2e-2}

# Numbers of adjacent channels, with more than the lanes of a vector among them.
SIZES = (3, 8, 11)


@st.composite
def shapes(draw, sizes):
    """A shape and an axis: no channel, a few, and more than the lanes of a vector."""
    steps = draw(st.integers(0, 30))
    before = draw(st.sampled_from([(), (1,), (2,), (max(sizes) - 2,)]))
    after = draw(st.sampled_from([(), (), *((size,) for size in sizes), (2, min(sizes) + 2)]))
    axis = len(before) - draw(st.sampled_from([0, len(before) + 1 + len(after)]))
    return (*before, steps, *after), axis


# Windows


@st.composite
def window_options(draw):
    """Keyword arguments, among them windows of 1 and longer than the axis."""
    window = draw(st.sampled_from([1, 2, 3, 4, 5, 8, 11, 40]))
    options = {"center": draw(st.booleans()), "min_window": draw(st.integers(1, window))}
    flags = draw(st.sampled_from([(True, True), (True, False), (False, True)]))
    options |= dict(zip(("subtract_mean", "with_std"), flags, strict=True))
    return {"window": window, "eps": draw(st.sampled_from([0.0, 1e-10, 1e-3, 1.0])), **options}


def defined(function, *given, options):
    """Return what a definition makes of an array with time first."""
    words = {"subtract_mean": "mean", "with_std": "scale"}
    return function(*given, **{words.get(name, name): value for name, value in options.items()})


def check_windows(norms, x, dy, axis, options):
    tolerance = TOLERANCES[x.dtype.name]
    first = np.moveaxis(x, axis, 0)
    expected = defined(moving_reference.moving_norm, first, options=options)
    found = norms.moving_norm_forward(x, axis=axis, **options)
    for got, wanted in zip(found, expected, strict=True):
        assert got.shape == x.shape
        if x.size:
            error = abs(np.moveaxis(got, axis, 0).astype(np.longdouble) - wanted)
            assert error.max() <= tolerance * max(abs(wanted).max(), 1)
    y = norms.moving_norm(x, axis=axis, **options)
    assert y.dtype == found.y.dtype
    np.testing.assert_array_equal(y, found.y)
    backward = {name: value for name, value in options.items() if name != "eps"}
    dx = norms.moving_norm_backward(dy, x, *found[1:], axis=axis, **backward)
    given = np.moveaxis(dy, axis, 0), first
    wanted = defined(moving_reference.moving_norm_backward, *given, options=options)
    assert dx.shape == x.shape and dx.dtype == y.dtype
    if x.size:
        error = abs(np.moveaxis(dx, axis, 0).astype(np.longdouble) - wanted)
        # Terms of the size of dy * rstd may cancel.
        largest = max(abs(wanted).max(), abs(dy * found.rstd).astype(np.longdouble).max(), 1)
        assert error.max() <= 8 * tolerance * largest


def checked_windows(norms, data, dtype, sizes=SIZES):
    shape, axis = data.draw(shapes(sizes))
    x, dy = data.draw(arrays(shape, dtype)), data.draw(arrays(shape, dtype))
    options = data.draw(window_options())
    if np.dtype(dtype).itemsize == 2:
        options["eps"] = max(options["eps"], 1e-3)  # 1e5 times a rounding of the mean is too much
    check_windows(norms, x, dy, axis, options)


# Exponential weights


@st.composite
def decay_options(draw):
    """Keyword arguments of both functions and their definition."""
    return {
        "alpha": draw(st.sampled_from([1e-3, 0.02, 0.3, 0.9, 1.0])),
        "adjust": draw(st.booleans()),
        "initial": draw(st.sampled_from([0, 0, 1, 4, 50])),
        "eps": draw(st.sampled_from([1e-4, 1e-2, 1.0])),
    }


def exponential_gradient(dy, x, alpha, adjust, initial, eps):
    """Return dx by the chain rule through the weights of each step, time first."""
    dy, x = moving_reference.exact(dy), moving_reference.exact(x)
    steps = len(x)
    weights = moving_reference.ewm_means(np.eye(steps), alpha, adjust)  # mean[t] = weights[t] @ x
    deviations = x - moving_reference.ewm_means(x, alpha, adjust)
    variance = np.tensordot(weights, np.square(deviations), 1)
    deviation = np.sqrt(variance)
    rstds = moving_reference.inverse(np.maximum(np.longdouble(eps), deviation))
    later = np.arange(steps) >= initial
    shaped = later.reshape(-1, *[1] * (x.ndim - 1))
    own = np.where(shaped, dy * rstds, 0)
    moving = np.where(shaped & (deviation > eps), dy * deviations * rstds**3, 0)
    through = own - deviations * np.tensordot(weights.T, moving, 1)
    dx = through - np.tensordot(weights.T, through, 1)
    if initial and steps:
        block = x[:initial]
        centred = moving_reference.centred(block, (0,))
        spread = np.sqrt(np.square(centred).mean(axis=0))
        rstd = moving_reference.inverse(np.maximum(np.longdouble(eps), spread))
        g = dy[:initial]
        projected = np.where(spread > eps, (g * centred * rstd).mean(axis=0), 0)
        dx[:initial] += (g - g.mean(axis=0) - centred * rstd * projected) * rstd
    return dx


def check_exponential(norms, x, dy, axis, options):
    tolerance = TOLERANCES[x.dtype.name]
    first = np.moveaxis(x, axis, 0)
    expected = moving_reference.exponential_norm(first, **options)
    assume(moving_reference.clear_of_least_deviation(expected[2], options["eps"]))
    found = norms.exponential_norm_forward(x, axis=axis, **options)
    for got, wanted in zip(found, expected, strict=True):
        assert got.shape == x.shape
        if x.size:
            error = abs(np.moveaxis(got, axis, 0).astype(np.longdouble) - wanted)
            assert error.max() <= tolerance * max(abs(wanted).max(), 1)
    y = norms.exponential_norm(x, axis=axis, **options)
    np.testing.assert_array_equal(y, found.y)
    dx = norms.exponential_norm_backward(dy, x, *found[1:], axis=axis, **options)
    assert dx.shape == x.shape and dx.dtype == y.dtype
    if x.size:
        wanted = exponential_gradient(np.moveaxis(dy, axis, 0), first, **options)
        error = abs(np.moveaxis(dx, axis, 0).astype(np.longdouble) - wanted)
        # Terms of the size of dy * rstd may cancel.
        largest = max(abs(wanted).max(), abs(dy * found.rstd).astype(np.longdouble).max(), 1)
        assert error.max() <= 8 * tolerance * largest


def checked_exponential(norms, data, dtype, sizes=SIZES):
    shape, axis = data.draw(shapes(sizes))
    x, dy = data.draw(arrays(shape, dtype)), data.draw(arrays(shape, dtype))
    options = data.draw(decay_options())
    if np.dtype(dtype).itemsize == 2:
        options["eps"] = 1.0  # 1e4 times a rounding of the mean is too much
    check_exponential(norms, x, dy, axis, options)


# Missing steps


@st.composite
def _options_of(draw, name, half):
    if name == "exponential_norm":
        return {
            "alpha": draw(st.sampled_from([1e-3, 0.02, 0.3, 0.9, 1.0])),
            "adjust": draw(st.booleans()),
            "initial": draw(st.sampled_from([0, 0, 1, 4, 50])),
            "eps": 1.0 if half else draw(st.sampled_from([1e-4, 1e-2, 1.0])),
        }
    window = draw(st.sampled_from([1, 2, 3, 5, 8, 11, 40]))
    flags = draw(st.sampled_from([(True, True), (True, False), (False, True)]))
    return {
        "window": window,
        "center": draw(st.booleans()),
        "min_window": draw(st.integers(1, window)),
        "eps": draw(st.sampled_from([1e-3, 1.0] if half else [0.0, 1e-10, 1e-3, 1.0])),
        "subtract_mean": flags[0],
        "with_std": flags[1],
    }


@st.composite
def missing_calls(draw, name, dtype, sizes=SIZES):
    """Arrays, an axis, a mask of which much, little, all or nothing is kept, and options."""
    steps = draw(st.integers(0, 25))
    after = draw(st.sampled_from([(), *((size,) for size in sizes)]))
    shape = (*draw(st.sampled_from([(), (2,)])), steps, *after)
    axis = -1 - len(after)
    x, dy = draw(arrays(shape, dtype)), draw(arrays(shape, dtype))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    keep = rng.random(shape) < draw(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0]))
    if draw(st.booleans()):
        np.moveaxis(keep, axis, 0)[: steps // 2] = False
    missing = rng.random(shape) < 0.2
    return x, dy, axis, keep, missing, draw(_options_of(name, np.dtype(dtype).itemsize == 2))


def near(got, wanted, axis, tolerance, least):
    """Check a result against one with time first; both have NaN in the same places."""
    got = np.moveaxis(got, axis, 0).astype(np.longdouble)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    error, size = np.nan_to_num(abs(got - wanted)), np.nan_to_num(abs(wanted))
    assert error.max(initial=0) <= tolerance * max(size.max(initial=0), least)


def check_missing(norms, name, x, dy, axis, keep, missing, options):
    tolerance = TOLERANCES[x.dtype.name]
    holed = np.where(missing, np.array(np.nan, x.dtype), x)
    both = keep & ~missing
    first = [np.moveaxis(a, axis, 0) for a in (x, dy, both)]
    defined = {"subtract_mean": "mean", "with_std": "scale"}
    words = {defined.get(word, word): value for word, value in options.items()}
    expected = getattr(missing_reference, name)(first[0], first[2], **words)
    if name == "exponential_norm":
        assume(moving_reference.clear_of_least_deviation(expected[2], options["eps"]))
    given = {"axis": axis, "where": keep, "nan_policy": "omit", **options}
    found = getattr(norms, f"{name}_forward")(holed, **given)
    for got, wanted in zip(found[1:], expected[1:], strict=True):
        near(got, wanted, axis, tolerance, 1)
    near(np.where(both, found.y, np.nan), expected[0], axis, tolerance, 1)
    np.testing.assert_array_equal(found.y[~keep], 0)
    assert np.isnan(found.y[keep & missing]).all()
    y = getattr(norms, name)(holed, fill=2.5, **given)
    np.testing.assert_array_equal(y[both], found.y[both])
    np.testing.assert_array_equal(y[~both], 2.5)
    if name == "moving_norm":
        del given["eps"]
    dx = getattr(norms, f"{name}_backward")(dy, holed, *found[1:], **given)
    wanted = getattr(missing_reference, f"{name}_backward")(first[1], *first[::2], **words)
    # Terms of the size of dy * rstd may cancel.
    least = np.nan_to_num(abs(dy * found.rstd).astype(np.longdouble)).max(initial=1)
    near(dx, wanted, axis, 8 * tolerance, least)
    np.testing.assert_array_equal(dx[~both], 0)
