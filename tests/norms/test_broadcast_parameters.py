"""Gamma and beta that broadcast against x, against the definition in extended precision."""

import ml_dtypes
import numpy as np
import pytest
import reference
from broadcast_checks import CASES, check_broadcast, draw
from peak_memory import peak_of

import numnorm
from numnorm.backends.cpu import tuning

RNG = np.random.default_rng(14)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("norm, options, shape, of_gamma, of_beta", CASES)
def test_forward_and_backward(norm, options, shape, of_gamma, of_beta, dtype):
    case = norm, options, shape, of_gamma, of_beta
    x, given, y = check_broadcast(numnorm, *case, dtype)
    np.testing.assert_array_equal(getattr(numnorm, norm)(x, *given, **options), y)
    out = np.empty(shape, dtype)
    assert getattr(numnorm, norm)(x, *given, **options, out=out) is out
    np.testing.assert_array_equal(out, y)


@pytest.mark.parametrize("norm, options, shape, of_gamma, of_beta", CASES)
def test_gradients_in_blocks(norm, options, shape, of_gamma, of_beta, monkeypatch):
    """Blocks of any size give the same gradients, up to the order of sums."""
    x, dy, gamma = RNG.normal(1.0, 2.0, shape), RNG.normal(size=shape), draw(of_gamma, np.float64)
    given = [gamma] if norm in ("rms_norm", "weight_norm") else [gamma, draw(of_beta, np.float64)]
    saved = getattr(numnorm, f"{norm}_forward")(x, *given, **options)[1:]
    masked = {"where": RNG.random(shape) < 0.8}
    for others in ({}, masked):
        found = []
        for size in (1, 7, 1 << 16):
            monkeypatch.setattr(tuning, "BROADCAST_BLOCK_ELEMENTS", size)
            backward = getattr(numnorm, f"{norm}_backward")
            found.append(backward(dy, x, *saved, gamma, **options, **others))
        for gradients in found[:2]:
            np.testing.assert_array_equal(gradients[0], found[2][0])
            for one, other in zip(gradients[1:], found[2][1:], strict=True):
                if other is not None:
                    # A few roundings of each of up to 60 terms of about 10.
                    np.testing.assert_allclose(one, other, rtol=0, atol=60 * 10 * 4 * 2.0**-52)


@pytest.mark.parametrize("norm", ["layer_norm", "batch_norm"])
@pytest.mark.parametrize("others", [{}, {"where": np.arange(64) != 3}])
def test_memory_of_gradients(norm, others):
    """The gradients of a gain are sums in float64 of some elements at a time."""
    x, dy = RNG.normal(size=(2, 16384, 64)).astype(np.float32)
    gamma = draw((16384, 1), np.float32)
    saved = getattr(numnorm, f"{norm}_forward")(x, gamma)[1:]
    backward = getattr(numnorm, f"{norm}_backward")
    backward(dy, x, *saved, gamma, **others)  # compiled before it is measured
    peak, _ = peak_of(lambda: backward(dy, x, *saved, gamma, **others))
    assert peak < 3.5 * x.nbytes  # dx, what the kernel gets, and a mask of each element


def test_usual_shape_comes_first():
    # (3, 3) could broadcast against x, and is the shape of the normalized axes: nothing changes.
    x, gamma = RNG.normal(size=(3, 3)), RNG.normal(size=3)
    expected = numnorm.layer_norm(x, axis=0) * gamma[:, None]
    np.testing.assert_allclose(numnorm.layer_norm(x, gamma, axis=0), expected, rtol=1e-15)


@pytest.mark.parametrize(
    "x, gamma",
    [
        (np.ones((4, 6)), 8),  # torch's layer_norm(x, 8) has the normalized shape there
        (np.ones((4, 6)), (1,)),
        (np.ones((4, 6)), np.ones((1,))),
        (np.ones(6), (1,)),
        (np.ones((4, 6)), np.ones((2, 6))),
        (np.ones((4, 6)), np.ones((1, 1, 6))),
        (np.ones((4, 6)), np.ones((4, 12))),
        (np.ones((0, 6)), np.ones((4, 6))),
    ],
)
def test_shapes_that_are_refused(x, gamma):
    with pytest.raises(ValueError, match=r"^gamma must have shape \(6,\), the normalized axes"):
        numnorm.layer_norm(x, gamma)
    with pytest.raises(ValueError, match=r"^beta must have shape \(6,\), the normalized axes"):
        numnorm.layer_norm(x, None, gamma)


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 3)])
def test_a_gain_broadcasts_where_axis_names_all_axes(shape):
    x, dy, gamma = RNG.normal(size=(2, 3)), RNG.normal(size=(2, 3)), RNG.normal(size=shape)
    full = np.broadcast_to(gamma, x.shape).copy()
    y, *saved = numnorm.layer_norm_forward(x, gamma, axis=(0, 1))
    expected, *_ = numnorm.layer_norm_forward(x, full, axis=(0, 1))
    np.testing.assert_allclose(y, expected, rtol=1e-15)
    got = numnorm.layer_norm_backward(dy, x, *saved, gamma, axis=(0, 1))
    of_full = numnorm.layer_norm_backward(dy, x, *saved, full, axis=(0, 1))
    np.testing.assert_allclose(got.dx, of_full.dx, rtol=1e-12, atol=1e-14)
    axes = tuple(axis for axis, n in enumerate(shape) if n == 1)
    summed = of_full.dgamma.sum(axes, keepdims=True)
    np.testing.assert_allclose(got.dgamma, summed, rtol=1e-12, atol=1e-14)


def test_errors_name_the_shape_that_broadcasts():
    x = np.ones((2, 3, 4, 5))
    message = (
        r"^gamma must have shape \(3,\), the channels of x, or \(1, 3, 1, 1\) to broadcast, "
        r"got \(3, 1, 1\)$"
    )
    with pytest.raises(ValueError, match=message):
        numnorm.batch_norm(x, np.ones((3, 1, 1)))
    with pytest.raises(ValueError, match=message):
        numnorm.group_norm(x, np.ones((3, 1, 1)), groups=3)
    with pytest.raises(ValueError, match=r"^beta .* or \(1, 3, 1, 1\) to broadcast"):
        numnorm.batch_norm(x, np.ones((2, 1, 1, 1)), np.ones((3, 1, 1)))


def each_gain(name):
    """Gains of each shape that broadcasts against an x of two axes."""
    shapes = [(2, 1), (1, 4), (2, 4), (1, 1)]
    return [np.ones(shape) for shape in shapes if name != "weight_norm" or shape[1] == 1]


@pytest.mark.parametrize("keyword", ["where", "weights"])
@pytest.mark.parametrize("name", ["layer_norm", "rms_norm", "batch_norm", "weight_norm"])
def test_a_value_that_is_no_number_reaches_the_gain(name, keyword):
    x, dy = RNG.normal(size=(2, 2, 4))
    x[0, 1] = np.nan
    keep = np.ones(x.shape, bool)
    keep[:, 3] = keyword == "weights"
    options = {keyword: keep if keyword == "where" else np.ones(x.shape)}
    for gamma in each_gain(name):
        *_, rstd = saved = getattr(numnorm, f"{name}_forward")(x, gamma, **options)[1:]
        assert np.isnan(rstd).any()
        got = getattr(numnorm, f"{name}_backward")(dy, x, *saved, gamma, **options)
        spoilt = np.zeros(x.shape, bool)
        spoilt[(slice(None), 1) if name == "batch_norm" else 0] = True
        spoilt &= keep
        np.testing.assert_array_equal(np.isnan(got[0]), spoilt)
        axes = tuple(axis for axis, n in enumerate(gamma.shape) if n == 1)
        np.testing.assert_array_equal(np.isnan(got[1]), spoilt.any(axes, keepdims=True))


def test_errors_beside_a_parameter_that_broadcasts():
    x, gamma = np.ones((4, 6)), np.ones((4, 1))
    statistics = numnorm.layer_norm_forward(x)[1:]
    with pytest.raises(ValueError, match=r"^out must have shape"):
        numnorm.layer_norm(x, gamma, out=np.empty(3))
    with pytest.raises(ValueError, match=r"^beta must have shape"):
        numnorm.layer_norm(x, gamma, np.ones(5))
    with pytest.raises(TypeError, match=r"^gamma must hold real numbers"):
        numnorm.layer_norm(x, gamma * 1j)
    with pytest.raises(ValueError, match=r"^dy must have shape"):
        numnorm.layer_norm_backward(x[:2], x, *statistics, gamma)
    with pytest.raises(ValueError, match=r"^mean must have shape"):
        numnorm.layer_norm_backward(x, x, np.ones(3), statistics[1], gamma)


def test_overlapping_memory_and_empty_arrays():
    x, gamma = RNG.normal(size=(4, 6)), RNG.uniform(0.5, 2, (4, 6))
    expected = numnorm.layer_norm(x, gamma)
    memory = gamma.copy()
    np.testing.assert_array_equal(numnorm.layer_norm(x, memory, out=memory), expected)
    memory = x.copy()
    np.testing.assert_array_equal(numnorm.layer_norm(memory, gamma, out=memory), expected)
    for shape in ((0, 6), (4, 0), (0, 0)):
        y, *saved = numnorm.layer_norm_forward(np.ones(shape), np.ones((1, 1)), np.ones(shape[1]))
        assert y.shape == shape
        gradients = numnorm.layer_norm_backward(y, y, *saved, np.ones((1, 1)))
        np.testing.assert_array_equal(gradients.dgamma, [[0.0]])


def test_gain_given_as_one_plus_gamma():
    # The derivative by gamma is that by the gain.
    x, gamma, dy = RNG.normal(size=(4, 6)), RNG.normal(size=6), RNG.normal(size=(4, 6))
    saved = numnorm.layer_norm_forward(x, 1 + gamma)[1:]
    dgamma = numnorm.layer_norm_backward(dy, x, *saved, 1 + gamma).dgamma
    step = 1e-6 * np.eye(6)
    for k in range(6):
        change = numnorm.layer_norm(x, 1 + gamma + step[k]) - numnorm.layer_norm(
            x, 1 + gamma - step[k]
        )
        # y is linear in the gain: only rounding errors of y, 1e-16, over a step of 2e-6.
        assert (dy * change).sum() / 2e-6 == pytest.approx(dgamma[k], abs=1e-8)


@pytest.mark.parametrize("shape", [(5, 1), (5, 40), (1, 40), (1, 1)])
def test_gradient_of_float64_rows_far_from_0(shape):
    rng = np.random.default_rng(0)
    x, dy = rng.normal(size=(5, 40)) + 1e12, rng.normal(size=(5, 40))
    saved = numnorm.layer_norm_forward(x, np.ones(shape))
    got = numnorm.layer_norm_backward(dy, x, saved.mean, saved.rstd, np.ones(shape)).dgamma
    # The differences are exact in float64, and so is a row without its offset.
    exact = reference.exact(x - 1e12)
    deviations = exact - exact.mean(1, keepdims=True)
    xhat = deviations / np.sqrt(np.square(deviations).mean(1, keepdims=True) + 1e-5)
    axes = tuple(axis for axis, n in enumerate(shape) if n == 1)
    # A few roundings of each of up to 200 terms.
    assert np.abs(got - (dy * xhat).sum(axes, keepdims=True)).max() < 200 * 4 * 2.0**-52


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("norm", ["layer_norm", "batch_norm"])
def test_a_gain_beyond_float32_gives_no_warning(norm):
    y = getattr(numnorm, norm)(np.eye(4, 3, dtype=np.float32), np.full((4, 1), 1e300))
    assert np.isinf(y).any()
