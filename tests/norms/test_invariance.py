"""What the norms do not see: the invariances and the gradient theorem of the papers."""

import kernels
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numnorm

CASES, FEATURES, UNITS = 12, 7, 5


def batch_normalized(x, weights, gamma, beta):
    return numnorm.batch_norm(x @ weights.T, gamma, beta, eps=0)


def weight_normalized(x, weights, gamma, beta):
    return x @ numnorm.weight_norm(weights, gamma).T + beta


def layer_normalized(x, weights, gamma, beta):
    return numnorm.layer_norm(x @ weights.T, gamma, beta, eps=0)


LAYERS = {"batch": batch_normalized, "weight": weight_normalized, "layer": layer_normalized}


def rescale_weights(x, weights):
    return x, 3.7 * weights


def recentre_weights(x, weights):
    """The same vector added to the weights of every unit."""
    return x, weights + np.linspace(-1, 2, FEATURES)


def rescale_one_unit(x, weights):
    return x, weights * np.where(np.arange(UNITS) == 2, 3.7, 1)[:, None]


def rescale_data(x, weights):
    return 3.7 * x, weights


def recentre_data(x, weights):
    """The same vector added to every case."""
    return x + np.linspace(-1, 2, FEATURES), weights


def rescale_one_case(x, weights):
    return x * np.where(np.arange(CASES) == 4, 3.7, 1)[:, None], weights


CHANGES = [
    rescale_weights,
    recentre_weights,
    rescale_one_unit,
    rescale_data,
    recentre_data,
    rescale_one_case,
]

# Ba, Kiros, Hinton (2016), table 1. Its column for the weight norm says that rescaling the data
# shows, against a sentence of the text; the table is right.
TABLE = {"batch": "YNYYYN", "weight": "YNYNNN", "layer": "YYNYNY"}

ENTRIES = [
    pytest.param(
        norm,
        change,
        answer == "Y",
        marks=kernels.marks(f"{norm}_norm", np.float64, "both"),
        id=f"{norm}-{change.__name__}-{answer}",
    )
    for norm, answers in TABLE.items()
    for change, answer in zip(CHANGES, answers, strict=True)
]


@pytest.mark.parametrize("norm, change, invariant", ENTRIES)
def test_table_of_invariances(norm, change, invariant):
    rng = np.random.default_rng(7)
    x, weights = rng.normal(size=(CASES, FEATURES)), rng.normal(size=(UNITS, FEATURES))
    gamma, beta = rng.uniform(0.5, 2, UNITS), rng.normal(size=UNITS)
    before = LAYERS[norm](x, weights, gamma, beta)
    after = LAYERS[norm](*change(x, weights), gamma, beta)
    if invariant:
        # The changed product x @ weights.T rounds differently, by about sqrt(7) * 2^-53 of
        # numbers below fifty; divided by a deviation above one that stays below 1e-13.
        np.testing.assert_allclose(after, before, rtol=0, atol=1e-13)
    else:
        # Any of these changes is far above rounding: a tenth of a deviation or more.
        assert np.abs(after - before).max() > 0.1


# Xu et al. (2019), theorem 1: mean and variance of the gradient of a normalized row with
# deviation s, for an incoming gradient with mean G and variance D.
#   nothing detached: mean 0, variance at most D/s^2      mean detached: mean G/s, at most D/s^2
#   scale detached:   mean 0, variance exactly D/s^2      both detached: mean G/s, exactly D/s^2
THEOREM = {
    None: {"keeps_mean": False, "keeps_variance": False},
    "mean": {"keeps_mean": True, "keeps_variance": False},
    "scale": {"keeps_mean": False, "keeps_variance": True},
    "both": {"keeps_mean": True, "keeps_variance": True},
}

rows = st.integers(min_value=3, max_value=40).flatmap(
    lambda width: st.tuples(
        st.integers(0, 2**32 - 1), st.just(width), st.floats(-100, 100), st.floats(0.01, 100)
    )
)


def draw_row(seed, width, offset, spread):
    """A row with the given offset and spread, and an incoming gradient that does not vanish."""
    rng = np.random.default_rng(seed)
    return offset + spread * rng.normal(size=width), rng.normal(rng.normal(), 1, size=width)


def backward(dy, x, detach):
    _, mean, rstd = numnorm.layer_norm_forward(x, eps=0)
    return numnorm.layer_norm_backward(dy, x, mean, rstd, detach=detach).dx


@pytest.mark.parametrize("detach", THEOREM)
@settings(deadline=None, max_examples=40, derandomize=True)
@given(row=rows)
def test_gradient_theorem(detach, row):
    x, dy = draw_row(*row)
    dx, sigma = backward(dy, x, detach), x.std()
    bound = dy.var() / sigma**2
    # Everything below is float64 with relative errors of a few 2^-53 for each element, and of
    # offset / spread times as much, below 1e4, where the deviation is recomputed here.
    scale = np.abs(dy).max() / sigma
    expected_mean = dy.mean() / sigma if THEOREM[detach]["keeps_mean"] else 0.0
    assert dx.mean() == pytest.approx(expected_mean, abs=1e-11 * scale)
    if THEOREM[detach]["keeps_variance"]:
        assert dx.var() == pytest.approx(bound, rel=1e-10)
    else:
        assert dx.var() <= bound * (1 + 1e-10)


def test_the_bound_of_the_theorem_is_missed_by_what_the_variance_takes():
    x, dy = draw_row(1, 30, 2.0, 3.0)
    xhat = (x - x.mean()) / x.std()
    taken = np.mean(dy * xhat) ** 2
    assert taken > 1e-3
    # Plain float64 arithmetic on both sides.
    assert backward(dy, x, None).var() == pytest.approx((dy.var() - taken) / x.var(), rel=1e-12)


@kernels.each_dtype("layer_norm", np.float32, np.float64, parameters="both")
def test_detach_norm_only_rescales_the_gradient(dtype):
    rng = np.random.default_rng(3)
    x, dy, gamma = (rng.normal(size=(4, 33)).astype(dtype) for _ in range(3))
    gamma = gamma[0]
    _, mean, rstd = numnorm.layer_norm_forward(x)
    detached = numnorm.layer_norm_backward(dy, x, mean, rstd, gamma, detach="both")
    # Two products, each rounded once.
    expected = dy * gamma * rstd[:, None]
    np.testing.assert_allclose(detached.dx, expected, rtol=2 * np.finfo(dtype).eps)
    attached = numnorm.layer_norm_backward(dy, x, mean, rstd, gamma)
    np.testing.assert_array_equal(detached.dgamma, attached.dgamma)
    np.testing.assert_array_equal(detached.dbeta, attached.dbeta)


@pytest.mark.parametrize("width", [2, 5, 64, 101])
def test_the_factor_of_ada_norm_stays_positive_up_to_a_hundred_features(width):
    # |y| is at most sqrt(width - 1), reached by one spike, so 1 - y / 10 >= 0 up to width 101.
    spike = np.zeros((1, width))
    spike[0, 0] = 1.0
    y = numnorm.layer_norm(spike, eps=0)
    # The root and the product round once each.
    assert y[0, 0] == pytest.approx(np.sqrt(width - 1), rel=4e-16)
    # z has the sign of y: the order survives.
    z = numnorm.ada_norm(spike, eps=0)
    # At width 101 the factor is 0 but for the rounding of y, by which z is off, times y.
    assert np.all(z * y >= -4 * 2.0**-52 * y * y)
